"""The scopes of a capture as an indented list with a bar for each, for screens that are too narrow for the icicle."""

from collections.abc import Iterator

from trackside.report.html.markup import Html, element
from trackside.report.html.scope_tree import ScopeNode, scope_nodes
from trackside.text import percent
from trackside.trace.scopes import PHASES
from trackside.trace.trace_report import TraceReport

_MAX_ROWS = 40
_MAX_DEPTH = 6
_MIN_SHARE = 0.005


def scope_list(report: TraceReport) -> Html:
    """The scopes that take at least half a percent of the device's busy time, the largest first at each level.

    Args:
        report: The capture's report.
    """
    root = scope_nodes(report)
    rows = list(_rows(root, root.busy_s, 0))
    listed = [element("li", content, class_=f"depth-{min(depth, _MAX_DEPTH)}") for depth, content in rows[:_MAX_ROWS]]
    rest = len(rows) - len(listed)
    more = element("p", f"And {rest:,} more; the tables below have all.", class_="note") if rest else None
    return element("div", element("ul", listed), more, class_="scope-list")


def _rows(node: ScopeNode, total_s: float, depth: int) -> Iterator[tuple[int, list[Html]]]:
    for child in sorted(node.children.values(), key=lambda one: -one.busy_s):
        if child.busy_s < _MIN_SHARE * total_s:
            continue
        names, inner = [child.name], child
        # A scope that is only a wrapper of another shares its line.
        while len(inner.children) == 1 and not sum(inner.own.values()):
            (inner,) = inner.children.values()
            names.append(inner.name)
        yield depth, _row("/".join(names), inner, total_s)
        yield from _rows(inner, total_s, depth + 1)


def _row(name: str, node: ScopeNode, total_s: float) -> list[Html]:
    return [
        element("span", name, class_="name"),
        element("span", percent(node.busy_s / total_s), class_="share"),
        _phase_bar(node, total_s),
    ]


def _phase_bar(node: ScopeNode, total_s: float) -> Html:
    """The share of the busy time as a bar, in the colors of its phases."""
    pieces, left = [], 0.0
    for phase in PHASES:
        width = 100 * node.phases.get(phase, 0.0) / total_s
        if width > 0:
            pieces.append(
                element("rect", x=f"{left:.2f}%", width=f"{width:.2f}%", height="100%", class_=f"fill-phase-{phase}")
            )
            left += width
    return element("svg", pieces, class_="bar", aria_hidden="true")
