"""The ledger over the run: means of intervals are steps, and one long interval does not flatten the others."""

from pathlib import Path
from typing import Any

from trackside.events import EventWriter
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.report import summarise_run
from trackside.report.html import ledger_chart
from trackside.report.html.section import Section
from trackside.run_layout import event_file_name
from trackside.runs import open_run


def build(folder: Path, rows: dict[int, dict[str, float]], parts: dict[str, float] | None = None) -> Section:
    """The section of a run with these rows of time, by step."""
    events = EventWriter(folder / event_file_name(0))
    for step, values in rows.items():
        events.write_metrics(values, step, 1, "time")
    ledger = LedgerTotals(10.0, parts or {"device_wait": 10.0}, max(rows, default=1))
    events.write("ledger", step=max(rows, default=1), **ledger.to_dict())
    events.close()
    run = open_run(folder)
    return ledger_chart.build(summarise_run(run), run.metrics.get("time"))


def traces_of(section: Section, view: int) -> list[dict[str, Any]]:
    (chart,) = section.charts
    shown = chart.views[view].traces
    assert shown is not None
    return [chart.traces[index] for index in shown]


def test_mean_covers_its_own_interval(tmp_path: Path) -> None:
    """A row is the mean since the row before it: it is drawn as a level from there to its own step."""
    section = build(tmp_path, {step: {"device_wait_ms": float(step)} for step in (10, 50, 100)})
    (share,), (time,) = traces_of(section, 0), traces_of(section, 1)
    assert share["line"]["shape"] == time["line"]["shape"] == "vh"
    assert (time["x"], time["y"]) == ([0, 10, 50, 100], [10, 10, 50, 100])
    assert share["x"] == [0, 10, 50, 100]


def test_long_first_interval_is_cut_and_said_so(tmp_path: Path) -> None:
    """The interval with the compile does not set the axis; the page says what is cut, and a view shows all of it."""
    rows = {step: {"device_wait_ms": 2.0 + step % 3} for step in range(20, 200, 10)}
    section = build(tmp_path, {10: {"device_wait_ms": 900.0}, **rows})
    (chart,) = section.charts
    assert [view.title for view in chart.views] == ["Share", "ms per step", "Full range"]
    assert 4.0 < chart.views[1].layout["yaxis"]["range"][1] < 10.0
    assert "1 interval is cut off at the top (up to 900 ms per step, at step 10)" in str(section.content)


def test_even_intervals_need_no_cut(tmp_path: Path) -> None:
    """Where no interval sticks out, nothing is cut."""
    section = build(tmp_path, {step: {"device_wait_ms": 2.0} for step in range(10, 200, 10)})
    (chart,) = section.charts
    assert [view.title for view in chart.views] == ["Share", "ms per step"]
    assert "cut off" not in str(section.content)


def test_callbacks_have_different_colours(tmp_path: Path) -> None:
    """Two callbacks of the library have bars of different colours."""
    parts = {"callback/MemoryProfiler": 4.0, "callback/EarlyStopping": 3.0, "device_wait": 3.0}
    content = str(build(tmp_path, {1: {"device_wait_ms": 1.0}}, parts).content)
    assert content.count("fill-callback-") == 2
    assert len({content[at : at + 15] for at in range(len(content)) if content.startswith("fill-callback-", at)}) == 2


def test_callbacks_are_areas_of_their_own(tmp_path: Path) -> None:
    """Rows that say which callback took the time are drawn by callback, each in the color of its bar."""
    parts = {"callback/EMA": 4.0, "callback/Mine": 3.0, "device_wait": 3.0}
    row = {"device_wait_ms": 3.0, "callbacks_ms": 7.0, "callback/EMA_ms": 4.0, "callback/Mine_ms": 3.0}
    section = build(tmp_path, {10: row, 20: row}, parts)
    shares = {trace["name"]: trace for trace in traces_of(section, 0)}
    assert set(shares) == {"waiting for the device", "EMA", "Mine"}
    assert shares["EMA"]["y"] == [40, 40, 40]
    assert shares["EMA"]["fillcolor"] != shares["Mine"]["fillcolor"]
    for trace in (shares["EMA"], shares["Mine"]):
        assert f"fill-{trace['fillcolor'].removeprefix('--')}" in str(section.content)


def test_rows_of_earlier_versions_have_all_callbacks_in_one(tmp_path: Path) -> None:
    """Rows that do not say which callback it was have one area; of a run with both kinds, the rest stays."""
    old, new = {"device_wait_ms": 5.0, "callbacks_ms": 5.0}, {"device_wait_ms": 5.0, "callbacks_ms": 5.0}
    section = build(tmp_path, {10: old, 20: {**new, "callback/EMA_ms": 5.0}})
    shares = {trace["name"]: trace["y"] for trace in traces_of(section, 0)}
    assert shares["callbacks"] == [50, 50, 0]
    assert shares["EMA"] == [0, 0, 50]
