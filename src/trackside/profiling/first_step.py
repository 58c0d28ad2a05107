"""How long it takes until the first step of a training is made, and what that time goes into."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trackside.profiling.ledger_text import part_name
from trackside.profiling.ledger_totals import DATA_WAIT, DISPATCH
from trackside.text import seconds

_NAMES = {DATA_WAIT: "first batch", DISPATCH: "calling the step"}
_MIN_SHARE = 0.005


@dataclass(frozen=True)
class TimeToFirstStep:
    """The time from when a trainer was built, or called to train again, until the call of the first step returned."""

    wall_s: float
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by part of the ledger, the largest first; they add up to `wall_s`."""

    @classmethod
    def of_parts(cls, parts: Mapping[str, float]) -> "TimeToFirstStep":
        """From what a ledger shows when the first step was called."""
        ordered = sorted(parts.items(), key=lambda item: -item[1])
        return cls(sum(parts.values()), {part: part_s for part, part_s in ordered if part_s})

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"wall_s": self.wall_s, "parts": dict(self.parts)}

    @property
    def text(self) -> str:
        """The time and its largest parts in words."""
        shown = {part: part_s for part, part_s in self.parts.items() if part_s >= _MIN_SHARE * self.wall_s}
        parts = ", ".join(f"{first_step_part_name(part)} {seconds(part_s)}" for part, part_s in shown.items())
        return f"{seconds(self.wall_s)}: {parts}" if parts else seconds(self.wall_s)


def first_step_part_name(part: str) -> str:
    """A part as people call it when it is that of the first step."""
    return _NAMES.get(part, part_name(part))
