"""One figure held against its truth, and a table of such figures."""

from collections.abc import Iterable
from dataclasses import dataclass

_COLUMNS = ("what", "truth", "reported", "error", "noise", "bound", "verdict")


@dataclass(frozen=True)
class TruthRow:
    """A figure that trackside reports, and what it should be.

    Args:
        what: The figure, for people.
        truth: What it is.
        reported: What trackside says.
        bound: How large the error may be.
        noise: How far the truth is from itself, measured twice; None where there is only one.
        unit: What the figures are in.
        is_relative: Whether error, noise and bound are shares of the truth; else they are differences.
        interval: Between which figures trackside says the truth is, if it says so. A truth in there is no error.
    """

    what: str
    truth: float
    reported: float
    bound: float
    noise: float | None = None
    unit: str = ""
    is_relative: bool = True
    interval: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """How far the figure is from its truth."""
        difference = self.reported - self.truth
        if not self.is_relative:
            return difference
        return difference / self.truth if self.truth else float("inf") if difference else 0.0

    @property
    def is_true(self) -> bool:
        """Whether the figure is within its bound, or the truth within the interval that is given with the figure."""
        is_covered = self.interval is not None and self.interval[0] <= self.truth <= self.interval[1]
        return abs(self.error) <= self.bound or is_covered

    @property
    def is_untrue(self) -> bool:
        """Whether it is not true; where the truth differs from itself by more than the bound, that cannot be told."""
        return not self.is_true and (self.noise is None or self.noise <= self.bound)

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        reported = f"{self.reported:.4g} {self.unit}".strip()
        if self.interval is not None:
            reported += f" ({self.interval[0]:.3g} to {self.interval[1]:.3g})"
        return (
            self.what,
            f"{self.truth:.4g} {self.unit}".strip(),
            reported,
            self._difference(self.error, "+"),
            "" if self.noise is None else self._difference(self.noise),
            self._difference(self.bound),
            "true" if self.is_true else "NOT TRUE" if self.is_untrue else "too noisy",
        )

    def _difference(self, value: float, sign: str = "") -> str:
        return f"{100 * value:{sign}.1f} %" if self.is_relative else f"{value:{sign}.3f}"


def show_rows(rows: Iterable[TruthRow]) -> int:
    """Print rows as a table.

    Returns:
        How many are not true.
    """
    rows = list(rows)
    table = [_COLUMNS, *(row.cells() for row in rows)]
    widths = [max(len(cells[index]) for cells in table) for index in range(len(_COLUMNS))]
    for cells in table:
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        print("  ".join([first, *others]), flush=True)
    return sum(row.is_untrue for row in rows)
