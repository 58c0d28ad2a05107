"""Rows of metrics as a user's function wants them to be logged."""

from collections.abc import Callable, Mapping

from trackside.errors import MetricError
from trackside.logger.numbers import to_floats

OWN_MODES = frozenset({"time", "memory", "profile"})
"""Modes of rows about the run itself, which users' functions never see."""

MetricPostprocessFn = Callable[[dict[str, float]], dict[str, float]]
"""Takes a row's numbers by name and returns what to log instead."""


def postprocess(
    function: MetricPostprocessFn | None, values: dict[str, float], step: int, mode: str
) -> dict[str, float]:
    """What to log in place of a row.

    Args:
        function: The user's function; None for none.
        values: The row's numbers by name.
        step: The step of the row, for errors.
        mode: The mode of the row.

    Raises:
        MetricError: The function returned something else than numbers by name.
    """
    if function is None or mode in OWN_MODES:
        return values
    name = getattr(function, "__qualname__", repr(function))
    try:
        processed = function(dict(values))
    except Exception as error:
        error.add_note(f"Raised by metric_postprocess_fn={name} for the {mode!r} row of step {step}: {values}")
        raise
    if not isinstance(processed, Mapping):
        raise MetricError(f"metric_postprocess_fn={name} returned {processed!r}. Return a dict of numbers by name.")
    return to_floats(processed)
