"""A run in figures: what is in `summary.json`, for runs that ended well, died, or say little."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tests.cli.tiny_run import NUM_EPOCHS, STEPS_PER_EPOCH, train_run
from trackside.events import EventWriter
from trackside.report import RunSummary, summarise_run
from trackside.report.compile_summary import summarise_compiles
from trackside.report.memory_summary import summarise_memory
from trackside.report.scope_summary import summarise_scopes
from trackside.report.step_time import summarise_step_times
from trackside.run_layout import event_file_name
from trackside.runs import StepTimes, open_run

DOCUMENTATION = Path(__file__).parent.parent.parent / "docs" / "report.md"


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """The figures of a real run."""
    return summarise_run(open_run(train_run(tmp_path_factory.mktemp("report") / "tiny")))


def test_run_is_named_and_placed(summary: RunSummary) -> None:
    """Name, status and progress are those of the training."""
    assert (summary.name, summary.status, summary.is_finished) == ("tiny", "success", True)
    assert (summary.step, summary.epoch) == (NUM_EPOCHS * STEPS_PER_EPOCH, NUM_EPOCHS)
    assert summary.ended_at > summary.started_at
    assert summary.problems == []


def test_ledger_accounts_for_all_time(summary: RunSummary) -> None:
    """The parts of the ledger sum up to the whole."""
    assert summary.ledger is not None
    assert sum(summary.ledger.parts.values()) == pytest.approx(summary.ledger.wall_s)


def test_steps_are_clean_or_left_out(summary: RunSummary) -> None:
    """Each step is counted once: among the clean ones, or with the reason why it is not."""
    times = summary.step_time
    assert times is not None
    assert times.num_steps + times.num_left_out == summary.step
    assert times.num_left_out == sum(times.left_out.values())
    assert times.p50_s <= times.p95_s <= times.p99_s


def test_recompile_names_the_argument(summary: RunSummary) -> None:
    """The last batch has another shape, for which the step compiled again."""
    (recompile,) = summary.compiles.recompiles
    assert recompile.function == "train_step"
    assert recompile.step == STEPS_PER_EPOCH
    assert recompile.changes[0]["path"] == "batch.inputs"
    assert (recompile.changes[0]["old"], recompile.changes[0]["new"]) == ("(8, 4)", "(4, 4)")
    assert summary.compiles.num_compiles > summary.compiles.num_recompiles == 1


def test_scopes_sum_to_the_whole(summary: RunSummary) -> None:
    """The rows of the capture's table hold all of the busy time, and say which steps they are of."""
    scopes = summary.scopes
    assert scopes is not None
    assert (scopes.first_step, scopes.last_step) == (11, 14)
    assert sum(row.share for row in scopes.scopes) == pytest.approx(1)
    assert sum(scopes.phases.values()) == pytest.approx(1)


def test_memory_has_owners(summary: RunSummary) -> None:
    """The memory profiler's samples give the host's peak and the live arrays by owner."""
    assert summary.memory is not None
    assert summary.memory.host_peak_bytes is not None
    assert summary.memory.owners["params"] > 0
    assert "num_arrays" not in summary.memory.owners


def test_best_metric_is_the_lowest_validation_loss(summary: RunSummary) -> None:
    """Without a monitor, the best metric is the lowest validation loss."""
    assert summary.best is not None
    assert summary.best.label == "val_loss"
    assert summary.best.value <= summary.best.last
    assert summary.last_metrics["val"]["loss"] == summary.best.last


