"""What W&B itself has written, in runs without a server."""

import json

import pytest
import wandb

from trackside.clock import ManualClock
from trackside.logger.wandb_history import _records
from trackside.profiling import TrainingProfiler

pytestmark = pytest.mark.slow


@pytest.fixture
def profiler():
    profiler = TrainingProfiler(clock=ManualClock())
    with profiler.time("load"):
        profiler.clock.advance(2.0)
    return profiler


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run without a server, which the test finishes."""
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    with wandb.init(mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True)) as run:
        yield run


def records_of(tmp_path, kind):
    """What W&B has written of one kind."""
    wandb.teardown()  # only then has W&B's own process written everything
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for data in _records(path.read_bytes()):
        record = wandb.proto.wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == kind:
            yield getattr(record, kind)


def values_of(items):
    named = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
    return {name: value for name, value in named.items() if not name.startswith("_")}


def rows_of(tmp_path):
    """The history of the run, each row as (W&B's number, values)."""
    return [(history.step.num, values_of(history.item)) for history in records_of(tmp_path, "history")]


def test_rows_of_a_loop_that_logs_nothing_else_are_all_there(profiler, run, tmp_path):
    """Each with the step that it is about; the summary is that of the last."""
    for step in (100, 200, 300):
        with profiler.time("load"):
            profiler.clock.advance(2.0)
        profiler.log_metrics(step)
    run.finish()
    counts = {row["profiling/step"]: row["profiling/load_count"] for _, row in rows_of(tmp_path)}
    assert counts == {100: 2, 200: 3, 300: 4}
    summary = {}
    for record in records_of(tmp_path, "summary"):
        summary |= values_of(record.update)
    assert summary["profiling/load_count"] == 4


def test_the_users_rows_keep_their_steps(profiler, run, tmp_path):
    """A user who logs by epochs loses no row, however often the profiler logs in between."""
    for epoch in (1, 2):
        for step in range(4):
            profiler.log_metrics(100 * epoch + step)
        run.log({"loss": 1.0 / epoch}, step=epoch)
    run.finish()
    rows = rows_of(tmp_path)
    assert [(number, row["loss"]) for number, row in rows if "loss" in row] == [(1, 1.0), (2, 0.5)]
    assert sorted(row["profiling/step"] for _, row in rows if "profiling/step" in row) == [
        *range(100, 104),
        *range(200, 204),
    ]


def test_a_row_is_part_of_the_users_next_one(profiler, run, tmp_path):
    """Where both log equally often, no row is added."""
    for step in (1, 2):
        profiler.log_metrics(step)
        run.log({"loss": 1.0})
    run.finish()
    assert [(number, sorted(row)) for number, row in rows_of(tmp_path)] == [
        (
            number,
            ["loss", *(f"profiling/load_{part}" for part in ("avg_time", "count", "total_time")), "profiling/step"],
        )
        for number in (0, 1)
    ]
