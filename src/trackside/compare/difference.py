"""What two runs differ in: a quantity, with both values and how certain the change is, or a cause of such a change."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

Unit = Literal["s", "bytes", "count"]

CONFIDENCE = 0.95
"""How often an interval holds the true difference."""


@dataclass(frozen=True)
class Difference:
    """One quantity in both runs: `before` in the first, `after` in the second."""

    name: str
    """What was measured, such as a part of the ledger, a scope's path, an owner of memory, a function."""
    before: float | None
    """None where the first run has no such thing."""
    after: float | None
    """None where the second run has no such thing."""
    unit: Unit = "s"
    low: float | None = None
    """The interval's lower end, of `change`; None where one figure of each run is all there is."""
    high: float | None = None
    """The interval's upper end."""
    phase: str = ""
    """The phase, for what has one."""
    scope: str = ""
    """The scope's path, for an operation."""
    is_exact: bool = False
    """Whether the figures have no noise, such as a number of compiles: any change is then a change."""

    @property
    def change(self) -> float:
        """How much more the second run has; what is not there counts as none."""
        return (self.after or 0.0) - (self.before or 0.0)

    @property
    def relative_change(self) -> float | None:
        """`change` as a share of the first run's figure; None where that is nothing."""
        return self.change / self.before if self.before else None

    @property
    def is_significant(self) -> bool:
        """Whether it changed significantly: the interval does not hold zero, or exact figures differ."""
        if self.is_exact:
            return self.change != 0
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            **asdict(self),
            "change": self.change,
            "relative_change": self.relative_change,
            "is_significant": self.is_significant,
        }


@dataclass(frozen=True)
class Cause:
    """Something that changed from the first run to the second."""

    id: str
    """Which rule it comes from, such as `scope_added`."""
    title: str
    """What changed, in one clause."""
    evidence: Mapping[str, str | int | float] = field(default_factory=dict)
    """The figures that it is based on. Names end in their unit: `_s`, `_share`, `_bytes`."""
    subject: str = ""
    """What it is about, where a rule may find several things: a scope, a function."""
    change_s: float | None = None
    """Seconds per step that it accounts for, if the traces show it."""

    @property
    def label(self) -> str:
        """The id as people read it: `scope-added`."""
        return self.id.replace("_", "-")

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def interval_of(resampled_changes: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval that holds the middle of resampled changes."""
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(resampled_changes, [tail, 100.0 - tail])
    return float(low), float(high)


def largest_first(differences: list[Difference]) -> tuple[Difference, ...]:
    """Significant ones first, then by the size of the change."""
    return tuple(sorted(differences, key=lambda one: (not one.is_significant, -abs(one.change), one.name)))
