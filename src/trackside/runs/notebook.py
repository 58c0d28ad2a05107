"""How runs and tables show themselves in a notebook: HTML and SVG without scripts, styles or anything to load.

So it looks the same in every program that shows notebooks, also in one that runs no scripts. Everything that comes from
a run is escaped. Colors are chosen to be legible on white and on black.
"""

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trackside.findings import Finding
from trackside.findings.silencing import silenced_text
from trackside.profiling.ledger_text import part_name
from trackside.runs.best_metric import BestMetric, best_metric
from trackside.runs.downsample import spike_indices
from trackside.runs.metric_curves import Curve, curves_by_metric, is_flattened
from trackside.runs.status_words import read_status
from trackside.text import count, duration, four_digits, head, moment, percent, percent_of_peak, seconds

if TYPE_CHECKING:
    from trackside.runs.run import Run

_COLOURS = ("#5b8def", "#ef8a48", "#44a08d", "#b391e6", "#d4679a", "#8e9cad", "#c9a227", "#a4714c")
_TONES = {"good": "#2a9d7f", "live": "#5b8def", "fair": "#c98a1f", "bad": "#e0564a"}
_SEVERITIES = {"severe": "#e0564a", "warning": "#c98a1f"}
_SOFT = "opacity:0.7;"
_CHART_WIDTH, _CHART_HEIGHT = 640, 150
_MAX_POINTS = 300
_MAX_CURVES = 4
_MAX_PARTS = 8
_MAX_FINDINGS = 5
_MIN_SHARE = 0.005


