"""The scope tree of a capture as an icicle: device time by scope, and in each scope by phase, with FLOP/s."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from trackside.report.html.charts import Chart
from trackside.text import chart_label, percent, seconds, with_prefix
from trackside.trace.scopes import PHASES
from trackside.trace.tables import NO_SCOPE
from trackside.trace.trace_report import TraceReport

_MAX_NODES = 500
_MIN_RATE_SHARE = 0.01
"""What has hardly any time was fused into another scope; a rate would be far too high."""


@dataclass
class ScopeNode:
    """A scope: its time by phase, and what is in it."""

    name: str
    path: str
    phases: dict[str, float] = field(default_factory=dict)
    """Busy seconds by phase, of the scope and everything in it."""
    own: dict[str, float] = field(default_factory=dict)
    """Those of the scope itself."""
    estimated_s: float = 0.0
    """What of the time is parts of kernels that compute for several scopes, by estimate."""
    flops: float = 0.0
    """Of one step, on all devices, of the scope and everything in it."""
    phase_flops: dict[str, float] = field(default_factory=dict)
    """Of the scope itself."""
    children: dict[str, "ScopeNode"] = field(default_factory=dict)

    @property
    def busy_s(self) -> float:
        """Busy seconds of the scope and everything in it."""
        return sum(self.phases.values())


def scope_chart(report: TraceReport, chart_id: str) -> Chart:
    """The icicle of a capture.

    Args:
        report: The capture's report.
        chart_id: The chart's place in the page.
    """
    root = scope_nodes(report)
    drawn = _Drawing(report, root.busy_s)
    drawn.add(root, None)
    trace = {
        "type": "icicle",
        "ids": [str(index) for index in range(len(drawn.labels))],
        "labels": drawn.labels,
        "parents": drawn.parents,
        "values": drawn.values,
        "text": drawn.shares,
        "customdata": drawn.hovers,
        "branchvalues": "total",
        "marker": {"colors": drawn.colours, "line": {"width": 1, "color": "--surface"}},
        "textfont": {"size": 12, "color": drawn.text_colours},
        "texttemplate": "%{label}  %{text}",
        "hovertemplate": "%{customdata}<extra></extra>",
        "tiling": {"orientation": "h", "pad": 1},
        "pathbar": {"thickness": 22},
        "leaf": {"opacity": 1},
        "sort": False,
        "maxdepth": -1,
    }
    layout = {"margin": {"l": 0, "r": 0, "t": 26, "b": 0}}
    return Chart(
        chart_id, "Device time by scope and phase, as an icicle", [trace], layout, size="large icicle", has_legend=False
    )


def phases_of(report: TraceReport) -> list[str]:
    """The phases that the capture has, in the order in which they are shown."""
    return [phase for phase, busy_s in report.phases.items() if busy_s]


def scope_nodes(report: TraceReport) -> ScopeNode:
    """The scopes of a capture as a tree; the root has all of them.

    Args:
        report: The capture's report.
    """
    root = ScopeNode("all", "")
    for row in report.scopes:
        path = [NO_SCOPE] if row.scope == NO_SCOPE else row.scope.split("/")
        node = root
        _count(node.phases, row.phase, row.busy_s)
        root.estimated_s += row.estimated_s
        for name in path:
            node = node.children.setdefault(name, ScopeNode(name, f"{node.path}/{name}".lstrip("/")))
            _count(node.phases, row.phase, row.busy_s)
            node.estimated_s += row.estimated_s
        _count(node.own, row.phase, row.busy_s)
    for row in () if report.flops is None else report.flops.rows:
        node: ScopeNode | None = root
        root.flops += row.flops
        for name in row.scope or (NO_SCOPE,):
            node = node.children.get(name) if node is not None else None
            if node is not None:
                node.flops += row.flops
        if node is not None:
            _count(node.phase_flops, row.phase, row.flops)
    return root


def _count(totals: dict[str, float], name: str, value: float) -> None:
    totals[name] = totals.get(name, 0.0) + value


class _Drawing:
    """The columns that plotly wants, filled node by node; the smallest scopes beside each other are drawn as one."""

    def __init__(self, report: TraceReport, busy_s: float):
        self._report = report
        self._busy_s = busy_s
        self._min_share = 0.0 if len(report.scopes) <= _MAX_NODES else 1 / _MAX_NODES
        self.labels: list[str] = []
        self.parents: list[str] = []
        self.values: list[float] = []
        self.shares: list[str] = []
        self.hovers: list[str] = []
        self.colours: list[str] = []
        self.text_colours: list[str] = []

    def add(self, node: ScopeNode, parent: int | None) -> None:
        """Draw a scope, those under it, and its own time by phase."""
        children, small = self._parted(node)
        is_one_phase = not children and not small and len(node.phases) == 1
        only_phase = next(iter(node.phases)) if is_one_phase else ""
        colour = f"--phase-{only_phase}" if is_one_phase else ("--tree-root" if parent is None else "--tree-scope")
        name = node.path or f"all of {self._report.step_program or 'the program'}"
        estimated = [f"{percent(node.estimated_s / node.busy_s)} of it split by estimate"] if node.estimated_s else []
        details = [*([only_phase] if is_one_phase else []), *estimated, *self._rate(node.flops, node.busy_s)]
        index = self._append(node.name, parent, node.busy_s, colour, name, details)
        for child in children:
            self.add(child, index)
        if small:
            total_s = sum(child.busy_s for child in small)
            self._append(f"({len(small)} more)", index, total_s, "--tree-scope", f"{node.path}: {len(small)} more", [])
        if not is_one_phase:
            for phase, own_s in self._by_phase(node):
                rate = self._rate(node.phase_flops.get(phase, 0.0), own_s)
                title = f"{name}, {phase}" + (" (itself)" if children else "")
                self._append(phase, index, own_s, f"--phase-{phase}", title, rate)

    def _parted(self, node: ScopeNode) -> tuple[list[ScopeNode], list[ScopeNode]]:
        children = sorted(node.children.values(), key=lambda child: -child.busy_s)
        small = [child for child in children if child.busy_s < self._min_share * self._busy_s]
        return (children, []) if len(small) < 2 else (children[: -len(small)], small)

    def _by_phase(self, node: ScopeNode) -> Iterator[tuple[str, float]]:
        return ((phase, node.own[phase]) for phase in PHASES if node.own.get(phase))

    def _append(self, name: str, parent: int | None, busy_s: float, colour: str, title: str, details: list[str]) -> int:
        share = busy_s / self._busy_s
        each_s = self._report.per_step(busy_s)
        times = [f"{percent(share)} of busy time", *([] if each_s is None else [f"{seconds(each_s)} per step"])]
        self.labels.append(chart_label(name, 40))
        self.parents.append("" if parent is None else str(parent))
        self.values.append(busy_s * 1e6)
        self.shares.append(percent(share))
        self.hovers.append("<br>".join(chart_label(text, 120) for text in (title, *times, *details)))
        self.colours.append(colour)
        self.text_colours.append("--on-phase" if colour.startswith("--phase") else "--text")
        return len(self.labels) - 1

    def _rate(self, flops: float, busy_s: float) -> list[str]:
        each_s = self._report.per_step(busy_s)
        if not flops or not each_s or busy_s < _MIN_RATE_SHARE * self._busy_s:
            return []
        return [with_prefix(flops / self._report.num_devices / each_s, "FLOP/s")]
