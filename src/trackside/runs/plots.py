"""Figures of a run for a notebook: metrics, step time and ledger, drawn by plotly.

plotly is imported when a figure is made. A figure shows itself where it is the last line of a cell; `figure.show()` and
`figure.write_html(...)` are plotly's own.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trackside.errors import ConfigError
from trackside.profiling.ledger_text import part_name
from trackside.runs.best_metric import best_metric
from trackside.runs.downsample import spike_indices
from trackside.runs.ledger_course import LedgerCourse
from trackside.runs.metric_curves import Curve, curves_by_metric, find_curves, is_flattened
from trackside.runs.run_axes import time_unit_of
from trackside.runs.step_time_levels import clean_levels
from trackside.text import chart_label

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trackside.runs.run import Run

Axis = Literal["step", "time", "examples"]
_AXES = ("step", "time", "examples")
_DASHES = ("solid", "dot", "dash", "longdash", "dashdot")
_MAX_MARKED = 100
"""Up to this many points of a line are marked; more would overlap."""
_MAX_INTERVALS = 400
_MAX_POINTS = 5000
"""Points per line: a notebook keeps all of them in its file."""
_HEIGHT_PX = 420


class Plots:
    """Makes the figures of a run: `run.plot("loss")`, `run.plot.step_time()`, `run.plot.ledger()`.

    Args:
        run: The run.
    """

    def __init__(self, run: "Run"):
        self._run = run

    def __call__(
        self,
        *names: str,
        x: Axis = "step",
        smooth: float = 0.0,
        log: bool | None = None,
        others: "Run | Iterable[Run]" = (),
    ) -> "Figure":
        """Draw metrics.

        A mean over the steps since the last log row is drawn as a level, other values as points on a line. Of a long
        series, the smallest and largest value of each stretch are drawn.

        Args:
            *names: The metrics: `loss` is training and validation, `val/loss` or `val_loss` one of them, `loss_max` a
                column as it was logged. By default the metric by which the run is judged, mostly the loss.
            x: `step`; `time`: since the start of each run, without pauses between legs; `examples`: trained on so far.
            smooth: From 0 (not at all) to below 1: the weight of what came before in a moving average over the curves
                of training, which are drawn over the logged values.
            log: Whether the values have a logarithmic axis. By default they have one where the first rows would flatten
                all others.
            others: Runs to draw in the same figure. One that lacks a metric is left out of its curves.

        Returns:
            A figure of plotly.

        Raises:
            ConfigError: The run has no such metric, or `x` or `smooth` is none of these.
        """
        if not 0.0 <= smooth < 1.0:
            raise ConfigError(f"smooth: expected a number from 0 to below 1, such as 0.9; got {smooth!r}")
        runs = _with_others(self._run, others)
        axis = _RunsAxis(runs, x)
        named = names or (self._judged(),)
        traces = []
        for index, (run, title) in enumerate(zip(runs, _titles(runs), strict=True)):
            curves = _found(run, named, is_first=run is self._run)
            for number, curve in enumerate(curves):
                style = _style(index if len(runs) > 1 else number, number if len(runs) > 1 else 0)
                label = " ".join(part for part in (title, *_curve_names(curve, named)) if part)
                found = _curve_traces(run, curve, axis, smooth)
                traces += [_merged(trace, style, chart_label(label)) for trace in found]
        is_log = is_flattened(np.concatenate([trace["y"] for trace in traces])) if log is None else log
        figure = _figure(axis.title, chart_label(named[0]) if len(named) == 1 else "", is_log=is_log)
        for trace in traces:
            figure.add_scatter(**trace)
        return figure

    def step_time(self, *, x: Axis = "step", log: bool = False, others: "Run | Iterable[Run]" = ()) -> "Figure":
        """Draw how long steps took, each level the mean between two log rows.

        Warm-up and intervals with a compile, a capture, a validation or a checkpoint are left out.

        Args:
            x: As for metrics.
            log: Whether the times have a logarithmic axis.
            others: Runs to draw in the same figure.

        Returns:
            A figure of plotly.

        Raises:
            ConfigError: `x` is none of these, or no clean step was timed.
        """
        runs = _with_others(self._run, others)
        if not any(run.step_times.clean.any() for run in runs):
            raise ConfigError(
                f"step_time: {self._run.name} has no undisturbed step time; log more often with "
                "LoggerConfig(log_every_n_steps=...), or train for longer"
            )
        axis = _RunsAxis(runs, x)
        figure = _figure(axis.title, "ms per step", is_log=log, rangemode=None if log else "tozero")
        for index, (run, title) in enumerate(zip(runs, _titles(runs), strict=True)):
            steps, levels_s = clean_levels(run.step_times)
            drawn = _thinned(axis.of_steps(run, steps), 1e3 * levels_s)
            trace = {**drawn, "mode": "lines", "line": {"shape": "vh"}}
            figure.add_scatter(**_merged(trace, _style(index, 0), chart_label(title or "undisturbed steps")))
        return figure

    def ledger(self) -> "Figure":
        """Draw where the time of the training thread went over the run, as shares that add up to 100 %.

        Returns:
            A figure of plotly.

        Raises:
            ConfigError: The run has no two rows of where the time went.
        """
        course = LedgerCourse.of(self._run.metrics.get("time"))
        if course is None:
            raise ConfigError(
                f"ledger: {self._run.name} has no two rows of where its time went; a training with a folder writes "
                "one with each log row"
            )
        ends, shares = course.shares(_MAX_INTERVALS)
        steps, levels = np.insert(ends, 0, course.first_step), np.insert(shares, 0, shares[0], axis=0)
        figure = _figure("step", "share of the time", range=[0, 100], ticksuffix=" %")
        # Many names: they stand next to the chart, in the order of its areas.
        at_the_side = {"orientation": "v", "yanchor": "top", "y": 1.0, "traceorder": "reversed"}
        figure.update_layout(hovermode="x unified", legend=at_the_side)
        for column, part in enumerate(course.parts):
            figure.add_scatter(
                x=steps,
                y=levels[:, column],
                name=chart_label(part_name(part)),
                mode="lines",
                stackgroup="parts",
                line={"shape": "vh", "width": 0.5},
                hovertemplate="%{y:.1f} %<extra>%{fullData.name}</extra>",
            )
        return figure

    def __repr__(self) -> str:
        names = ", ".join(map(repr, curves_by_metric(self._run.metrics))) or "none"
        return f"Plots({self._run.name!r}): run.plot(name) for {names}; run.plot.step_time(), run.plot.ledger()"

    def _judged(self) -> str:
        groups = curves_by_metric(self._run.metrics)
        if not groups:
            raise ConfigError(f"name: {self._run.name} has logged no metric that could be drawn")
        best = best_metric(self._run)
        judged = None if best is None else (best.mode, best.name)
        own = (base for base, curves in groups.items() for one in curves if (one.mode, one.name) == judged)
        return next(own, next(iter(groups)))


class _RunsAxis:
    """The x axis of a figure: what it is called, and where each row of a run is on it."""

    def __init__(self, runs: Sequence["Run"], x: str):
        if x not in _AXES:
            from trackside.config.wording import did_you_mean

            raise ConfigError(f"x: expected {', '.join(map(repr, _AXES))}; got {x!r}.{did_you_mean(x, _AXES)}")
        uncounted = [run.name for run in runs if not run.axes.counts_examples]
        if x == "examples" and uncounted:
            raise ConfigError(f"x: {uncounted[0]} did not count its examples; use x='step' or x='time'")
        self._x = x
        ends_s = [float(run.axes.elapsed_s(np.array([run.ended_at]))[0]) for run in runs]
        self._unit_s, unit = time_unit_of(max(ends_s))
        self.title = {"step": "step", "time": f"{unit} since the start", "examples": "examples"}[x]

    def of(self, run: "Run", steps: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Where rows are, given their steps and moments."""
        if self._x == "time":
            return run.axes.elapsed_s(t) / self._unit_s
        return run.axes.examples(steps) if self._x == "examples" else steps

    def of_steps(self, run: "Run", steps: np.ndarray) -> np.ndarray:
        """Where the beginnings and ends of step times are. A row of training says when each of its steps was over."""
        table = run.metrics["train"]
        return self.of(run, steps, np.interp(steps, table.step, table.t))


