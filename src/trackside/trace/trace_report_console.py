"""A trace report for the console, within 80 columns."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trackside.text import count, head, num_bytes, seconds, tail, with_prefix
from trackside.trace.rates import rate_under, step_rate
from trackside.trace.rollup import RolledScope, roll_up
from trackside.trace.scopes import PHASES
from trackside.trace.tables import NO_SCOPE
from trackside.trace.trace_report import TraceReport

_NUM_OPS = 8
_NUM_SCOPES = 12
_MIN_NAME_WIDTH = 16
_SHORT = {"recompute": "recomp.", "optimizer": "optim."}


def render_report(report: TraceReport, width: int = 80) -> RenderableType:
    """What the console shows of a report: figures, top scopes by phase, top operations, coverage and file.

    Args:
        report: The report.
        width: The columns that it may take.
    """
    parts: list[RenderableType] = [_figures(report)]
    if report.coverage.busy_s:
        parts += [Text(), _scope_table(report, width), Text(), _op_table(report, width)]
    parts += [Text(), *_notes(report)]
    return Group(*parts)


def _figures(report: TraceReport) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in _figure_rows(report):
        grid.add_row(Text(name, style="bold"), Text(value))
    return grid


def _figure_rows(report: TraceReport) -> Iterable[tuple[str, str]]:
    steps = "" if report.num_steps is None else f", {count(report.num_steps, 'step')}"
    length = "" if report.window_s is None else f" in {seconds(report.window_s)}"
    devices = count(report.num_devices, "device")
    yield "Window", f"{report.step_program or 'unknown program'}{steps}{length} on {devices}"
    if report.step_time is None:
        yield "Step time", "not known: fewer than two executions"
    else:
        time = report.step_time
        # From start to start, so the last step of the window has none: their sum is not the window.
        of = f"of {count(time.num_intervals, 'interval')} from start to start"
        figures = f"mean {seconds(time.mean_s)}, median {seconds(time.median_s)}, p95 {seconds(time.p95_s)}"
        yield "Step time", f"{figures}, {of}"
    if report.device_busy is None or report.window_s is None:
        yield "Device busy", "not known"
    else:
        between, inside = (seconds(row.total_s / report.num_devices) for row in report.gaps.rows)
        busy = seconds(report.device_busy * report.window_s)
        yield "Device busy", f"{_percent(report.device_busy)} of the window: {busy}; idle {_idle(between, inside)}"
    gap = next(iter(report.gaps.largest), None)
    if gap is not None:
        doing = f", host: {gap.host_activity}" if gap.host_activity else ""
        yield "Largest gap", f"{seconds(gap.duration_s)} {gap.kind}{doing}"
    rate = step_rate(report)
    if report.flops is not None and rate is not None:
        bound = "at least " if report.flops.is_lower_bound else ""
        yield "FLOPs", f"{bound}{with_prefix(report.flops.flops, 'FLOP')} per step, {with_prefix(rate, 'FLOP/s')}"
    memory = report.peak_memory
    if memory is not None and memory.peak_temporary_bytes is not None:
        where = f" in {'/'.join(memory.peak_scope)}" if memory.peak_scope else ""
        held = f"{num_bytes(memory.peak_temporary_bytes)} of temporaries{where} ({memory.peak_phase})"
        yield "Peak memory", f"{held}, arguments {num_bytes(memory.parameter_bytes)}"
    yield "Coverage", _coverage_text(report)


def _idle(between: str, inside: str) -> str:
    return f"{between} between executions, {inside} inside of them"


def _coverage_text(report: TraceReport) -> str:
    coverage = report.coverage
    if coverage.resolved_share is None or coverage.scoped_share is None:
        return "no busy time to account for"
    unattributed = coverage.unattributed_s / coverage.busy_s
    estimated = f" ({_percent(coverage.estimated_share or 0.0)} split by estimate)" if coverage.estimated_s else ""
    unsplit = f"{_percent(coverage.unsplit_share or 0.0)} in fused kernels that cannot be split, "
    return (
        f"{_percent(coverage.resolved_share)} of busy time resolved{estimated}, {_percent(coverage.scoped_share)} "
        f"under a scope, {unsplit if coverage.unsplit_s else ''}{_percent(unattributed)} unattributed"
    )


def _scope_table(report: TraceReport, width: int) -> Table:
    """Scopes as rows, phases as columns, in percent of the busy time."""
    phases = [phase for phase in PHASES if phase in report.phases]
    table = _new_table()
    with_rates = report.flops is not None and width - 9 * len(phases) - 27 >= _MIN_NAME_WIDTH
    name_width = width - 9 * len(phases) - (27 if with_rates else 18)
    table.add_column("scope", width=name_width)
    for phase in phases:
        table.add_column(_SHORT.get(phase, phase), justify="right", width=8)
    table.add_column("total", justify="right", width=8)
    table.add_column("ms/step", justify="right", width=8)
    if with_rates:
        table.add_column("GFLOP/s", justify="right", width=8)
    totals = {phase: busy_s / report.coverage.busy_s for phase, busy_s in report.phases.items()}
    for row in [*roll_up(report.scopes.rows, _NUM_SCOPES), RolledScope("all", totals)]:
        cells = [_percent(row.shares[phase]) if row.shares.get(phase) else "" for phase in phases]
        per_step = report.per_step(row.total * report.coverage.busy_s)
        shown = "" if per_step is None else f"{per_step * 1e3:.3f}"
        rate = rate_under(report, row.label, row.total) if with_rates else None
        rates = ["" if rate is None else f"{rate / 1e9:.3g}"] if with_rates else []
        _add_row(table, tail(row.label, name_width), *cells, f"{row.mark}{_percent(row.total)}", shown, *rates)
    return table


def _op_table(report: TraceReport, width: int) -> Table:
    table = _new_table()
    name_width = (width - 40) // 2
    table.add_column("operation", width=name_width)
    table.add_column("kind", width=14)
    table.add_column("scope", width=width - name_width - 36)
    table.add_column("phase", width=10)
    table.add_column("busy", justify="right", width=7)
    for row in report.ops.rows[:_NUM_OPS]:
        scope = "" if row.scope == NO_SCOPE else row.scope
        others = f" +{row.num_scopes - 1}" if row.num_scopes > 1 else ""
        scope = tail(scope, width - name_width - 36 - len(others)) + others
        _add_row(table, head(row.op, name_width), row.category, scope, row.phase, _percent(row.share))
    return table


def _notes(report: TraceReport) -> list[Text]:
    notes = [Text(f"Missing: {what}", style="yellow") for what in report.missing]
    if report.coverage.estimated_s:
        notes.append(Text("~ and +n: one kernel computes for several scopes; its time is split by estimate"))
    notes += [Text(f"Note: {what}", style="yellow") for what in report.warnings]
    left_out = [program for program in report.programs if not program.is_selected]
    if left_out:
        listed = ", ".join(f"{program.name} {seconds(program.busy_s)}" for program in left_out[:4])
        notes.append(Text(f"Not in the tables: {listed}{' and others' if len(left_out) > 4 else ''}"))
    size = f"{num_bytes(report.size_bytes)}, {report.num_events:,} events"
    for file in report.files[:1]:
        more = f" and {len(report.files) - 1} more" if len(report.files) > 1 else ""
        # Never cut: it is there to be copied.
        notes.append(Text(f"{file}{more}", overflow="fold"))
    notes.append(Text(size, style="dim"))
    return notes


def _new_table() -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")


def _add_row(table: Table, *cells: str) -> None:
    """Add cells that are shown as they are: rich would take the brackets in a name for markup."""
    table.add_row(*map(Text, cells))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
