"""Moments and stretches of time as people write them."""

import time

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """How long something took, with two units at most: `8.3 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for unit, size, smaller, smaller_size in (
        ("d", _DAY, "h", _HOUR),
        ("h", _HOUR, "min", _MINUTE),
        ("min", _MINUTE, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def moment(timestamp: float) -> str:
    """A moment in local time, to the minute: `2026-03-01 14:05`."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp))