def _with_others(run: "Run", others: "Run | Iterable[Run]") -> list["Run"]:
    return [run, *(others if isinstance(others, Iterable) else [others])]


def _titles(runs: Sequence["Run"]) -> list[str]:
    """What tells the runs apart: nothing for one, their names, or their paths where two are called the same."""
    if len(runs) == 1:
        return [""]
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _found(run: "Run", names: Sequence[str], is_first: bool) -> list[Curve]:
    """The curves of a run. The first must have each metric; of others it may be missing."""
    found: dict[Curve, None] = {}
    for name in names:
        try:
            found.update(dict.fromkeys(find_curves(run.metrics, name)))
        except ConfigError:
            if is_first:
                raise
    return list(found)


def _curve_names(curve: Curve, names: Sequence[str]) -> list[str]:
    return [curve.title] if len(names) == 1 else [curve.base, curve.title]


def _curve_traces(run: "Run", curve: Curve, axis: _RunsAxis, smooth: float) -> list[dict[str, Any]]:
    """The logged values, and over those of training a smoothed curve if one was asked for."""
    table = run.metrics[curve.mode]
    kept = table.present(curve.name)
    values, x = table[curve.name][kept], axis.of(run, table.step[kept], table.t[kept])
    logged: dict[str, Any] = {**_thinned(x, values), "mode": "lines"}
    if len(kept) <= _MAX_MARKED:
        logged["mode"] = "lines+markers"
    if curve.covers_interval:
        logged["line"] = {"shape": "vh"}
    if not smooth or curve.mode != "train":
        return [logged]
    over = {**_thinned(x, smoothed(values, smooth)), "mode": "lines"}
    return [{**logged, "mode": "lines", "opacity": 0.3, "showlegend": False, "hoverinfo": "skip"}, over]


