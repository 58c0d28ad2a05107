"""What captures say of the device's time: by scope and phase, source line, kind and operation."""

from collections.abc import Sequence
from pathlib import Path, PurePath

from trackside.report.html import scope_list, scope_tree
from trackside.report.html.charts import Chart
from trackside.report.html.markup import (
    Cell,
    Child,
    Column,
    Html,
    code,
    element,
    joined,
    missing,
    path_text,
    share_bar,
    table,
    term,
)
from trackside.report.html.section import Section, panel
from trackside.runs import Run
from trackside.text import count, percent, percent_of_peak, seconds, with_prefix
from trackside.trace.capture_row import CaptureRow, analysed_captures
from trackside.trace.rates import step_rate
from trackside.trace.tables import OpRow
from trackside.trace.trace_report import TraceReport

_MAX_CAPTURES = 5
_MAX_ROWS = 25

_PHASES = {
    "forward": "The loss and what leads to it.",
    "backward": "Its gradient.",
    "recompute": "What jax.checkpoint computes again in the backward pass.",
    "optimizer": "The update of the parameters.",
    "other": "Metrics, gradient synchronization, copies, and what the compiler made up without a name.",
}


def build(run: Run) -> Section:
    """The section: the newest captures, one shown at a time."""
    captures = analysed_captures(run.captures)[-_MAX_CAPTURES:][::-1]
    failed = [capture for capture in run.captures if capture.error]
    if not captures:
        text = "No capture yet. Take one with "
        how = code("TrainerConfig(callbacks=[JaxProfilerConfig(profile_first_step=10, profile_n_steps=10)])")
        return Section("profile", "Profile", _failures(failed), missing=[joined(text, how, ".")])
    charts = [scope_tree.scope_chart(report, f"scopes-{index}") for index, (_, report) in enumerate(captures)]
    shown = [
        _capture(capture, report, chart, index, run.path)
        for index, ((capture, report), chart) in enumerate(zip(captures, charts, strict=True))
    ]
    lead = f"{count(len(run.captures), 'capture')} of a few steps, analyzed by the scopes of your program."
    return Section(
        "profile", "Profile", [_tabs([capture for capture, _ in captures]), shown, _failures(failed)], lead, charts
    )


def _tabs(captures: Sequence[CaptureRow]) -> Html | None:
    if len(captures) == 1:
        return None
    buttons = [
        element(
            "button",
            f"Steps {capture.first_step:,} to {capture.last_step:,}",
            type="button",
            data_panel=f"capture-{index}",
            aria_pressed="false" if index else "true",
        )
        for index, capture in enumerate(captures)
    ]
    return element("div", buttons, class_="segmented tabs", role="group", aria_label="capture")


def _capture(capture: CaptureRow, report: TraceReport, chart: Chart, index: int, run_path: Path) -> Html:
    content = [
        _figures(capture, report, run_path),
        panel(
            "Device time by scope and phase",
            scope_list.scope_list(report),
            _legend(report),
            chart=chart,
            note=element("span", "Click a scope to open it, and the bar above to go back.", class_="wide-only"),
        ),
        element(
            "div", panel("Source lines", _source_table(report)), panel("By kind", _kind_table(report)), class_="pair"
        ),
        panel("Top operations", _op_table(report)),
        _collectives(report),
    ]
    return element("div", content, id=f"capture-{index}", class_="capture", hidden=index > 0)


def _figures(capture: CaptureRow, report: TraceReport, run_path: Path) -> Html:
    time, coverage, rate = report.step_time, report.coverage, step_rate(report)
    figures: list[tuple[Child, str]] = [("steps", f"{capture.first_step:,} to {capture.last_step:,}")]
    figures.append(("why", capture.reason or "requested"))
    if report.window_s is not None:
        explanation = "From the start of the first step to the end of the last."
        figures.append((term("window", explanation), seconds(report.window_s)))
    if time is not None:
        explanation = (
            "From the start of a step to the start of the next, so the last step of the window has none. Tracing makes "
            "steps slower: the section on the step time has those of the run."
        )
        shown = f"mean {seconds(time.mean_s)}, median {seconds(time.median_s)}"
        figures.append((term("step time", explanation), shown))
    if report.device_busy is not None:
        explanation = "Of the window; the time of all scopes together, per step. The rest of the window it was idle."
        per_step = report.per_step(coverage.busy_s)
        more = "" if per_step is None else f", {seconds(per_step)} per step"
        figures.append((term("device busy", explanation), f"{percent(report.device_busy)}{more}"))
    if rate is not None:
        explanation = "Matrix products and convolutions of a step, over the step time."
        figures.append((term("achieved", explanation), with_prefix(rate, "FLOP/s")))
    if capture.utilisation is not None:
        figures.append(("of the peak", percent_of_peak(capture.utilisation, capture.utilisation_range)))
    if coverage.resolved_share is not None:
        explanation = "The share of busy time whose operations say where they come from."
        figures.append((term("attributed", explanation), percent(coverage.resolved_share)))
    if coverage.estimated_share:
        explanation = "One kernel computes for several scopes or phases; its time is split by what its parts cost."
        figures.append((term("split by estimate", explanation), percent(coverage.estimated_share)))
    if coverage.unsplit_share:
        explanation = "Fused kernels of which the capture does not say what their parts cost."
        figures.append((term("not split", explanation), percent(coverage.unsplit_share)))
    listed = [element("div", element("dt", name), element("dd", value)) for name, value in figures]
    path = element("p", "The capture is in ", code(_short_path(capture.path, run_path)), class_="note")
    notes = [element("li", note) for note in capture.notes]
    shown_notes = element("ul", notes, class_="note") if notes else None
    return element("div", element("dl", listed, class_="evidence"), shown_notes, path, class_="panel slim")


