"""Charts as plain data for plotly.js, which the page draws in the colors of its theme.

A color is the name of one of the page's CSS variables, such as `--accent`. plotly reads a little HTML in everything it
writes, so that text from a run goes through `chart_label` before it comes near a chart. Text from a run is never part
of a template, where `%{...}` has a meaning.
"""

import html
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trackside.profiling.ledger_totals import CALLBACK, DRAIN, PARTS
from trackside.report.html.markup import Html, element
from trackside.runs.ledger_course import CALLBACKS
from trackside.text import chart_label

Column = list[float | int | None]
"""Numbers for JSON; None for what is not finite."""
MAX_POINTS = 1600
"""Points per line; a screen has about that many columns."""

PALE = 0.7
"""Curves that are less opaque than this are marked as such in the legend."""
LOG_AXIS = {"type": "log", "tickformat": ".6~g"}
"""With a format, ticks between powers of ten have their whole number, and not only its first digit."""

_MAX_MARKED = 100
"""Up to this many points of a line are marked; more would overlap."""
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_LIBRARY_CALLBACKS = (
    "JaxProfiler",
    "MemoryProfiler",
    "ModelCheckpoint",
    "EarlyStopping",
    "LearningRateMonitor",
    "EMA",
    "ProgressBarCallback",
    "JAXProfiler",
)


@dataclass(frozen=True)
class View:
    """One of several ways to look at a chart."""

    title: str
    layout: dict[str, Any] = field(default_factory=dict)
    """What differs in the layout."""
    traces: list[int] | None = None
    """Which traces to show; None for all."""


@dataclass(frozen=True)
class OtherAxis:
    """Another x axis of a chart."""

    title: str
    x: list[Column]
    """For each trace, its x values."""


@dataclass(frozen=True)
class Chart:
    """A chart and the place in the page where it is drawn."""

    id: str
    description: str
    """What it shows, for screen readers."""
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    follows_steps: bool = False
    """Whether its x axis is the steps of the run, so that it zooms together with the other such charts."""
    size: str = "medium"
    """`bar`, `small`, `medium` or `large`; more classes of the style sheet may follow."""
    has_legend: bool = True
    """Whether its traces are named above it."""
    axes: dict[str, OtherAxis] = field(default_factory=dict)
    """What else it can be drawn over, for a switch of the axis."""
    smoothable: list[int] = field(default_factory=list)
    """Which traces the page may smooth."""

    def place(self) -> Html:
        """Where the page draws it."""
        return element(
            "div", id=self.id, class_=f"chart {self.size}", data_chart=True, role="img", aria_label=self.description
        )

    def buttons(self) -> Html | None:
        """Buttons for its views."""
        return view_buttons([self.id], [view.title for view in self.views]) if self.views else None

    def to_dict(self) -> dict[str, Any]:
        """As the page's script reads it."""
        return {
            "traces": self.traces,
            "layout": self.layout,
            "views": [{"layout": view.layout, "traces": view.traces} for view in self.views],
            "followsSteps": self.follows_steps,
            "legend": self._legend() if self.has_legend else [],
            **(
                {"axes": {name: {"title": axis.title, "x": axis.x} for name, axis in self.axes.items()}}
                if self.axes
                else {}
            ),
            **({"smoothable": self.smoothable} if self.smoothable else {}),
        }

    def _legend(self) -> list[dict[str, str]]:
        """Each name once, as text: the page's script writes it as such."""
        named = {trace["name"]: trace for trace in self.traces if trace.get("showlegend", True)}
        return [
            {
                "name": name,
                "text": html.unescape(name),
                "color": trace["marker"]["color"],
                "mark": _legend_mark(trace),
            }
            for name, trace in named.items()
        ]


def _legend_mark(trace: Mapping[str, Any]) -> str:
    """What a trace looks like, as a class of the style sheet: colors alone do not tell all curves apart."""
    if trace.get("mode") == "markers":
        return "dot"
    return "pale" if trace.get("opacity", 1.0) < PALE else "swatch"


def view_buttons(chart_ids: Iterable[str], titles: Sequence[str]) -> Html:
    """Buttons that choose the view of one or several charts; the first is chosen at the beginning."""
    buttons = [
        element("button", title, type="button", data_view=index, aria_pressed="false" if index else "true")
        for index, title in enumerate(titles)
    ]
    return element("div", buttons, class_="segmented", role="group", data_charts=" ".join(chart_ids))


