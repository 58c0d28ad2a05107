"""The floating-point operations of a program by scope and phase, as plain data: what `count_flops` gives."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class FlopRow:
    """The operations of one scope in one phase."""

    scope: tuple[str, ...] = ()
    """The user's scopes, outermost first."""
    phase: str = "other"
    """One of `trackside.trace.scopes.PHASES`."""
    flops: int = 0
    """Floating-point operations of matrix products and convolutions, a multiply-add counting as two."""
    other_flops: int = 0
    """Those of elementwise operations and reductions, each counting as one."""


@dataclass(frozen=True)
class FlopTable:
    """The operations of a program, on all devices together."""

    rows: tuple[FlopRow, ...] = ()
    """By scope and phase, the most expensive first."""
    flops_by_dtype: dict[str, int] = field(default_factory=dict)
    """The operations of matrix products and convolutions by the type of what is multiplied."""
    uncounted: dict[str, int] = field(default_factory=dict)
    """Primitives that are not counted, with the number of times they run."""
    num_while_loops: int = 0
    """Loops of unknown length, whose bodies are counted once."""
    num_conditionals: int = 0
    """Conditionals, of which the most expensive branch is counted."""

    @property
    def flops(self) -> int:
        """All operations of matrix products and convolutions."""
        return sum(row.flops for row in self.rows)

    @property
    def other_flops(self) -> int:
        """All operations of elementwise operations and reductions."""
        return sum(row.other_flops for row in self.rows)

    @property
    def model_flops(self) -> int:
        """The operations of matrix products and convolutions that the model asks for: all but recomputation."""
        return sum(row.flops for row in self.rows if row.phase != "recompute")

    @property
    def is_lower_bound(self) -> bool:
        """Whether the program does more than is counted: loops of unknown length, or primitives without a figure."""
        return bool(self.num_while_loops or self.uncounted)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the figures, in words."""
        notes = ["matrix products and convolutions of the whole program, on all devices together"]
        if self.num_while_loops:
            notes.append(f"{self.num_while_loops} while loop(s) of unknown length, counted once: a lower bound")
        if self.num_conditionals:
            notes.append(f"{self.num_conditionals} conditional(s), counted as their most expensive branch")
        if self.uncounted:
            named = ", ".join(f"{name} ({count})" for name, count in sorted(self.uncounted.items()))
            notes.append(f"not counted: {named}")
        return tuple(notes)

    def by_phase(self) -> dict[str, int]:
        """The operations of matrix products and convolutions by phase."""
        totals: Counter[str] = Counter()
        for row in self.rows:
            totals[row.phase] += row.flops
        return dict(totals)
