"""What `trackside watch` shows of a run: a picture for a terminal, or one line for a pipe."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from rich.text import Text

from trackside.cli.sparkline import sparkline
from trackside.findings import Finding
from trackside.findings.silencing import silenced_text
from trackside.profiling.ledger_totals import CALLBACK, COMPILE, LedgerTotals
from trackside.report.ledger_lines import render_bar
from trackside.report.terminal_lines import fit, join, labelled, printable
from trackside.runs import MetricTable, Run
from trackside.runs.best_metric import choose_metric
from trackside.runs.status_words import read_status
from trackside.text import duration, seconds, three_digits, wrap

RECENT_S = 60.0
"""The last seconds that the bar and the speed cover while the run trains."""

_MAX_SERIES = 5
_MAX_FINDINGS = 4
_PROGRESS_WIDTH = 24
_SEVERITY_STYLES = {"severe": "bold red", "warning": "yellow", "info": "cyan"}


class Series(NamedTuple):
    """The course of a metric."""

    label: str
    values: np.ndarray
    is_higher_better: bool = False


def render_picture(run: Run, now: float, width: int, plain: bool = False) -> Text:
    """The current state of a run.

    Args:
        run: The run, as last read.
        now: The time, in seconds since 1970.
        width: The number of columns to use.
        plain: Without colors; the bar uses letters.
    """
    lines = [*_header(run, now, width), Text(), *_ledger(run, width, plain)]
    series = list(find_series(run))
    if series:
        lines += [Text(), *_curves(series, width)]
    if run.findings:
        lines += [Text(), *_findings(run.findings, width)]
    if run.silenced_findings:
        lines += [Text(), *(Text(line, style="dim") for line in wrap(silenced_text(run.silenced_findings), width))]
    if run.problems and not run.is_finished:
        lines += [Text(), *(Text(line, style="yellow") for line in wrap(f"note: {run.problems[0]}", width))]
    return printable(join(lines))


def render_line(run: Run) -> str:
    """The current state of a run in one line."""
    speed = speed_of(run)
    words = [read_status(run).word, _steps(run)]
    words += [f"{three_digits(speed.steps_per_second)} steps/s"] if speed is not None else []
    words += [f"{label} {values[-1]:.4g}" for label, values, _ in find_series(run)]
    return printable(Text("  ".join(words))).plain


def render_finding_line(finding: Finding) -> str:
    """A finding in one line."""
    return printable(Text(f"{finding.severity}: {finding.message}")).plain


class Speed(NamedTuple):
    """How fast a run is, and what of: a speed without that would be taken for another one."""

    steps_per_second: float
    of: str


def speed_of(run: Run) -> Speed | None:
    """While a run is live, its speed over the last minute; after its end, by its step time; None before either."""
    recent = None if run.is_finished else recent_ledger(run)
    if recent is not None and recent.num_steps:
        # What was compiled is over, and says nothing about the steps to come; the rest will go on.
        left_s = recent.wall_s - recent.parts.get(COMPILE, 0.0)
        return Speed(recent.num_steps / left_s, "over the last minute, compiling aside") if left_s > 0 else None
    step_s = run.step_times.median_s
    return Speed(1 / step_s, f"at the median step time of {seconds(step_s)}") if step_s else None


def recent_ledger(run: Run) -> LedgerTotals | None:
    """Where the time of the last minute went; None without rows."""
    time = run.metrics.get("time")
    if time is None or not len(time):
        return None
    num_steps = np.diff(time.step, prepend=0)[_recent(time)]
    parts = {}
    for name in time.names:
        if name.endswith("_ms") and not name.startswith(CALLBACK):  # callbacks are in `callbacks_ms` together
            part = f"{CALLBACK}callbacks" if name == "callbacks_ms" else name.removesuffix("_ms")
            parts[part] = float(np.nansum(time[name][_recent(time)] * num_steps) / 1e3)
    return LedgerTotals(sum(parts.values()), parts, int(num_steps.sum()))


def find_series(run: Run) -> Iterator[Series]:
    """The losses of a run, and the metric by which it is judged."""
    labels = set()
    tables = {mode: table for mode, table in run.metrics.items() if len(table)}  # a restart may have dropped every row
    for mode in sorted(tables, key=lambda name: (name != "train", name)):
        if mode != "train" and not mode.startswith("val"):
            continue
        table = tables[mode]
        for name in (name for name in table.names if "loss" in name and not name.endswith(("_max", "_std", "_single"))):
            label = f"{mode}_{name.removesuffix('_mean')}"
            known = table[name][table.present(name)]
            if len(known) and len(labels) < _MAX_SERIES:
                labels.add(label)
                yield Series(label, known)
    judged = choose_metric(run.config, {mode: table.names for mode, table in tables.items()})
    if judged is not None and judged.label not in labels:
        table = tables[judged.mode]
        yield Series(judged.label, table[judged.name][table.present(judged.name)], judged.direction == "max")


def _recent(time: MetricTable) -> slice:
    """The rows of the last minute."""
    return slice(int(np.searchsorted(time.t, time.t[-1] - RECENT_S)), None)


def _steps(run: Run) -> str:
    epoch = f", epoch {run.epoch}" if run.epoch else ""
    return f"step {run.step:,}{'' if run.goal is None else f' of {run.goal:,}'}{epoch}"


def _header(run: Run, now: float, width: int) -> Iterator[Text]:
    seen = f"last row {duration(now - run.ended_at)} ago" if run.ended_at and not run.is_finished else ""
    name = Text(fit(run.name, width - len(seen) - 16).rstrip(), style="bold")
    stands = read_status(run)
    status = Text(stands.word, style=stands.style)
    gap = " " * max(width - name.cell_len - 2 - status.cell_len - len(seen), 2)
    yield Text.assemble(name, "  ", status, gap, (seen, "dim"))
    if stands.stop_reason is not None:
        yield from (Text(line, style=stands.style) for line in wrap(stands.stop_reason, width))
    progress = Text(_steps(run))
    if run.goal:
        share = min(run.step / run.goal, 1.0)
        progress.append(f"  {100 * share:.0f} %  ")
        columns = max(min(_PROGRESS_WIDTH, width - progress.cell_len), 0)
        done = round(share * columns)
        progress.append("█" * done, style="green")
        progress.append("░" * (columns - done), style="dim")
    yield progress
    speed = speed_of(run)
    words = [f"{three_digits(speed.steps_per_second)} steps per second {speed.of}"] if speed else []
    if run.started_at:
        words.append(f"{duration((run.ended_at if run.is_finished else now) - run.started_at)} since it started")
    if speed and run.goal and run.status == "running" and run.goal > run.step:
        words.append(f"about {duration((run.goal - run.step) / speed.steps_per_second)} left")
    if words:
        yield from map(Text, wrap("; ".join(words), width))


def _ledger(run: Run, width: int, plain: bool) -> list[Text]:
    recent = None if run.is_finished else recent_ledger(run)
    totals = recent or run.ledger
    if totals is None or totals.wall_s <= 0:
        return [Text("where the time goes: shown after about a second of steps", style="dim")]
    title = f"where the {'last ' if recent else ''}{duration(totals.wall_s)} went"
    return [Text(title, style="bold"), *render_bar(totals, width, plain)]


def _curves(series: list[Series], width: int) -> Iterator[Text]:
    label_width = min(max(len(one.label) for one in series), width // 4)
    for label, values, is_higher_better in series:
        finite = values[np.isfinite(values)]
        figures = f"{values[-1]:.4g}"
        if len(finite):
            best = f"highest {finite.max():.4g}" if is_higher_better else f"lowest {finite.min():.4g}"
            figures += f"  ({best})"
        line = Text(f"{fit(label, label_width)}  ")
        line.append(sparkline(values, width - label_width - len(figures) - 4), style="cyan")
        line.append(f"  {figures}")
        yield line


def _findings(findings: list[Finding], width: int) -> Iterator[Text]:
    for finding in findings[:_MAX_FINDINGS]:
        lines = labelled(finding.severity, [f"{finding.label}: {finding.title}", f"-> {finding.advice}"], width)
        lines[0].stylize(_SEVERITY_STYLES[finding.severity], 0, len(finding.severity))
        yield from lines
    if len(findings) > _MAX_FINDINGS:
        yield Text(f"and {len(findings) - _MAX_FINDINGS} more findings")
