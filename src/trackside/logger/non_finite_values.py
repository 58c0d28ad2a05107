"""NaNs and infinities among logged values: whether there were any, with one warning for each metric."""

import logging
import math
from collections.abc import Mapping

LOGGER = logging.getLogger(__name__)


class NonFiniteValues:
    """Looks for values that are not finite.

    Attributes:
        found: Whether there was one since the start of the training.
    """

    def __init__(self) -> None:
        self.found = False
        self._warned_of: set[str] = set()

    def forget(self) -> None:
        """Start again, for another training."""
        self.found = False
        self._warned_of.clear()

    def check(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Look at the values of a row, and warn of each metric once.

        Args:
            values: The values by name.
            step: The step that they were logged at, for the warning.
        """
        # One sum finds out whether any may be bad; large values can add up to infinity, too.
        if math.isfinite(sum(values.values())):
            return
        bad = {name: value for name, value in values.items() if not math.isfinite(value)}
        if not bad:
            return
        self.found = True
        if new := {name: value for name, value in bad.items() if name not in self._warned_of}:
            self._warned_of.update(new)
            found = ", ".join(f"{name}={float(value)}" for name, value in new.items())
            where = "" if step is None else f" at step {step}"
            LOGGER.warning("found values that are not finite%s: %s", where, found)
