"""The run log: every row goes one way, to file, tools, facts and subscribers."""

from pathlib import Path
from typing import Any

import pytest

from trackside.clock import SYSTEM_CLOCK
from trackside.events import read_events
from trackside.findings import facts_from_events
from trackside.logger import Logger, LoggerConfig
from trackside.logger.run_log import RunLog, without_opening_runs
from trackside.logger.tool_fanout import ToolFanout
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.run_layout import event_file_name


def open_log(path: Path | None) -> RunLog:
    log = RunLog(path, "output", lambda: ToolFanout((), SYSTEM_CLOCK))
    log.open()
    return log


def write_leg(log: RunLog, leg: int, num_steps: int) -> None:
    """What a leg of a training writes, as far as verdicts need it."""
    log.write("environment", backend="cpu", devices=["a", "b"])
    log.write("config", config={"trainer": {"logger": {"log_every_n_steps": 5}}})
    log.write("leg", leg=leg, step=0, epoch=0)
    totals = LedgerTotals(10.0, {"data_wait": 8.0, "dispatch": 2.0}, num_steps=num_steps, num_samples=8 * num_steps)
    log.write_metrics({"epoch_time": 9.0}, num_steps, leg, "train_epoch")
    log.write("ledger", step=num_steps, step_time_s=0.5, **totals.to_dict())


def rows_in(path: Path) -> list[dict[str, Any]]:
    return list(read_events(path / event_file_name(0)))


def test_facts_are_those_that_a_reader_finds(tmp_path: Path) -> None:
    """What the log knows of a run is what its event file says, environment and configuration included."""
    log = open_log(tmp_path)
    write_leg(log, 1, 20)
    facts = log.facts()
    assert facts == facts_from_events(rows_in(tmp_path))
    assert (facts.platform, facts.num_devices, facts.log_every_n_steps, facts.step_time_s) == ("cpu", 2, 5, 0.5)


def test_a_later_leg_knows_the_earlier_ones(tmp_path: Path) -> None:
    """Verdicts of a resumed run rest on all of its legs, as a reader's do."""
    first = open_log(tmp_path)
    write_leg(first, 1, 20)
    first.close("interrupted", 20, 1)
    second = open_log(tmp_path)
    write_leg(second, 2, 30)
    ledger = second.facts().ledger
    assert ledger is not None
    assert (ledger.wall_s, ledger.num_steps) == (20.0, 50)
    assert second.facts() == facts_from_events(rows_in(tmp_path))


def test_a_closed_log_keeps_facts_and_writes_nothing(tmp_path: Path) -> None:
    """Rows after the end reach facts and subscribers, and no file."""
    log, heard = open_log(tmp_path), []
    log.subscribe(lambda kind, fields: heard.append((kind, dict(fields))))
    log.close("success", 0, 0)
    size = (tmp_path / event_file_name(0)).stat().st_size
    log.write("note", text="late")
    assert heard[-1] == ("note", {"text": "late"})
    assert (tmp_path / event_file_name(0)).stat().st_size == size


def test_subscribers_hear_every_row_until_they_leave(tmp_path: Path) -> None:
    """Rows of metrics too, with their mode and values."""
    log, heard = open_log(None), []
    leave = log.subscribe(lambda kind, fields: heard.append((kind, fields.get("mode"))))
    log.write("stop", reason="enough", step=3)
    log.write_metrics({"loss": 1.0}, 3, 1, "train")
    leave()
    log.write("stop", reason="again", step=4)
    assert heard == [("stop", None), ("metrics", "train")]


def test_a_look_at_a_run_leaves_no_trace(tmp_path: Path) -> None:
    """A logger that was made without opening runs writes nothing until a training attaches it."""
    config = LoggerConfig(log_path=tmp_path / "run")
    with without_opening_runs():
        logger = Logger(config)
    logger.log_row({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert not (tmp_path / "run").exists()
    logger.on_training_start()
    logger.log_row({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert [row["kind"] for row in rows_in(tmp_path / "run")] == ["format", "environment", "metrics", "status"]


@pytest.mark.parametrize("damage", [b"{torn", b'{"kind": "ledger", "parts": 3}\n', b'{"kind": "between_epochs"}\n'])
def test_damaged_rows_of_earlier_legs_do_not_stop_a_training(tmp_path: Path, damage: bytes) -> None:
    """What cannot be read of an earlier leg is left out of the facts."""
    first = open_log(tmp_path)
    write_leg(first, 1, 20)
    first.close("error", 20, 1)
    with (tmp_path / event_file_name(0)).open("ab") as file:
        file.write(damage)
    second = open_log(tmp_path)
    write_leg(second, 2, 30)
    ledger = second.facts().ledger
    assert ledger is not None
    assert ledger.num_steps == 50


def test_row_for_a_training_that_is_over(tmp_path: Path) -> None:
    """A row can be added to a closed run, which stays closed and keeps its status; not to one that was not trained."""
    log = open_log(tmp_path)
    write_leg(log, 1, 20)
    log.close("success", 20, 1)
    log.append("ledger", step=20, **LedgerTotals(12.0, {"dispatch": 12.0}, num_steps=20).to_dict())
    assert not log.is_open
    assert [row["kind"] for row in rows_in(tmp_path)][-3:] == ["status", "format", "ledger"]
    assert log.facts() == facts_from_events(rows_in(tmp_path))
    untrained = open_log(tmp_path / "other")
    untrained.close("", 0, 0)
    num_rows = len(rows_in(tmp_path / "other"))
    untrained.append("ledger", step=0)
    assert len(rows_in(tmp_path / "other")) == num_rows


def test_row_for_a_run_that_was_deleted(tmp_path: Path) -> None:
    """Nothing is made again in the place of a run that is gone."""
    log = open_log(tmp_path)
    write_leg(log, 1, 20)
    log.close("success", 20, 1)
    (tmp_path / event_file_name(0)).unlink()
    log.append("ledger", step=20)
    assert not (tmp_path / event_file_name(0)).exists()
