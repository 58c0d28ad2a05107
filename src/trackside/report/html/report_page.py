"""The report of a run as a page: which sections it has, in which order."""

from pathlib import Path

from trackside.report.html import (
    compile_tables,
    config_tables,
    device_use,
    finding_cards,
    header,
    ledger_chart,
    legs_and_hosts,
    memory_charts,
    metric_charts,
    profile,
    step_time_chart,
    timer_table,
)
from trackside.report.html.document import render_document, write_document
from trackside.report.html.section import Section
from trackside.report.run_summary import RunSummary, summarise_run
from trackside.run_layout import REPORT_FILE_NAME
from trackside.runs import Run


def write_html_report(run: Run, path: Path | None = None) -> Path:
    """Write the report of a run as one HTML file.

    Args:
        run: The run, as `trackside.open_run` gives it.
        path: The file; `report.html` in the run's folder by default. It is replaced whole or not at all; its folder is
            created if needed.

    Returns:
        The file.

    Raises:
        ConfigError: The file cannot be written.
    """
    target = run.path / REPORT_FILE_NAME if path is None else Path(path)
    return write_document(render_html(run), target, "the report")


def render_html(run: Run) -> str:
    """The report of a run as an HTML document.

    Args:
        run: The run, as `trackside.open_run` gives it.
    """
    summary = summarise_run(run)
    sections = [section for section in _sections(summary, run) if section is not None]
    return render_document(f"{run.name} · trackside", header.render_header(summary), sections)


def _sections(summary: RunSummary, run: Run) -> list[Section | None]:
    """Figures come from the summary; the run has the series that charts show, and its configuration."""
    return [
        finding_cards.build(summary),
        metric_charts.build(run.metrics, summary.best, run.axes),
        step_time_chart.build(summary, run),
        ledger_chart.build(summary, run.metrics.get("time")),
        device_use.build(run),
        profile.build(run),
        memory_charts.build(summary, run),
        compile_tables.build(summary.compiles),
        legs_and_hosts.build(summary, run.hosts),
        timer_table.build(summary.timers),
        config_tables.build(run.config, summary.environment),
    ]