def _thinned(x: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    """The points to draw of a long series: of each stretch the smallest and the largest."""
    kept = spike_indices(values, _MAX_POINTS)
    return {"x": x[kept], "y": values[kept]}


def smoothed(values: np.ndarray, weight: float) -> np.ndarray:
    """An exponential moving average without the pull of its first value; what is not finite stays a gap.

    Args:
        values: The series.
        weight: From 0 to below 1, the weight of what came before.
    """
    total, weights, means = 0.0, 0.0, np.full(len(values), np.nan)
    for index, value in enumerate(values.tolist()):
        if np.isfinite(value):
            total, weights = weight * total + value, weight * weights + 1.0
            means[index] = total / weights
    return means


def _style(colour: int, dash: int) -> dict[str, Any]:
    return {"colour": colour, "dash": _DASHES[dash % len(_DASHES)]}


def _merged(trace: dict[str, Any], style: dict[str, Any], name: str) -> dict[str, Any]:
    """The trace with its name, in the colors of plotly's template: traces of one name are hidden together."""
    from plotly.colors import qualitative

    palette = qualitative.Plotly
    line = {"color": palette[style["colour"] % len(palette)], "dash": style["dash"], **trace.get("line", {})}
    return {**trace, "line": line, "name": name, "legendgroup": name}


def _figure(x_title: str, y_title: str, is_log: bool = False, **y_axis: Any) -> "Figure":
    from plotly.graph_objects import Figure

    figure = Figure()
    figure.update_layout(
        height=_HEIGHT_PX,
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
        hovermode="closest",
        showlegend=True,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0},
    )
    figure.update_xaxes(title_text=x_title)
    given = {name: value for name, value in y_axis.items() if value}
    scale = {"type": "log", "tickformat": ".6~g"} if is_log else {"type": "linear"}
    figure.update_yaxes(title_text=y_title, **scale, **given)
    return figure
