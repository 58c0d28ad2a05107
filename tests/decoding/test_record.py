import contextlib
import json

import numpy as np
import pytest

from trackside.decoding.model_scores import Evaluation, Score
from trackside.decoding.r2 import R2
from trackside.decoding.record import TrainingRecord
from trackside.logger import LoggerConfig
from trackside.measured_run import MeasuredRun


def evaluation(epoch, r2):
    found = Score(0.5, R2(np.array([r2, r2]), r2))
    return Evaluation(epoch, 10 * epoch, 0.5, found, found, {"norm": 1.0}, {"norm": 2.0})


@contextlib.contextmanager
def make_record(save_dir, num_epochs=4, is_profiled=False):
    with (
        MeasuredRun(LoggerConfig(log_path=save_dir)) as run,
        TrainingRecord(run.logger, num_epochs, None, save_dir / "best.txt", is_profiled) as record,
    ):
        yield record


def events(directory):
    return [json.loads(line) for line in (directory / "events-00000.jsonl").read_text().splitlines()]


def test_the_best_is_kept(tmp_path):
    """A model that is not better, or not a number, does not replace it."""
    with make_record(tmp_path) as record:
        for epoch, r2 in enumerate((0.1, 0.6, float("nan"), 0.6), start=1):
            record.add(evaluation(epoch, r2), lambda path, epoch=epoch: path.write_text(str(epoch)) and None)
    assert (tmp_path / "best.txt").read_text() == "2"
    assert [row["epoch"] for row in events(tmp_path) if row["kind"] == "best"] == [1, 2]


def test_a_full_disk_does_not_end_the_training(tmp_path, caplog):
    """It is reported, and the previous best is kept."""

    def fail(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with make_record(tmp_path) as record:
        record.add(evaluation(1, 0.1), lambda path: path.write_text("whole") and None)
        record.add(evaluation(2, 0.2), fail)
    assert (tmp_path / "best.txt").read_text() == "whole"
    assert "No space left on device" in caplog.text


def test_a_profile_that_cannot_be_logged_does_not_end_the_training(tmp_path, caplog, monkeypatch, fresh_profiler):
    """It is reported."""

    def fail(step=None):
        raise RuntimeError("no profile today")

    monkeypatch.setattr(fresh_profiler, "log_metrics", fail)
    with make_record(tmp_path, is_profiled=True) as record:
        record.add(evaluation(1, 0.1), lambda path: None)
    assert "no profile today" in caplog.text


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "interrupted"), (ValueError, "error")])
def test_the_end_is_truthful(tmp_path, error, status):
    """A training that was ended says by what, at which step."""

    def train():
        with make_record(tmp_path) as record:
            record.add(evaluation(3, 0.1), lambda path: path.touch())
            raise error

    with pytest.raises(error):
        train()
    assert events(tmp_path)[-1] | {"t": 0} == {"kind": "status", "t": 0, "status": status, "step": 30, "epoch": 3}


def test_the_profile_is_in_the_event_file(tmp_path, fresh_profiler):
    """During the training the profiler writes there, and not after it."""
    with make_record(tmp_path, is_profiled=True) as record:
        with fresh_profiler.time("forward"):
            pass
        record.add(evaluation(1, 0.1), lambda path: path.touch())
    fresh_profiler.log_metrics()
    (row,) = [row for row in events(tmp_path) if row["kind"] == "profiling"]
    assert row["operations"]["forward"]["count"] == 1


def test_verdicts_are_of_this_training_alone(tmp_path, fresh_profiler):
    """What the profiler timed before, for another training, is not held against this one; verdicts are rows."""

    def train(data_s, step_s):
        for _ in range(20):
            fresh_profiler.operation("data_batch_production").add(data_s)
            fresh_profiler.operation("training_step").add(step_s)

    train(data_s=10.0, step_s=0.001)
    for name, data_s in (("quick", 0.0001), ("slow", 0.01)):
        with make_record(tmp_path / name, is_profiled=True, num_epochs=1) as record:
            train(data_s, step_s=0.01)
            record.add(evaluation(1, 0.1), lambda path: path.touch())
    ids = {
        name: [row["id"] for row in events(tmp_path / name) if row["kind"] == "finding"] for name in ("quick", "slow")
    }
    assert "high_data_batch_production" not in ids["quick"]
    assert "high_data_batch_production" in ids["slow"]


def test_a_folder_holds_one_run(tmp_path):
    """The rows of a second training go to a folder next to it, and the best model to where it was asked for."""
    for text in ("first", "second"):
        with make_record(tmp_path / "run") as record:
            record.add(evaluation(1, 0.1), lambda path, text=text: path.write_text(text) and None)
    assert (tmp_path / "run" / "best.txt").read_text() == "second"
    for name in ("run", "run-2"):
        assert [row["kind"] for row in events(tmp_path / name)].count("status") == 1