def test_summary_becomes_json(summary: RunSummary, tmp_path: Path) -> None:
    """The file is JSON that every parser reads, with each field and the version of its form."""
    plain = json.loads(summary.write(tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert plain["format"] == "trackside.summary/1"
    assert set(plain) == {"format", *(field.name for field in fields(RunSummary))}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_every_field_is_documented() -> None:
    """docs/report.md describes each field of summary.json."""
    text = DOCUMENTATION.read_text()
    assert [field.name for field in fields(RunSummary) if f"`{field.name}`" not in text] == []


def test_run_that_says_little_has_a_summary(tmp_path: Path) -> None:
    """A run that died before its first step has no figures, and none is made up."""
    writer = EventWriter(tmp_path / event_file_name(0))
    writer.write("environment", hostname="somewhere")
    writer.close()
    summary = summarise_run(open_run(tmp_path))
    assert (summary.status, summary.step) == ("dead", 0)
    for name in ("ledger", "step_time", "best", "scopes", "memory", "goodput", "goal"):
        assert getattr(summary, name) is None
    assert summary.to_dict()["compiles"]["num_compiles"] == 0


def test_value_that_is_not_finite_is_null(tmp_path: Path) -> None:
    """An infinite loss has no place in JSON: it is null there."""
    writer = EventWriter(tmp_path / event_file_name(0))
    writer.write_metrics({"loss": float("inf")}, step=1, epoch=1, mode="val")
    writer.close()
    assert summarise_run(open_run(tmp_path)).to_dict()["last_metrics"] == {"val": {"loss": None}}


def make_times(seconds: list[float], num_steps: list[int], **masks: list[bool]) -> StepTimes:
    none = [False] * len(seconds)
    marked = {name: np.array(masks.get(name, none)) for name in ("warm_up", "compiling", "disturbed")}
    return StepTimes(np.cumsum(num_steps), np.array(num_steps), np.array(seconds), np.zeros(len(seconds)), **marked)


def test_percentiles_count_steps_and_not_rows() -> None:
    """A row over ninety steps weighs ninety times as much as a row over one."""
    times = summarise_step_times(make_times([0.001, 0.1], [90, 10]))
    assert times is not None
    assert (times.p50_s, times.p95_s) == (0.001, 0.1)
    assert times.mean_s == pytest.approx(0.0109)


def test_left_out_steps_have_one_reason_each() -> None:
    """A step that compiled during warm-up is counted once; steps that no row tells of are counted too."""
    masks = {"warm_up": [True, True, False], "compiling": [True, False, False]}
    times = summarise_step_times(make_times([1.0, 1.0, 0.5], [2, 3, 5], **masks), num_steps=12)
    assert times is not None
    assert times.left_out == {"compiling": 2, "warm_up": 3, "not_timed": 2}
    assert (times.num_steps, times.num_left_out) == (5, 7)


def test_no_clean_step_no_percentiles() -> None:
    """Where every step was disturbed, there is no step time."""
    assert summarise_step_times(make_times([1.0], [1], disturbed=[True])) is None


def test_single_operations_are_no_programs() -> None:
    """Operations outside of functions compile by the hundred, and are left out."""
    rows = [
        {"function": "step", "trace_s": 0.5, "lower_s": 0.0, "compile_s": 1.0, "cache": "hit"},
        {"function": "add", "trace_s": 0.0, "lower_s": 0.0, "compile_s": 1.0, "is_operation": True},
    ]
    compiles = summarise_compiles(rows)
    assert (compiles.num_compiles, compiles.seconds) == (1, 1.5)
    assert compiles.functions[0].num_cached == 1


def test_peak_of_a_device_is_that_of_all_samples() -> None:
    """The highest peak counts, with what the device has."""
    rows = [
        {"step": step, "memory": {"gpu:0": {"peak_bytes_in_use": peak, "bytes_limit": 9}}}
        for step, peak in ((1, 5), (2, 3))
    ]
    memory = summarise_memory(
        rows, [{"name": "host memory", "bytes_per_step": 1}, {"name": "host memory", "bytes_per_step": 2}]
    )
    assert memory is not None
    assert (memory.devices["gpu:0"].peak_bytes, memory.devices["gpu:0"].limit_bytes) == (5, 9)
    assert [leak["bytes_per_step"] for leak in memory.leaks] == [2]


def test_failed_capture_is_passed_over() -> None:
    """A capture without tables says nothing of scopes."""
    assert summarise_scopes([{"session": "a", "report": None, "error": "disk full"}]) is None
