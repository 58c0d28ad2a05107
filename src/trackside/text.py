"""How numbers, names and lines of text read, wherever people meet them: terminal, page, log and errors."""

import math
import re
import textwrap
import time

NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""The words for numbers that JSON cannot write: what `str` gives for them, and what they are read back as."""

_UNBROKEN = "\xa0"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[kMG]?B|[mu]?s|min|h|d)\b)")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")
_CONTROLS.pop(ord("\n"))
_MAX_LABEL = 80
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def percent(share: float) -> str:
    """A share as a whole percentage, with a digit more where it is small."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def percent_of_peak(share: float, share_range: tuple[float, float] | None) -> str:
    """A share of what a device can do; with its range if that was measured: `12 % (10 to 14 %, measured peak)`.

    Args:
        share: The share.
        share_range: The least and the most that it may be; None for a peak without a spread.
    """
    if share_range is None:
        return percent(share)
    low, high = share_range
    return f"{percent(share)} ({percent(low).removesuffix(' %')} to {percent(high)}, measured peak)"


def seconds(time_s: float) -> str:
    """A time with its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(time_s) >= size:
            return f"{_short(time_s / size)} {unit}"
    return f"{_short(time_s / 1e-6)} us"


def duration(time_s: float) -> str:
    """A stretch of time in at most two units: `8.3 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`."""
    if time_s < 9.95:
        return f"{max(time_s, 0.0):.1f} s"
    whole_s = round(time_s)
    for unit, size_s, smaller, smaller_s in (
        ("d", _DAY_S, "h", _HOUR_S),
        ("h", _HOUR_S, "min", _MINUTE_S),
        ("min", _MINUTE_S, "s", 1),
    ):
        if whole_s >= size_s:
            rest = whole_s % size_s // smaller_s
            return f"{whole_s // size_s} {unit} {rest} {smaller}" if rest else f"{whole_s // size_s} {unit}"
    return f"{whole_s} s"


def moment(timestamp: float) -> str:
    """A moment in local time, to the minute: `2026-03-01 14:05`. One that no calendar has is an unknown time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp))
    except (OverflowError, OSError, ValueError):
        return "unknown time"


def num_bytes(number: float) -> str:
    """A number of bytes with its unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(number) >= size:
            return f"{_short(number / size)} {unit}"
    return f"{_short(number)} B"


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def a_type(value: object) -> str:
    """What a value is, for an error: `a list`, `an ndarray`, `None`."""
    if value is None:
        return "None"
    name = type(value).__name__
    is_vowel = name[0] in "aeioAEIO" or name == "ndarray"
    return f"{'an' if is_vowel else 'a'} {name}"


def share_bar(share: float, width: int) -> str:
    """A share as a bar, to an eighth of a column; what is not nothing has at least an eighth."""
    eighths = max(round(8 * share * width), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def with_prefix(number: float, unit: str) -> str:
    """A number with the prefix of its unit: `12.3 GFLOP/s`."""
    for factor, prefix in _PREFIXES:
        if abs(number) >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def three_digits(number: float) -> str:
    """A number to three digits, without an exponent where it is large: `0.123`, `81.1`, `4,130`."""
    return f"{float(f'{number:.3g}'):,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"


def four_digits(number: float) -> str:
    """A number without a unit: whole where it is whole, otherwise to four digits."""
    if abs(number) < 1e6 and float(number).is_integer():
        return f"{number:,.0f}"
    return f"{number:,.0f}" if 1e4 <= abs(number) < 1e6 else f"{number:.4g}"


def head(text: str, width: int) -> str:
    """The beginning of a text, with an ellipsis where it is cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def tail(text: str, width: int) -> str:
    """The end of a path, which says more than its beginning, with an ellipsis where it is cut."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def wrap(text: str, width: int, hanging: str = "") -> list[str]:
    """A text in lines that fit; numbers stay with their units.

    Args:
        text: The text.
        width: The columns that a line may have.
        hanging: What all lines but the first begin with.
    """
    unbroken = _BEFORE_UNIT.sub(_UNBROKEN, text)
    lines = textwrap.wrap(unbroken, max(width, 20), subsequent_indent=hanging, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ") for line in lines] or [""]


def without_controls(text: str) -> str:
    """A text with a replacement character for each control character; line ends stay.

    A name that a run wrote must not be able to move the cursor or to clear the screen.
    """
    return text.translate(_CONTROLS)


def chart_label(text: object, max_length: int = _MAX_LABEL) -> str:
    """Text from a run on one line, as plotly shows it literally: it reads a little HTML in everything it writes."""
    shown = " ".join(str(text).encode("utf-8", "replace").decode("utf-8").split())
    return head(shown, max_length).translate(_ESCAPES)


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
