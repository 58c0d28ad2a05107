"""The summary of a run for the terminal, within 80 columns: the findings first, then the figures behind them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from trackside.findings import render_findings
from trackside.profiling.ledger_text import part_name
from trackside.report.compile_summary import CompileSummary, Recompile
from trackside.report.ledger_lines import render_ledger_table
from trackside.report.loader_texts import loader_texts
from trackside.report.memory_summary import MemorySummary
from trackside.report.run_summary import RunSummary
from trackside.report.scope_summary import ScopeSummary
from trackside.report.step_time_summary import StepTimeSummary
from trackside.report.terminal_lines import LABEL_WIDTH, fit, fit_tail, join, labelled, printable
from trackside.runs import Leg
from trackside.runs.best_metric import BestMetric
from trackside.text import count, duration, moment, num_bytes, percent, percent_of_peak, seconds, with_prefix, wrap

_MIN_ALSO_COMPILED = 0.01
_NUM_CAUSES = 4
_NUM_STEPS = 4
_MIN_SHARE = 0.0005
_MIN_NAME_WIDTH = 16
_NUM_LEGS = 8
_NUM_TIMERS = 12
_NUM_HOSTS = 8
_NUM_PROBLEMS = 12
_SHORT_PHASES = {"recompute": "recomp.", "optimizer": "optim."}
_REASONS = {"warm_up": "warm-up", "not_timed": "not timed"}


def render_summary(summary: RunSummary, width: int = 80) -> Text:
    """What `trackside report` prints.

    Args:
        summary: The figures of the run.
        width: The number of columns to use.

    Returns:
        A text that a rich console prints in colors; its `plain` is the text without them.
    """
    blocks = [
        _header(summary, width),
        [render_findings(summary.findings, width, summary.silenced)],
        _time(summary, width),
        _timers(summary.timers, width),
        _steps(summary, width),
        _scopes(summary.scopes, width),
        [*_compiles(summary.compiles, width), *_memory(summary.memory, width), *_usage(summary, width)],
        _hosts(summary, width),
        _problems(summary.problems, width),
    ]
    return printable(Text("\n\n").join(join(block) for block in blocks if block))


def progress_text(step: int, goal: int | None, epoch: int) -> str:
    """How far a run has come."""
    steps = f"{step:,} steps" if goal is None or goal == step else f"{step:,} of {goal:,} steps"
    return f"{steps}, {count(epoch, 'epoch')}" if epoch else steps


def _header(summary: RunSummary, width: int) -> list[Text]:
    status = summary.run_status
    name = Text(fit(summary.name, width - 18).rstrip(), style="bold")
    when = moment(summary.started_at) if summary.started_at else ""
    gap = " " * max(width - name.cell_len - len(when), 2)
    lines = [Text.assemble(name, gap, (when, "dim"))]
    lines += [Text(part, style=status.style) for part in wrap(status.text, width)]
    took = duration(summary.ended_at - summary.started_at)
    lines += map(
        Text, wrap(f"{progress_text(summary.step, summary.goal, summary.epoch)} in {took}{_on(summary)}", width)
    )
    if loaders := loader_texts(summary.environment):
        lines += map(Text, wrap("; ".join(loaders), width))
    if summary.best is not None:
        lines.append(Text(fit(_best_text(summary.best), width).rstrip()))
    return lines


def _best_text(best: BestMetric) -> str:
    last = "not finite" if best.last is None else f"{best.last:.4g}"
    return f"best {best.label} {best.value:.4g} at step {best.step:,}; last {last}"


def _on(summary: RunSummary) -> str:
    devices = summary.environment.get("devices") or []
    kind = f"{summary.environment.get('backend', '')} device".strip()
    where = f" on {count(len(devices), kind)}" if devices else ""
    processes = f", {summary.num_processes:,} processes" if summary.num_processes > 1 else ""
    return where + processes


def _time(summary: RunSummary, width: int) -> list[Text]:
    lines = render_ledger_table(summary.ledger, width) if summary.ledger is not None else []
    if lines or summary.timers:  # a loop with timers has no ledger
        return lines
    return labelled("time", ["not known yet: the ledger is written about every ten seconds"], width)


def _timers(timers: Mapping[str, Mapping[str, Any]], width: int) -> list[Text]:
    if not timers:
        return []
    name_width = max(width - 31, _MIN_NAME_WIDTH)
    lines = [Text(f"{'timers':<{name_width}}{'mean':>10}{'total':>11}{'count':>10}", style="bold")]
    by_total = sorted(timers.items(), key=lambda item: -(item[1].get("total_time") or 0.0))
    for name, measured in by_total[:_NUM_TIMERS]:
        mean, total = (seconds(measured.get(key) or 0.0) for key in ("avg_time", "total_time"))
        lines.append(Text(f"  {fit(name, name_width - 2)}{mean:>10}{total:>11}{measured.get('count') or 0:>10,}"))
    if len(by_total) > _NUM_TIMERS:
        lines.append(Text(f"  and {len(by_total) - _NUM_TIMERS} more"))
    return lines


def _steps(summary: RunSummary, width: int) -> list[Text]:
    times = summary.step_time
    if times is None:
        return labelled("step time", ["not known: no clean step was timed"], width)
    return labelled("step time", _step_lines(times), width)


def _step_lines(times: StepTimeSummary) -> list[str]:
    figures = (("p50", times.p50_s), ("p95", times.p95_s), ("p99", times.p99_s), ("mean", times.mean_s))
    lines = ["   ".join(f"{name} {seconds(time_s)}" for name, time_s in figures)]
    of = f"over {times.num_steps:,} clean steps"
    if times.num_left_out:
        why = ", ".join(f"{number:,} {_REASONS.get(name, name)}" for name, number in times.left_out.items())
        of += f"; {times.num_left_out:,} left out: {why}"
    if times.steps_per_row > 1:
        of += f"; each log row is the mean of {times.steps_per_row} steps"
    return [*lines, of]


def _scopes(scopes: ScopeSummary | None, width: int) -> list[Text]:
    if scopes is None:
        return labelled("scopes", ["no capture; add JaxProfilerConfig to `callbacks`"], width)
    busy = "" if scopes.device_busy_share is None else f", device busy {percent(scopes.device_busy_share)}"
    if busy and scopes.busy_s_per_step is not None:
        busy += f", {seconds(scopes.busy_s_per_step)} per step"
    rate = "" if scopes.flops_per_s is None else f", {with_prefix(scopes.flops_per_s, 'FLOP/s')}"
    share = scopes.utilisation
    used = "" if share is None else f", {percent_of_peak(share, scopes.utilisation_range)} of the peak"
    title = f"device time in steps {scopes.first_step} to {scopes.last_step}{busy}{rate}{used}"
    lines = [Text(line, style="bold") for line in wrap(title, width)]
    phases = list(scopes.phases) if width - 9 * len(scopes.phases) - 20 >= _MIN_NAME_WIDTH else []
    name_width = max(width - 9 * len(phases) - 20, _MIN_NAME_WIDTH)
    head = "".join(f"{_SHORT_PHASES.get(phase, phase):>9}" for phase in phases)
    lines.append(Text(f"  {fit('scope', name_width)}{head}{'total':>9}{'ms/step':>9}", style="dim"))
    for row in (row for row in scopes.scopes if row.share >= _MIN_SHARE):
        cells = "".join(f"{_cell(row.shares.get(phase)):>9}" for phase in phases)
        per_step = "" if row.seconds_per_step is None else f"{row.seconds_per_step * 1e3:.3f}"
        mark = "~" if row.is_estimated else ""
        lines.append(Text(f"  {fit_tail(row.scope, name_width)}{cells}{mark + _cell(row.share):>9}{per_step:>9}"))
    return lines + [Text(f"  {line}", style="dim") for line in _estimate_lines(scopes, width - 2)]


def _estimate_lines(scopes: ScopeSummary, width: int) -> list[str]:
    """How much of the time was split by estimate, or could not be."""
    parts = []
    if scopes.estimated_share:
        parts.append(f"~ {percent(scopes.estimated_share)} is in kernels over several scopes, split by estimate")
    if scopes.unsplit_share:
        parts.append(f"{percent(scopes.unsplit_share)} is in fused kernels that cannot be split")
    return wrap("; ".join(parts), width) if parts else []


def _cell(share: float | None) -> str:
    return f"{100 * share:.1f} %" if share else ""


def _compiles(compiles: CompileSummary, width: int) -> list[Text]:
    if not compiles.num_compiles:
        return labelled("compiles", ["none"], width)
    again = f", {count(compiles.num_recompiles, 'recompile')}" if compiles.num_recompiles else ", no recompiles"
    cached = sum(one.num_cached for one in compiles.functions)
    cache = f", {cached} from the cache" if cached else ""
    lines = [f"{count(compiles.num_compiles, 'program')} in {seconds(compiles.seconds)}{again}{cache}"]
    if also := _also_compiled(compiles):
        lines.append(f"also {also}")
    causes = _by_cause(compiles.recompiles)
    for same in causes[:_NUM_CAUSES]:
        lines += _recompile_lines(same, width - LABEL_WIDTH)
    hidden = compiles.num_recompiles - sum(map(len, causes[:_NUM_CAUSES]))
    if hidden > 0:
        lines.append(f"and {count(hidden, 'recompile')} more")
    return labelled("compiles", lines, width)


def _also_compiled(compiles: CompileSummary) -> str:
    """What else the ledger counts as compiling, if it is not negligible."""
    least_s = _MIN_ALSO_COMPILED * compiles.seconds
    shown = []
    if compiles.operations_s > least_s:
        shown.append(f"{seconds(compiles.operations_s)} for {count(compiles.num_operations, 'single operation')}")
    if compiles.only_traced_s > least_s:
        shown.append(f"{seconds(compiles.only_traced_s)} of tracing for shapes")
    return " and ".join(shown)


def _by_cause(recompiles: Sequence[Recompile]) -> list[list[Recompile]]:
    """Recompiles grouped by function and reason, the group that took longest first."""
    found: dict[str, list[Recompile]] = {}
    for recompile in recompiles:
        found.setdefault(f"{recompile.function} {recompile.changes}", []).append(recompile)
    return sorted(found.values(), key=lambda same: -sum(one.seconds for one in same))


def _recompile_lines(same: Sequence[Recompile], width: int) -> list[Text]:
    recompile = same[-1]
    steps = [f"{one.step:,}" for one in same if one.step is not None]
    more = f" and {len(steps) - _NUM_STEPS} more" if len(steps) > _NUM_STEPS else ""
    at = f" at step {', '.join(steps[:_NUM_STEPS])}{more}" if steps else ""
    headline = f"{recompile.function} recompiled{at}, {seconds(sum(one.seconds for one in same))}"
    lines = [Text(line, style="yellow") for line in wrap(headline, width, hanging="  ")]
    for change in recompile.changes[:2]:
        text = f"{change.get('path')}: {change.get('kind')} {change.get('old')} -> {change.get('new')}"
        lines += [Text(f"  {line}") for line in wrap(text, width - 2, hanging="  ")]
    if recompile.num_changes > 2:
        lines.append(Text(f"  and {recompile.num_changes - 2} more changed"))
    if recompile.suggestion:
        lines += [Text(f"  {line}") for line in wrap(f"-> {recompile.suggestion}", width - 2, hanging="   ")]
    return lines


def _memory(memory: MemorySummary | None, width: int) -> list[Text]:
    if memory is None:
        return labelled("memory", ["not sampled; add MemoryProfileConfig to `callbacks`"], width)
    lines = []
    for device, peak in memory.devices.items():
        of = f" of {num_bytes(peak.limit_bytes)}" if peak.limit_bytes else ""
        lines.append(f"{device}: peak {num_bytes(peak.peak_bytes)}{of}")
    if memory.host_peak_bytes is not None:
        lines.append(f"host: peak {num_bytes(memory.host_peak_bytes)}")
    owners = ", ".join(f"{owner} {num_bytes(number)}" for owner, number in memory.owners.items() if number)
    if owners:
        lines.append(f"live arrays at step {memory.owners_step}: {owners}")
    return labelled("memory", lines or [f"{count(memory.num_samples, 'sample')} without figures"], width)


def _usage(summary: RunSummary, width: int) -> list[Text]:
    """How well devices and time were used."""
    lines: list[Text] = []
    if summary.mfu is not None:
        share = percent_of_peak(summary.mfu, summary.mfu_range)
        text = f"{share} of the devices' peak FLOP/s, in steps and while waiting for data"
        lines += labelled("mfu", [text], width)
    if summary.goodput is not None:
        text = f"{percent(summary.goodput)} of the time since training began was spent in steps that were kept"
        lines += labelled("goodput", [text], width)
    if summary.time_to_first_step is not None:
        lines += labelled("first step", [f"after {summary.time_to_first_step.text}"], width)
    if len(summary.legs) > 1:
        lines += labelled("legs", _leg_lines(summary.legs), width)
    return lines


def _leg_lines(legs: Sequence[Leg]) -> list[str]:
    hidden = len(legs) - _NUM_LEGS
    lines = [f"{count(hidden, 'earlier leg')}"] if hidden > 0 else []
    for leg in legs[-_NUM_LEGS:]:
        to = "?" if leg.last_step is None else f"{leg.last_step:,}"
        took = duration(leg.ended_at - leg.started_at)
        lines.append(f"{leg.number}: steps {leg.first_step:,} to {to}, {leg.status}, {took}, {moment(leg.started_at)}")
        if leg.time_to_first_step is not None:
            lines.append(f"   first step after {leg.time_to_first_step.text}")
    return lines


def _hosts(summary: RunSummary, width: int) -> list[Text]:
    slow = [
        f"process {host.process_index} ({host.hostname}): {seconds(host.own_s_per_step)} per step without waiting for "
        f"the device, {host.factor:.1f} times the others' median of {seconds(host.median_s_per_step)}; mostly "
        f"{part_name(host.part)}, {seconds(host.part_s_per_step)} against {seconds(host.part_median_s_per_step)}"
        for host in summary.slow_hosts
    ]
    silent = [
        f"process {host.process_index} ({host.hostname}): last row at step {host.step:,}, {duration(host.silent_s)} "
        f"before the last row of the others, which are at step {host.others_step:,}"
        for host in summary.silent_hosts
    ]
    lines = labelled("slow hosts", _first(slow, _NUM_HOSTS), width) if slow else []
    return lines + (labelled("silent", _first(silent, _NUM_HOSTS), width) if silent else [])


def _first(lines: list[str], number: int) -> list[str]:
    """The first lines, and how many more there are."""
    return lines if len(lines) <= number else [*lines[:number], f"and {len(lines) - number:,} more"]


def _problems(problems: Sequence[str], width: int) -> list[Text]:
    if not problems:
        return []
    lines = [Text("problems with the run's files", style="bold yellow")]
    for problem in _first(list(problems), _NUM_PROBLEMS):
        lines += [Text(f"  {line}") for line in wrap(f"- {problem}", width - 2, hanging="  ")]
    return lines
