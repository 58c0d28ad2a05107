"""How numbers and names read in verdicts, their evidence, and whatever else a terminal shows of a run."""

from trackside.profiling.ledger_text import three_digits

_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")
_CONTROLS.pop(ord("\n"))


def percent(share: float) -> str:
    """A share as a whole percentage, with a digit more where it is small."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def seconds(time_s: float) -> str:
    """A time with its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(time_s) >= size:
            return f"{_short(time_s / size)} {unit}"
    return f"{_short(time_s / 1e-6)} us"


def num_bytes(number: float) -> str:
    """A number of bytes with its unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(number) >= size:
            return f"{_short(number / size)} {unit}"
    return f"{_short(number)} B"


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def without_controls(text: str) -> str:
    """A text with a replacement character for each control character; line ends stay.

    A name that a run wrote must not be able to move the cursor or to clear the screen.
    """
    return text.translate(_CONTROLS)


def evidence_value(name: str, value: float | int | str) -> str:
    """A figure of the evidence, in the unit that its name ends in."""
    if isinstance(value, str):
        return value
    if name.endswith("_share"):
        return percent(value)
    if name.endswith("_s"):
        return seconds(value)
    if name.endswith(("_bytes", "bytes_per_step")):
        return num_bytes(value)
    return f"{value:,}" if isinstance(value, int) else three_digits(value)


def _short(number: float) -> str:
    """Three digits, and whole numbers above a thousand."""
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.3g}"
