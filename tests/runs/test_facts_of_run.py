"""One verdict: rows give the same facts while they are written and when they are read back, over all legs."""

from pathlib import Path
from typing import Any

import pytest

from tests.findings.made_up import capture_row, compile_row, leak_row, make_ledger, timer
from tests.runs.written import WrittenRun
from trackside.events import read_events
from trackside.findings import FactCollector, find
from trackside.runs import Run, open_run
from trackside.text import percent


def epoch(number: int, time_s: float = 10.0) -> dict[str, Any]:
    values = {"loss_mean": 1.0 / number, "epoch_time": time_s}
    return {"kind": "metrics", "mode": "train_epoch", "step": 100 * number, "epoch": number, "values": values}


def ledger(step: int, data_wait_s: float, wall_s: float, **fields: Any) -> dict[str, Any]:
    idle = {"data_wait": 0.9 * data_wait_s}
    totals = make_ledger({"data_wait": data_wait_s}, wall_s, num_steps=step, busy_s=0.1 * wall_s, idle=idle)
    return {"kind": "ledger", "step": step, **totals.to_dict(), **fields}


def leg(number: int, step: int) -> dict[str, Any]:
    return {"kind": "leg", "leg": number, "step": step, "epoch": step // 100, "train_time_s": 0.0}


def pause(number: int, **parts: float) -> dict[str, Any]:
    return {"kind": "between_epochs", "epoch": number, "parts": parts}


TWO_LEGS = [
    {"kind": "environment", "backend": "gpu", "devices": ["gpu:0", "gpu:1"]},
    {"kind": "config", "config": {"trainer": {"logger": {"log_every_n_steps": 10}}}},
    compile_row("make_carry"),
    leg(1, 0),
    compile_row("train_step"),
    epoch(1),
    pause(1, data_wait=3.0, validation=2.0),
    epoch(2),
    pause(2, data_wait=4.0),
    epoch(3),
    pause(3, data_wait=5.0),
    capture_row({"forward": 1.0, "optimizer": 1.0}, resolved=0.5, path="gone", first_step=11, last_step=20),
    ledger(300, data_wait_s=90.0, wall_s=100.0, step_time_s=0.3),
    {"kind": "finding", "id": "input_bound", "severity": "severe", "title": "x", "evidence": {}, "advice": "y"},
    # Killed here: the third epoch is trained again, and killed before anything comes after it.
    leg(2, 200),
    compile_row("train_step", step=201),
    epoch(3, 12.0),
    leak_row(),
    {"kind": "profiling", "operations": {"make_step_total": timer(0.1)}},
    ledger(100, data_wait_s=10.0, wall_s=100.0),
    {"kind": "status", "status": "success", "step": 300, "epoch": 3},
]


def write(folder: Path, rows: list[dict[str, Any]]) -> Run:
    written = WrittenRun(folder)
    for row in rows:
        written.write(row["kind"], **{name: value for name, value in row.items() if name != "kind"})
        written.metrics(row.get("step") or 1, step_time=9.0)
    return open_run(folder)


def test_rows_give_the_same_facts_one_by_one_and_read_back(tmp_path: Path) -> None:
    """Two legs, added row by row and read from their event file, have equal facts and equal findings."""
    live = FactCollector()
    for row in TWO_LEGS:
        live.add(row)
    run = write(tmp_path, TWO_LEGS)
    read = FactCollector()
    for row in read_events(tmp_path / "events-00000.jsonl"):
        read.add(row)
    without_times = [_without_t(facts) for facts in (live.facts(), run.facts, read.facts())]
    assert without_times[0] == without_times[1] == without_times[2]
    assert run.findings == find(live.facts())
    assert {finding.id for finding in run.findings} >= {"input_bound", "optimizer_share_high", "low_coverage"}


def test_verdicts_have_the_percentages_of_the_ledger(tmp_path: Path) -> None:
    """What a verdict says of the data wait is what the table of all legs shows, not that of the last leg."""
    run = write(tmp_path, TWO_LEGS)
    assert run.ledger is not None
    finding = next(finding for finding in run.findings if finding.id == "input_bound")
    assert finding.evidence["data_wait_share"] == run.ledger.share("data_wait") == pytest.approx(0.5)
    assert percent(run.ledger.share("data_wait")) in finding.title


def test_what_the_environment_says_reaches_the_advice(tmp_path: Path) -> None:
    """On a GPU, a capture that could not be attributed names command buffers, in a finished run too."""
    advice = next(finding.advice for finding in write(tmp_path, TWO_LEGS).findings if finding.id == "low_coverage")
    assert "command buffers" in advice


def test_the_step_time_is_that_of_the_newest_ledger_that_has_it(tmp_path: Path) -> None:
    """A leg that was killed before it knew its step time leaves that of the leg before."""
    assert write(tmp_path, TWO_LEGS).facts.step_time_s == 0.3


def test_older_files_have_the_median_of_clean_steps(tmp_path: Path) -> None:
    """Rows of the ledger without a step time: the logged times of undisturbed steps stand in."""
    written = WrittenRun(tmp_path).leg()
    for step in range(10, 101, 10):
        written.metrics(step, step_time=0.01 * step)
    written.ledger(100, 100, device_wait=3.0)
    run = open_run(tmp_path)
    clean = run.step_times.seconds[run.step_times.clean]
    assert run.facts.step_time_s == pytest.approx(sorted(clean)[len(clean) // 2], rel=0.2)


def test_epochs_that_were_lost_do_not_count(tmp_path: Path) -> None:
    """An epoch after the step from which a leg resumed was lost, and so is what came after it."""
    rows = [leg(1, 0), epoch(1), pause(1, other=1.0), epoch(2), pause(2, other=1.0), leg(2, 100)]
    assert [found.epoch for found in write(tmp_path, rows).facts.epochs] == [1]


def _without_t(facts: Any) -> dict[str, Any]:
    """The facts without when their rows were written, which only a file knows."""
    plain = dict(vars(facts))
    for name in ("compiles", "captures", "leaks"):
        plain[name] = [{key: value for key, value in row.items() if key != "t"} for row in plain[name]]
    return plain
