"""Charts as plain data for plotly.js, which the page draws in the colours of its theme.

A colour is the name of one of the page's CSS variables, such as `--accent`. plotly reads a little HTML in everything it
writes, so that text from a run goes through `label` before it comes near a chart; and text from a run is never part of
a template, where `%{...}` has a meaning.
"""

import html
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trackside.profiling.ledger import CALLBACK, PARTS
from trackside.report.html.markup import Html, element

MAX_POINTS = 1600
"""Points per line; a screen has about that many columns."""

_MAX_LABEL = 80
_MAX_MARKED = 100
"""Up to this many points of a line are marked; more would overlap."""
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
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
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def label(text: object, max_length: int = _MAX_LABEL) -> str:
    """Text from a run as plotly shows it literally, on one line."""
    shown = " ".join(str(text).encode("utf-8", "replace").decode("utf-8").split())
    if len(shown) > max_length:
        shown = shown[: max_length - 1] + "…"
    return shown.translate(_ESCAPES)


@dataclass(frozen=True)
class View:
    """One of several ways to look at a chart."""

    title: str
    layout: dict[str, Any] = field(default_factory=dict)
    """What differs in the layout."""
    traces: list[int] | None = None
    """Which traces to show; None for all."""


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
    """`bar`, `small`, `medium` or `large`."""
    has_legend: bool = True
    """Whether its traces are named above it."""
    elapsed: list[list[float | int | None]] = field(default_factory=list)
    """For each trace, its x values as time since the start, for a switch of the axis; empty without one."""
    elapsed_title: str = ""
    """The title of the axis then."""
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
            **({"elapsed": self.elapsed, "elapsedTitle": self.elapsed_title} if self.elapsed else {}),
            **({"smoothable": self.smoothable} if self.smoothable else {}),
        }

    def _legend(self) -> list[dict[str, str]]:
        """Each name once, as text: the page's script writes it as such."""
        named = [trace for trace in self.traces if trace.get("showlegend", True)]
        colours = {trace["name"]: trace["marker"]["color"] for trace in named}
        return [{"name": name, "text": html.unescape(name), "color": colour} for name, colour in colours.items()]


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
        option: `axis` or `smoothing`, as the page's script knows it.
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


def numbers(values: Iterable[float]) -> list[float | int | None]:
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
        "name": label(name),
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
        "name": label(name),
        "stackgroup": "parts",
        "line": {"color": colour, "width": 0.5},
        "marker": {"color": colour},
        "fillcolor": colour,
        **more,
    }


def part_colour(part: str) -> str:
    """The colour of a part of the ledger, the same wherever it is shown."""
    return f"--{part_class(part)}"


def part_class(part: str) -> str:
    """A part of the ledger as a name in the style sheet: of its colour, and of the class of a bar."""
    if part.startswith(CALLBACK):
        return f"callback-{_callback_number(part.removeprefix(CALLBACK))}"
    if part == "callbacks":
        return "part-callbacks"
    return f"part-{part.replace('_', '-')}" if part in PARTS else "part-other"


def _callback_number(name: str) -> int:
    """Callbacks of the library have different colours; the others one that depends on their name alone."""
    if name in _LIBRARY_CALLBACKS:
        return _LIBRARY_CALLBACKS.index(name)
    return zlib.crc32(name.encode("utf-8", "replace")) % len(_LIBRARY_CALLBACKS)


def series_colour(index: int) -> str:
    """The colour of one of several things that have no colour assigned."""
    return f"--series-{index % 8}"


def time_unit(typical_s: float) -> tuple[float, str]:
    """The unit of an axis, as its size in seconds and its name, in which a typical time has few digits."""
    return _unit(typical_s, _TIME_UNITS)


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit of an axis, as its size in bytes and its name, for values up to the largest."""
    return _unit(largest, _BYTE_UNITS)


def _unit(value: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next(((size, name) for size, name in units if value >= size), units[-1])