def html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table.

    Args:
        names: Of the columns.
        rows: Their cells, as text.
    """
    titles = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def html_run(run: "Run") -> str:
    """A run at a glance: how it stands, its figures, its losses, where its time went, and the findings.

    Args:
        run: The run.
    """
    best = best_metric(run)
    sections = [
        _heading(run),
        _figures(run, best),
        _metric_chart(run, best),
        _ledger(run),
        _findings(run.findings),
        _silenced(run.silenced_findings),
        _list(run.problems),
    ]
    return f'<div style="max-width:{_CHART_WIDTH + 40}px">{"".join(sections)}</div>'


def _heading(run: "Run") -> str:
    status = read_status(run)
    when = f"{moment(run.started_at)}, {duration(run.ended_at - run.started_at)}" if run.started_at else ""
    return (
        f'<div style="font-size:1.15em"><b>{html.escape(run.name)}</b> '
        f'<b style="color:{_TONES[status.tone]}">{html.escape(status.text)}</b></div>'
        f'<div style="{_SOFT}">{html.escape(when)}</div>'
    )


def _figures(run: "Run", best: BestMetric | None) -> str:
    goal = f" of {run.goal:,}" if run.goal and run.goal != run.step else ""
    figures = [("steps", f"{run.step:,}{goal}, {count(run.epoch, 'epoch')}")]
    if best is not None:
        last = "not finite" if best.last is None else four_digits(best.last)
        figures.append((f"best {best.label}", f"{four_digits(best.value)} at step {best.step:,}; last {last}"))
    step_s = run.step_times.median_s
    if step_s is not None:
        figures.append(("step time", f"{seconds(step_s)} (median of clean steps)"))
    if run.time_to_first_step is not None:
        figures.append(("time to first step", run.time_to_first_step.text))
    if run.goodput is not None:
        figures.append(("goodput", percent(run.goodput)))
    if run.mfu is not None:
        figures.append(("FLOPs utilization", percent_of_peak(run.mfu, run.mfu_range)))
    return html_table([], figures)


def _metric_chart(run: "Run", best: BestMetric | None) -> str:
    """The curves of the metric by which the run is judged, without axes but with their ends."""
    groups = curves_by_metric(run.metrics)
    judged = None if best is None else (best.mode, best.name)
    own = (curves for curves in groups.values() if any((one.mode, one.name) == judged for one in curves))
    curves = next(own, next(iter(groups.values()), []))
    shown = [curve for curve in curves if curve.stage != "test" and not curve.name.endswith(("_max", "_single"))]
    return _line_chart(run, shown[:_MAX_CURVES]) if shown else ""


def _line_chart(run: "Run", curves: Sequence[Curve]) -> str:
    points = [_points(run, curve) for curve in curves]
    drawn = [(curve, steps, values) for curve, (steps, values) in zip(curves, points, strict=True) if len(values) > 1]
    if not drawn:
        return ""
    is_log = is_flattened(np.concatenate([values for _, _, values in drawn]))
    scale = np.log if is_log else np.asarray
    low, high = (float(end([end(values) for _, _, values in drawn])) for end in (min, max))
    top, bottom = float(scale(high)), float(scale(low))
    last = max(int(steps[-1]) for _, steps, _ in drawn)
    lines, keys = [], []
    for (curve, steps, values), colour in zip(drawn, _COLOURS, strict=False):
        xs = _CHART_WIDTH * steps / max(last, 1)
        ys = 4 + (_CHART_HEIGHT - 8) * (top - scale(values)) / ((top - bottom) or 1.0)
        path = _path(xs.tolist(), ys.tolist(), is_levels=curve.covers_interval)
        lines.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        keys.append(_key(colour, f"{head(curve.title, 40)}: {four_digits(float(values[-1]))}"))
    box = f'viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" width="{_CHART_WIDTH}" height="{_CHART_HEIGHT}"'
    legend = " &emsp;".join(keys)
    span = f"{four_digits(low)} to {four_digits(high)}{', logarithmic,' if is_log else ''} over {last:,} steps"
    return (
        f"<div><b>{html.escape(head(drawn[0][0].base, 60))}</b>&emsp;{legend}</div>"
        f'<svg {box} style="max-width:100%;display:block" role="img">{"".join(lines)}</svg>'
        f'<div style="{_SOFT}">{span}</div>'
    )


def _path(xs: list[float], ys: list[float], is_levels: bool) -> str:
    """A line, or the levels of means, each of which ends at its own x."""
    join = "V{1:.1f}H{0:.1f}" if is_levels else "L{0:.1f} {1:.1f}"
    return f"M{xs[0]:.1f} {ys[0]:.1f}" + "".join(join.format(x, y) for x, y in zip(xs[1:], ys[1:], strict=True))


def _points(run: "Run", curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    table = run.metrics[curve.mode]
    present = table.present(curve.name)
    kept = present[spike_indices(table[curve.name][present], _MAX_POINTS)]
    finite = kept[np.isfinite(table[curve.name][kept])]
    return table.step[finite], table[curve.name][finite]


def _ledger(run: "Run") -> str:
    """Where the time went: one bar, and what its pieces are."""
    ledger = run.ledger
    if ledger is None or ledger.wall_s <= 0:
        return ""
    shares = sorted(((ledger.share(part), part) for part in ledger.parts), reverse=True)
    shown = [(share, part_name(part)) for share, part in shares if share >= _MIN_SHARE][:_MAX_PARTS]
    pieces, keys, left = [], [], 0.0
    for (share, name), colour in zip(shown, _COLOURS, strict=False):
        pieces.append(f'<rect x="{left:.2f}" y="0" width="{100 * share:.2f}" height="12" fill="{colour}"/>')
        keys.append(_key(colour, f"{name} {percent(share)}"))
        left += 100 * share
    box = 'viewBox="0 0 100 12" preserveAspectRatio="none"'
    return (
        f'<div style="margin-top:8px"><b>where the time went</b>&emsp;{seconds(ledger.wall_s)}</div>'
        f'<svg {box} width="{_CHART_WIDTH}" height="12" style="max-width:100%;display:block" role="img">'
        f"{''.join(pieces)}</svg><div>{' &emsp;'.join(keys)}</div>"
    )


def _key(colour: str, text: str) -> str:
    """A name of the legend, with its color in front."""
    return f'<span style="white-space:nowrap"><span style="color:{colour}">&#9632;</span> {html.escape(text)}</span>'


def _findings(findings: Sequence[Finding]) -> str:
    entries = [
        f'<li><b style="color:{_SEVERITIES.get(one.severity, _COLOURS[0])}">{html.escape(one.severity)}</b> '
        f"{html.escape(one.message)}</li>"
        for one in findings[:_MAX_FINDINGS]
    ]
    rest = len(findings) - len(entries)
    more = [f"<li>and {rest} more</li>"] if rest > 0 else []
    return f'<ul style="margin-top:8px">{"".join([*entries, *more])}</ul>' if entries else ""


def _silenced(findings: Sequence[Finding]) -> str:
    return f'<p style="{_SOFT}">{html.escape(silenced_text(findings))}</p>' if findings else ""


def _list(entries: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(entry)}</li>' for entry in entries)}</ul>" if entries else ""
