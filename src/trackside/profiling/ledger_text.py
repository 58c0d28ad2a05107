"""The ledger as text, for the console: what took the time, largest first."""

from collections.abc import Sequence

from trackside.profiling.ledger_totals import CALLBACK, DRAIN, LedgerTotals
from trackside.text import count, seconds, share_bar, three_digits

_BAR_WIDTH = 24
_MIN_SHARE = 0.0005
_MIN_OUTSIDE = 0.02
_SURE_WITHIN = 0.05
"""The device's idle share is shown without an interval if that is not wider."""

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
    "setup": "setting up",
    "initial_state": "initial state",
    "restoring": "restoring",
    "other": "other",
}


def part_name(part: str) -> str:
    """A part as people call it."""
    if part.startswith(DRAIN):
        return f"closing {part.removeprefix(DRAIN)}"
    return part.removeprefix(CALLBACK) if part.startswith(CALLBACK) else _NAMES.get(part, part)


def outside_sentence(totals: LedgerTotals) -> str:
    """What passed between the calls, outside of the ledger; empty if that is too little to speak of."""
    if totals.outside_s < _MIN_OUTSIDE * totals.wall_s:
        return ""
    return (
        f"{seconds(totals.outside_s)} passed between calls of the trainer, or cells of a notebook: that is not counted"
    )


def idle_interval(totals: LedgerTotals, of_busy: bool = False) -> str:
    """Between which shares the device's idle share is, in parentheses; empty where it is known well enough.

    Args:
        totals: What the ledger shows.
        of_busy: Say it of the busy share instead.
    """
    if totals.idle_share_interval is None:
        return ""
    low, high = totals.idle_share_interval
    if high - low <= _SURE_WITHIN:
        return ""
    low, high = (1 - high, 1 - low) if of_busy else (low, high)
    return f" ({100 * low:.0f} to {100 * high:.0f} %)"


def render_ledger(totals: LedgerTotals, notes: Sequence[str] = ()) -> str:
    """Where the time went; empty if no step was made.

    Args:
        totals: What the ledger shows.
        notes: What else there is to say of the run as a whole.
    """
    if totals.num_steps == 0 or totals.wall_s <= 0:
        return ""
    lines = [_headline(totals)]
    for part, part_s in sorted(totals.parts.items(), key=lambda item: -item[1]):
        share = totals.share(part)
        if share >= _MIN_SHARE:
            figures = f"{part_s:9.2f} s {100 * share:6.1f} %"
            lines.append(f"  {part_name(part):<24} {figures}  {share_bar(share, _BAR_WIDTH)}")
    if totals.idle_share is not None:
        lines.append(_device_line(totals))
    if outside := outside_sentence(totals):
        lines.append(f"  {outside}")
    return "\n".join([*lines, *(f"  {note}" for note in notes)])


def _headline(totals: LedgerTotals) -> str:
    rates = [f"{three_digits(totals.steps_per_second)} steps/s"]
    if totals.num_samples:  # a loop of the user's own may get its batches in a way that nobody counts
        rates.append(f"{three_digits(totals.samples_per_second)} examples/s")
    if totals.num_tokens:
        rates.append(f"{three_digits(totals.tokens_per_second)} tokens/s")
    return f"where the time went: {totals.wall_s:.1f} s, {count(totals.num_steps, 'step')}; overall {', '.join(rates)}"


def _device_line(totals: LedgerTotals) -> str:
    assert totals.device_idle_s is not None
    assert totals.device_busy_s is not None
    idle = totals.idle_share or 0.0
    observed_s = totals.device_busy_s + totals.device_idle_s
    reasons = sorted(totals.idle_by_reason.items(), key=lambda item: -item[1])[:3]
    why = ", ".join(f"{part_name(part)} {100 * part_s / observed_s:.1f} %" for part, part_s in reasons)
    shown = f"{100 * idle:.1f} %{idle_interval(totals)}"
    return f"  the device idled {shown} of the time between steps" + (f": {why}" if why else "")
