"""How a difference reads on the page: both values, the change, its interval, and whether it is significant."""

from collections.abc import Sequence
from typing import Literal

from trackside.compare import Comparison, Difference
from trackside.text import num_bytes, seconds

Judgement = Literal["more", "less", "negligible", "within noise", "no interval", "same"]

NEGLIGIBLE = 0.01
"""A significant change below this share of the largest value of its kind is not worth a look."""

EXPLANATIONS: dict[Judgement, str] = {
    "more": "Significantly more: the whole interval is above zero, or the figure has no noise.",
    "less": "Significantly less: the whole interval is below zero, or the figure has no noise.",
    "negligible": "A significant change, but below 1 % of the largest value here.",
    "within noise": "The interval includes zero: the difference may be chance.",
    "no interval": "Only one value per run, so there is no confidence interval.",
    "same": "No difference.",
}


def run_labels(comparison: Comparison) -> tuple[str, str]:
    """The names of the two runs in legends."""
    return f"before: {comparison.before.name}", f"after: {comparison.after.name}"


def signed_percent(share: float) -> str:
    """A relative change, with its sign."""
    digits = 1 if abs(share) < 10 else 0
    return f"{sign_of(share)}{abs(100 * share):,.{digits}f} %"


def before_and_after(before: str, after: str) -> str:
    """Two figures with an arrow between them; a line may break only after the arrow."""
    return f"{before} → {after}".replace(" ", "\xa0").replace("→\xa0", "→ ")


def value_text(one: Difference, value: float | None) -> str:
    """A value in its unit; `none` where a run has no such thing."""
    if value is None:
        return "none"
    if one.unit == "bytes":
        return num_bytes(value)
    if one.unit == "count":
        return f"{value:,.0f}"
    return seconds(value)


def change_text(one: Difference) -> str:
    """The change, with its sign and unit."""
    return _signed(one, one.change) if one.change else "0"


def relative_text(one: Difference) -> str:
    """The change as a share of the first run's value; empty where one of the two is nothing."""
    return signed_percent(one.relative_change) if one.relative_change else ""


def interval_text(one: Difference) -> str:
    """The interval of the change; empty where there is none."""
    if one.low is None or one.high is None:
        return ""
    return f"{_signed(one, one.low)} to {_signed(one, one.high)}"


def largest_value(differences: Sequence[Difference]) -> float:
    """The largest value of either run."""
    return max((max(abs(one.before or 0.0), abs(one.after or 0.0)) for one in differences), default=0.0)


def judge(one: Difference, largest: float) -> Judgement:
    """Whether a difference is significant, and large enough to matter.

    Args:
        one: The difference.
        largest: The largest value of its kind.
    """
    if one.is_exact or one.low is not None:
        if one.is_significant:
            if not one.is_exact and abs(one.change) < NEGLIGIBLE * largest:
                return "negligible"
            return "more" if one.change > 0 else "less"
        return "same" if one.is_exact else "within noise"
    return "no interval" if one.change else "same"


def is_relevant(judgement: Judgement) -> bool:
    """Whether something changed significantly, and by an amount that matters."""
    return judgement in ("more", "less")


def _signed(one: Difference, value: float) -> str:
    return f"{sign_of(value)}{value_text(one, abs(value))}"


def sign_of(value: float) -> str:
    """The sign of a change, which is always written."""
    return "+" if value >= 0 else "−"  # noqa: RUF001 (a minus that is as wide as the plus)