def _short_path(path: str, run_path: Path) -> str:
    """The path within the run, which is where the report is; in full if it is elsewhere."""
    try:
        return str(PurePath(path).relative_to(run_path.absolute()))
    except ValueError:
        return path


def _legend(report: TraceReport) -> Html:
    entries = [
        element(
            "span",
            element("i", class_=f"swatch back-phase-{phase}"),
            term(phase, _PHASES[phase]),
            " ",
            percent(report.phases[phase] / report.coverage.busy_s),
        )
        for phase in scope_tree.phases_of(report)
    ]
    return element("p", entries, class_="legend")


def _times(
    report: TraceReport,
    busy_s: float,
    share: float,
    largest: float,
    colour: str = "accent",
    *,
    is_estimated: bool = False,
) -> list[Child | Cell]:
    """The cells of a time: per step, as a share, and as a bar."""
    each_s = report.per_step(busy_s)
    return [
        Cell("" if each_s is None else seconds(each_s), busy_s),
        Cell(f"{'~' if is_estimated else ''}{100 * share:.1f} %", share),
        Cell(share_bar(share / largest if largest else 0.0, colour), share),
    ]


def _time_columns() -> list[Column]:
    return [
        Column("per step", is_number=True, explanation="Device time per step and device."),
        Column("share", is_number=True, explanation="Of the time in which the device was busy."),
        Column("", is_minor=True),
    ]


def _source_table(report: TraceReport) -> Html:
    rows = report.sources.rows
    if not rows:
        return missing("No operation says which source line it comes from.")
    largest = rows[0].share
    columns = [Column("line", is_code=True), Column("function", is_code=True, is_minor=True), *_time_columns()]
    cells = [
        [
            Cell(_source(row.file, row.line), f"{row.file}:{row.line}"),
            row.function,
            *_times(report, row.busy_s, row.share, largest, is_estimated=row.estimated_s > 0),
        ]
        for row in rows[:_MAX_ROWS]
    ]
    return element("div", table(columns, cells, "Device time by source line"), _more(len(rows)), _estimate_note(report))


def _estimate_note(report: TraceReport) -> Html | None:
    if not report.sources.coverage.estimated_s:
        return None
    return element("p", "~ includes parts of kernels that compute for several lines, by estimate.", class_="note")


def _op_table(report: TraceReport) -> Html:
    rows = report.ops.rows
    largest = rows[0].share if rows else 0.0
    columns = [
        Column("operation", is_code=True),
        Column("kind", is_minor=True),
        Column("scope", is_code=True, is_minor=True),
        Column("phase", is_minor=True),
        *_time_columns(),
    ]
    cells = [
        [
            row.op,
            row.category,
            _scope_cell(row),
            row.phase,
            *_times(report, row.busy_s, row.share, largest, f"phase-{row.phase}"),
        ]
        for row in rows[:_MAX_ROWS]
    ]
    return element("div", table(columns, cells, "Device time by operation"), _more(len(rows)))


def _scope_cell(row: OpRow) -> Html:
    """The scope that an operation is named after, and how many more it computes for."""
    if row.num_scopes < 2:
        return path_text(row.scope)
    return joined(path_text(row.scope), f" and {count(row.num_scopes - 1, 'more scope')}")


def _kind_table(report: TraceReport) -> Html:
    rows = report.categories.rows
    largest = rows[0].share if rows else 0.0
    cells = [[row.category, *_times(report, row.busy_s, row.share, largest)] for row in rows]
    return table([Column("kind"), *_time_columns()], cells, "Device time by kind of operation")


def _collectives(report: TraceReport) -> Html | None:
    rows = report.collectives.rows
    if not rows:
        return None
    largest = rows[0].share
    columns = [
        Column("operation", is_code=True),
        Column("kind"),
        Column("scope", is_code=True, is_minor=True),
        *_time_columns(),
    ]
    cells = [
        [row.op, row.opcode, path_text(row.scope), *_times(report, row.busy_s, row.share, largest)]
        for row in rows[:_MAX_ROWS]
    ]
    return panel("Communication between devices", table(columns, cells, "Collectives"), _more(len(rows)))


def _more(num_rows: int) -> Html | None:
    if num_rows <= _MAX_ROWS:
        return None
    return element(
        "p", f"The {_MAX_ROWS} largest of {num_rows:,}; ", code("trackside trace"), " has all.", class_="note"
    )


def _source(file: str, line: int) -> Html:
    """A line of source by the end of its path; all of it is shown when it is pointed at."""
    tail = "/".join(PurePath(file).parts[-2:])
    return element("span", f"{tail}:{line}", title=f"{file}:{line}")


def _failures(failed: Sequence[CaptureRow]) -> Html | None:
    if not failed:
        return None
    items = [element("li", f"Steps {capture.first_step} to {capture.last_step}: {capture.error}") for capture in failed]
    return panel("Captures that failed", element("ul", items))
