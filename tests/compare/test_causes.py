"""What changed: each cause is provoked by a pair of real captures or trainings that differ in that one thing."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compare.pairs import capture_chain, capture_step, train
from trackside.callbacks import JAXProfiler, ProfilingConfig
from trackside.compare import Cause, compare_runs
from trackside.compare.disturbance import StepSeries
from trackside.compare.run_causes import run_causes
from trackside.compare.sides import Side
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.run_layout import event_file_name

pytestmark = pytest.mark.usefixtures("no_compile_cache")


def causes_of(before: Path, after: Path) -> dict[str, Cause]:
    # Tests run in a repository that may hold changes, which is no concern of theirs.
    return {cause.id: cause for cause in compare_runs(before, after).causes if cause.id != "code_changed"}


def rewrite_environment(source: Path, target: Path, **fields: object) -> Path:
    """The same run as if it had been made elsewhere: no second machine is at hand."""
    target.mkdir()
    lines = (source / event_file_name(0)).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    rows = [{**row, **fields} if row["kind"] == "environment" else row for row in rows]
    (target / event_file_name(0)).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return target


def test_the_same_program_has_no_cause(step_capture: Path, tmp_path: Path) -> None:
    """Two captures of one program name nothing."""
    assert causes_of(step_capture, capture_step(tmp_path / "after")) == {}


def test_an_added_scope_is_named(step_capture: Path, tmp_path: Path) -> None:
    """A layer more is named by its scope, with the device time that it takes."""
    found = causes_of(step_capture, capture_step(tmp_path / "after", has_extra_scope=True))
    assert found["scope_added"].subject == "extra"
    assert (found["scope_added"].change_s or 0.0) > 0


def test_a_removed_scope_is_named(step_capture: Path, tmp_path: Path) -> None:
    """What is missing in the second program is named, and counts as time less."""
    found = causes_of(capture_step(tmp_path / "before", has_extra_scope=True), step_capture)
    assert found["scope_removed"].subject == "extra"
    assert (found["scope_removed"].change_s or 0.0) < 0


def test_another_type_is_named(step_capture: Path, tmp_path: Path) -> None:
    """An encoder that computes in bfloat16 is told by its scope and both types."""
    found = causes_of(step_capture, capture_step(tmp_path / "after", dtype=jnp.bfloat16))
    assert "encoder" in found["dtype_changed"].title
    assert found["dtype_changed"].evidence["before"] == "f32"
    assert "bf16" in str(found["dtype_changed"].evidence["after"])


def test_a_split_fusion_is_named(tmp_path: Path) -> None:
    """The same operations in more kernels are a fusion that was split, named by scope with both numbers."""
    whole, split = capture_chain(tmp_path / "whole"), capture_chain(tmp_path / "split", is_interrupted=True)
    cause = causes_of(whole, split)["fusion_split"]
    assert cause.subject == "activation"
    assert (cause.evidence["kernels_before"], cause.evidence["kernels_after"]) == (1, 2)
    assert "fusion_merged" in causes_of(split, whole)


def test_more_recompiles_are_named_with_the_argument(plain_run: Path, tmp_path: Path) -> None:
    """A run whose batches change their size is told by the function, how often it compiled, and the argument."""
    cause = causes_of(plain_run, train(tmp_path / "ragged", batch_sizes=(8, 7)))["more_recompiles"]
    assert cause.subject == "train_step"
    assert (cause.evidence["compiles_before"], cause.evidence["compiles_after"]) == (1, 2)
    assert "batch.inputs shape (8, 4) -> (7, 4)" in cause.title


def test_more_recompiles_account_for_what_they_add() -> None:
    """The time that a cause accounts for is what was compiled beyond the first run, over the steps of the ledger."""
    row = {"function": "train_step", "trace_s": 0.5, "lower_s": 0.5, "compile_s": 2.0}
    steps = StepSeries("run", np.zeros(0), np.zeros(0, np.int64))
    ledger = LedgerTotals(wall_s=20.0, parts={}, num_steps=100)
    before = Side("before", "before", "run", steps, compiles=[row])
    after = Side("after", "after", "run", steps, num_steps=5000, ledger=ledger, compiles=[row, row, row])
    (cause,) = run_causes(before, after)
    assert cause.change_s == pytest.approx((9.0 - 3.0) / 100)
    assert cause.evidence["compile_time_before_s"] == pytest.approx(3.0)
    assert cause.evidence["compile_time_after_s"] == pytest.approx(9.0)


def test_another_batch_size_is_named(plain_run: Path, tmp_path: Path) -> None:
    """A step with other examples is told by both numbers, and steps are compared by the example."""
    comparison = compare_runs(plain_run, train(tmp_path / "large", batch_sizes=(16,)))
    cause = next(cause for cause in comparison.causes if cause.id == "batch_size_changed")
    assert (cause.evidence["examples_before"], cause.evidence["examples_after"]) == (8, 16)
    assert comparison.step_time.per == "example"


def test_more_work_is_named(measured_run: Path, tmp_path: Path) -> None:
    """Twice the examples are twice the FLOPs, told from the captures of both runs."""
    profiler = JAXProfiler(ProfilingConfig(log_dir=str(tmp_path / "traces"), start_step=5, end_step=8, on_demand=False))
    larger = train(tmp_path / "run", batch_sizes=(16,), num_steps=10, callbacks=[profiler])
    cause = causes_of(measured_run, larger)["work_changed"]
    assert cause.evidence["change_share"] == pytest.approx(1.0)
    assert "100 % more FLOPs" in cause.title


def test_a_config_value_is_named(plain_run: Path, tmp_path: Path) -> None:
    """A value that differs is told by its path and both values; where the runs were written to is not."""
    evidence = causes_of(plain_run, train(tmp_path / "other", lr=0.05))["config_changed"].evidence
    assert evidence == {"optimizer.scheduler.lr": "0.1 -> 0.05"}


def test_runs_alike_have_no_cause(plain_run: Path, tmp_path: Path) -> None:
    """Two runs of one training in different folders name nothing, also if one of them would have resumed."""
    assert causes_of(plain_run, train(tmp_path / "again", resume="auto")) == {}


def test_another_version_is_named(plain_run: Path, tmp_path: Path) -> None:
    """Another version of jax is told with both versions."""
    other = rewrite_environment(plain_run, tmp_path / "other", versions={"jax": "0.9.0"})
    assert causes_of(other, plain_run)["versions_changed"].evidence["jax"] == f"0.9.0 -> {jax.__version__}"


def test_another_device_is_named(plain_run: Path, tmp_path: Path) -> None:
    """Other devices are told with both."""
    other = rewrite_environment(plain_run, tmp_path / "other", backend="gpu", devices=["cuda:0"])
    assert causes_of(plain_run, other)["device_changed"].evidence["backend"] == "cpu -> gpu"


def test_another_commit_is_named(plain_run: Path, tmp_path: Path) -> None:
    """Another commit is told with both."""
    first = rewrite_environment(plain_run, tmp_path / "first", git={"commit": "a" * 40, "dirty": False})
    second = rewrite_environment(plain_run, tmp_path / "second", git={"commit": "b" * 40, "dirty": False})
    cause = next(cause for cause in compare_runs(first, second).causes if cause.id == "code_changed")
    assert cause.evidence["commit"] == "aaaaaaaaa -> bbbbbbbbb"


def test_another_loader_is_named(plain_run: Path, tmp_path: Path) -> None:
    """Both loaders are named, and one that only one of the runs has."""
    loaders = {"train": {"kind": "grain DataLoader", "num_workers": 4}, "val": {"kind": "list", "length": 5}}
    other = rewrite_environment(plain_run, tmp_path / "other", loaders=loaders)
    causes = [cause for cause in compare_runs(plain_run, other).causes if cause.id == "loader_changed"]
    assert causes[0].title.startswith("train loader: list of ")
    assert causes[0].title.endswith(" -> grain DataLoader, 4 workers")
    assert causes[1].title == "val loader: none -> list of 5 batches"
    assert list(causes[0].to_dict()["evidence"]) == ["train loader"]


def test_a_run_that_does_not_say_what_its_loaders_are_names_none(plain_run: Path, tmp_path: Path) -> None:
    """As those of earlier versions: what is not known has not changed."""
    other = rewrite_environment(plain_run, tmp_path / "other", loaders=None)
    assert "loader_changed" not in causes_of(plain_run, other)
