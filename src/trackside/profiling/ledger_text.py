"""The ledger as text, for the console: what took the time, largest first."""

from collections.abc import Sequence

from trackside.profiling.ledger import CALLBACK, LedgerTotals
from trackside.text import three_digits

_BAR_WIDTH = 24
_MIN_SHARE = 0.0005

# Parts as people call them.
_NAMES = {
    "data_wait": "waiting for data",
    "host_to_device": "host to device",
    "dispatch": "dispatch",
    "device_wait": "waiting for the device",
    "compile": "compiling",
    "logging": "logging",
    "validation": "validation and test",
    "checkpointing": "checkpoints",
    "other": "other",
}


def part_name(part: str) -> str:
    """A part as people call it."""
    return part.removeprefix(CALLBACK) if part.startswith(CALLBACK) else _NAMES.get(part, part)


def render_ledger(totals: LedgerTotals, notes: Sequence[str] = ()) -> str:
    """Where the time went; empty if no step was made.

    Args:
        totals: What the ledger shows.
        notes: What else there is to say of the run as a whole.
    """
    if totals.num_steps == 0 or totals.wall_s <= 0:
        return ""
    lines = [_headline(totals)]
    for part, seconds in sorted(totals.parts.items(), key=lambda item: -item[1]):
        share = totals.share(part)
        if share >= _MIN_SHARE:
            bar = "█" * max(1, round(share * _BAR_WIDTH))
            lines.append(f"  {part_name(part):<24} {seconds:9.2f} s {100 * share:6.1f} %  {bar}")
    if totals.idle_share is not None:
        lines.append(_device_line(totals))
    return "\n".join([*lines, *(f"  {note}" for note in notes)])


def _headline(totals: LedgerTotals) -> str:
    rates = [f"{three_digits(totals.steps_per_second)} steps", f"{three_digits(totals.samples_per_second)} examples"]
    if totals.num_tokens:
        rates.append(f"{three_digits(totals.tokens_per_second)} tokens")
    return f"where the time went: {totals.wall_s:.1f} s, {totals.num_steps} steps; per second {', '.join(rates)}"


def _device_line(totals: LedgerTotals) -> str:
    assert totals.device_idle_s is not None
    assert totals.device_busy_s is not None
    idle = totals.idle_share or 0.0
    observed_s = totals.device_busy_s + totals.device_idle_s
    reasons = sorted(totals.idle_by_reason.items(), key=lambda item: -item[1])[:3]
    why = ", ".join(f"{part_name(part)} {100 * seconds / observed_s:.1f} %" for part, seconds in reasons)
    return f"  the device idled {100 * idle:.1f} % of the time between steps" + (f": {why}" if why else "")
