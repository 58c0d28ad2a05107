"""The parts of an operation: which share of its time belongs to which place in the user's code."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import takewhile
from math import isfinite
from typing import NamedTuple

from trackside.text import count
from trackside.trace.hlo import Frame

_MIN_PART = 0.01
"""No estimate is so fine that a smaller part of a kernel would mean something."""

Place = tuple[tuple[str, ...], str]
"""Scope and phase."""


class OpPart(NamedTuple):
    """What of an operation's time belongs to one place in the user's code."""

    scope: tuple[str, ...]
    phase: str
    source: Frame | None
    """The user's source line."""
    share: float = 1.0
    """Of the operation's time; the parts of an operation sum to 1."""

    @property
    def place(self) -> Place:
        """Scope and phase."""
        return self.scope, self.phase


def split_by_cost(costs: Mapping[OpPart, float]) -> tuple[OpPart, ...]:
    """The parts of a kernel from what each costs, the largest first. Scopes that are hardly any of it are left out.

    Args:
        costs: What is computed for each place and source line.

    Returns:
        Parts that sum to 1; none if there is nothing to go by.
    """
    total = sum(costs.values())
    if not isfinite(total):  # a damaged program may claim any number
        return ()
    by_place: defaultdict[Place, float] = defaultdict(float)
    for part, cost in costs.items():
        by_place[part.place] += cost
    kept = {part: cost for part, cost in costs.items() if cost and by_place[part.place] >= _MIN_PART * total}
    kept_total = sum(kept.values())
    largest_first = sorted(kept.items(), key=lambda item: -item[1])
    return tuple(part._replace(share=cost / kept_total) for part, cost in largest_first)


def merge_places(places: Collection[Place]) -> Place:
    """The scope and phase to show for one kernel over several: what they have in common, and how many there are."""
    scopes, phases = {scope for scope, _ in places}, {phase for _, phase in places}
    phase = phases.pop() if len(phases) == 1 else "other"
    if len(scopes) == 1:
        return scopes.pop(), phase
    common = takewhile(lambda names: len(set(names)) == 1, zip(*scopes, strict=False))
    return (*(names[0] for names in common), f"(one kernel over {count(len(scopes - {()}), 'scope')})"), phase