def option_buttons(chart_ids: Iterable[str], option: str, titles: Mapping[str, str]) -> Html:
    """Buttons that set an option of one or several charts; the first is chosen at the beginning.

    Args:
        chart_ids: The charts.
        option: `axis`, as the page's script knows it.
        titles: The title of each value.
    """
    buttons = [
        element(
            "button",
            title,
            type="button",
            data_option=option,
            data_value=value,
            aria_pressed="false" if index else "true",
        )
        for index, (value, title) in enumerate(titles.items())
    ]
    return element("div", buttons, class_="segmented", role="group", data_charts=" ".join(chart_ids))


def smoothing_slider(chart_ids: Iterable[str]) -> Html:
    """A slider for the weight of what came before in the moving average over curves of training; 0 is none."""
    slider = element(
        "input",
        type="range",
        min="0",
        max="0.99",
        step="0.01",
        value="0",
        data_option="smoothing",
        data_charts=" ".join(chart_ids),
    )
    return element("label", "Smoothing ", slider, element("output", "0"), class_="slider")


def numbers(values: Iterable[float]) -> Column:
    """A column for JSON: whole numbers as such, others to six digits, None for what is not finite."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array.tolist()
    return [_short(value) if finite else None for value, finite in zip(array.tolist(), np.isfinite(array), strict=True)]


def _short(value: float) -> float | int:
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def line(x: Iterable[float], y: Iterable[float], name: str, colour: str, **more: Any) -> dict[str, Any]:
    """A line; with points where there are few of them."""
    xs, ys = numbers(x), numbers(y)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(xs) <= _MAX_MARKED else "lines",
        "x": xs,
        "y": ys,
        "name": chart_label(name),
        "line": {"color": colour, "width": 1.6},
        "marker": {"color": colour, "size": 5},
        **more,
    }


def as_interval_means(trace: dict[str, Any]) -> dict[str, Any]:
    """A line or area whose points are means over intervals, drawn as levels.

    Args:
        trace: The trace. The x of each point is the end of its interval, which begins at the point before; the first
            point only marks where the first interval begins.
    """
    return {**trace, "line": {**trace["line"], "shape": "vh"}}


def area(x: Iterable[float], y: Iterable[float], name: str, colour: str, **more: Any) -> dict[str, Any]:
    """One of several areas that are stacked."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numbers(x),
        "y": numbers(y),
        "name": chart_label(name),
        "stackgroup": "parts",
        "line": {"color": colour, "width": 0.5},
        "marker": {"color": colour},
        "fillcolor": colour,
        **more,
    }


def part_classes(parts: Iterable[str]) -> dict[str, str]:
    """The parts of a ledger as names in the style sheet: of their colors (`--name`), and of the classes of bars.

    A part has the same color wherever it is shown. Each callback has its own, as long as there are enough.

    Args:
        parts: All parts of the run, so that the same callbacks get the same colors in every chart of the page.
    """
    classes = {part: _part_class(part) for part in parts}
    callbacks = [part for part in classes if part.startswith(CALLBACK)]
    numbers_taken: set[int] = set()
    for part in sorted(callbacks, key=lambda part: (part.removeprefix(CALLBACK) not in _LIBRARY_CALLBACKS, part)):
        number = _free_number(_callback_number(part.removeprefix(CALLBACK)), numbers_taken)
        numbers_taken.add(number)
        classes[part] = f"callback-{number}"
    return classes


def _part_class(part: str) -> str:
    if part.startswith(DRAIN):
        return "part-drain"
    return f"part-{part.replace('_', '-')}" if part in (*PARTS, CALLBACKS) else "part-other"


def _callback_number(name: str) -> int:
    """Callbacks of the library have different numbers; the others one that depends on their name alone."""
    if name in _LIBRARY_CALLBACKS:
        return _LIBRARY_CALLBACKS.index(name)
    return zlib.crc32(name.encode("utf-8", "replace")) % len(_LIBRARY_CALLBACKS)


def _free_number(wanted: int, taken: set[int]) -> int:
    """The number itself, or the next that no other callback has."""
    total = len(_LIBRARY_CALLBACKS)
    return next((one % total for one in range(wanted, wanted + total) if one % total not in taken), wanted)


def series_colour(index: int) -> str:
    """The color of one of several things that have no color assigned."""
    return f"--series-{index % 8}"


def time_unit(typical_s: float) -> tuple[float, str]:
    """The unit of an axis, as its size in seconds and its name, in which a typical time has few digits."""
    return _unit(typical_s, _TIME_UNITS)


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit of an axis, as its size in bytes and its name, for values up to the largest."""
    return _unit(largest, _BYTE_UNITS)


def _unit(value: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next(((size, name) for size, name in units if value >= size), units[-1])
