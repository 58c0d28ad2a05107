"""How numbers read on the page, where `trackside.text` does not have it."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def with_prefix(number: float, unit: str) -> str:
    """A number with the prefix of its unit: `12.3 GFLOP/s`."""
    for factor, prefix in _PREFIXES:
        if abs(number) >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


def plain_number(value: float) -> str:
    """A number of no known unit: whole where it is, otherwise four digits."""
    if abs(value) < 1e6 and float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 else f"{value:.4g}"


def time_unit(typical_s: float) -> tuple[float, str]:
    """The unit, as its size in seconds and its name, in which a typical time has few digits."""
    return next(((size, name) for size, name in _TIME_UNITS if typical_s >= size), _TIME_UNITS[-1])
