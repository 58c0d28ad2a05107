"""The scopes of a report in few rows: a tree that is opened only where the time is."""

from dataclasses import dataclass, field
from typing import NamedTuple

from trackside.trace.tables import NO_SCOPE, ScopeRow

_MIN_SHARE = 0.1
NOTICEABLE = 0.01
"""How much of a time is estimated before it is marked as such."""
_NUM_CHILDREN = 4
_ALIKE = 1.5
"""Equal blocks take different times by chance, up to this factor."""

PhaseShares = dict[str, float]


class RolledScope(NamedTuple):
    """A row: a scope with all that is under it."""

    label: str
    """Its path; `<scope>/.` for what is in the scope itself, `<scope>/(n more)` for what remains of many."""
    shares: PhaseShares
    """Shares of the busy time."""
    estimated: float = 0.0
    """What of these is the scope's part of kernels that compute for several, by estimate."""

    @property
    def total(self) -> float:
        """Its share over all phases."""
        return sum(self.shares.values())

    @property
    def mark(self) -> str:
        """A tilde where a noticeable part of the share is estimated."""
        return "~" if self.estimated > NOTICEABLE * self.total else ""


@dataclass(eq=False)
class _Node:
    label: str
    shares: PhaseShares = field(default_factory=dict)
    """Of the scope and everything under it."""
    own: PhaseShares = field(default_factory=dict)
    estimated: float = 0.0
    own_estimated: float = 0.0
    children: dict[str, "_Node"] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.shares.values())


def roll_up(rows: tuple[ScopeRow, ...], max_rows: int) -> list[RolledScope]:
    """Shares of the busy time by scope and phase, in rows that sum to the whole.

    The scope with the largest share is opened into those under it, as long as it holds a tenth of the time and there is
    room; equal blocks next to it are opened with it, or none of them is. What is in a scope itself, and what remains of
    many small ones, gets a row of its own.

    Args:
        rows: The table by scope.
        max_rows: At most this many rows, or as many as there are outermost scopes.
    """
    shown = list(_build_tree(rows).children.values())
    while True:
        shown.sort(key=lambda node: -node.total)
        groups = (_equal_blocks(node, shown) for node in shown if node.children and node.total >= _MIN_SHARE)
        chosen = next((nodes for nodes in groups if len(shown) + _num_added(nodes) <= max_rows), None)
        if chosen is None:
            return [RolledScope(node.label, node.shares, node.estimated) for node in shown]
        shown = [node for node in shown if node not in chosen]
        shown += [opened for node in chosen for opened in _open(node)]


def _equal_blocks(node: _Node, shown: list[_Node]) -> list[_Node]:
    """A scope, and those next to it that hold the same and take about as long, such as the layers of a stack."""
    parent = node.label.rpartition("/")[0]
    return [
        other
        for other in shown
        if other.label.rpartition("/")[0] == parent
        and other.children.keys() == node.children.keys()
        and max(other.total, node.total) <= _ALIKE * min(other.total, node.total)
    ]


def _num_added(nodes: list[_Node]) -> int:
    """How many rows more there are once these are opened."""
    return sum(len(_open(node)) - 1 for node in nodes)


def _build_tree(rows: tuple[ScopeRow, ...]) -> _Node:
    root = _Node("")
    for row in rows:
        node = root
        estimated = row.share * row.estimated_s / row.busy_s if row.busy_s else 0.0
        for name in [NO_SCOPE] if row.scope == NO_SCOPE else row.scope.split("/"):
            label = f"{node.label}/{name}".lstrip("/")
            node = node.children.setdefault(name, _Node(label))
            _add(node.shares, {row.phase: row.share})
            node.estimated += estimated
        _add(node.own, {row.phase: row.share})
        node.own_estimated += estimated
    return root


def _open(node: _Node) -> list[_Node]:
    """The rows that take a scope's place."""
    children = sorted(node.children.values(), key=lambda child: -child.total)
    opened, rest = children[:_NUM_CHILDREN], children[_NUM_CHILDREN:]
    if len(rest) == 1:
        opened, rest = children, []
    if rest:
        remainder = _Node(f"{node.label}/({len(rest)} more)")
        for child in rest:
            _add(remainder.shares, child.shares)
            remainder.estimated += child.estimated
        opened = [*opened, remainder]
    if node.own:
        opened = [*opened, _Node(f"{node.label}/.", node.own, estimated=node.own_estimated)]
    return opened


def _add(total: PhaseShares, shares: PhaseShares) -> None:
    for phase, share in shares.items():
        total[phase] = total.get(phase, 0.0) + share
