"""Loops of the user's own whose steps are fused: measured step by step, as if they were single ones."""

import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trackside
from tests.measured_run.own_loops import make_loader, open_run_of, rows_of, step_of, weights
from trackside.callbacks import ProfilingConfig
from trackside.clock import SYSTEM_CLOCK
from trackside.errors import ConfigError
from trackside.measured_run import MeasuredRun

NUM_STEPS = 4


def train(run: MeasuredRun, loader: Any, num_epochs: int = 1) -> np.ndarray:
    step, state = run.step(trackside.fuse_steps(step_of(donates=False), NUM_STEPS)), weights()
    for _ in range(num_epochs):
        for batches in run.batches(loader, steps_per_call=NUM_STEPS):
            state, losses = step(state, batches)
            run.log(loss=losses)
    return np.asarray(state)


def losses_of(run: MeasuredRun) -> dict[int, float]:
    return {
        row["step"]: row["values"]["loss"] for row in rows_of(run, "metrics", mode="train") if "loss" in row["values"]
    }


@pytest.mark.parametrize("num_batches", [4, 9, 11])
def test_rows_and_counts_are_those_of_single_steps(tmp_path: Path, num_batches: int) -> None:
    """Every step has its row, also those of a last list of fewer, and every example counts once."""
    with open_run_of(tmp_path / "fused") as fused:
        found = train(fused, make_loader(num_batches), num_epochs=2)
    with open_run_of(tmp_path / "single") as single:
        step, state = single.step(step_of()), weights()
        for _ in range(2):
            for batch in single.batches(make_loader(num_batches)):
                state, loss = step(state, batch)
                single.log(loss=loss)
    np.testing.assert_allclose(found, state, rtol=1e-6)
    assert list(losses_of(fused)) == list(range(1, 2 * num_batches + 1))
    assert losses_of(fused) == pytest.approx(losses_of(single))
    assert fused.num_steps == fused.ledger_totals.num_steps == 2 * num_batches
    assert fused.ledger_totals.num_samples == single.ledger_totals.num_samples
    epochs = [[row["epoch"] for row in rows_of(run, "metrics", mode="train_epoch")] for run in (fused, single)]
    assert epochs[0] == epochs[1]


def test_the_step_compiles_once(tmp_path: Path) -> None:
    """A remainder is no recompile; a smaller last batch is one, explained by the batch alone."""
    loader = [*make_loader(6), tuple(leaf[:2] for leaf in make_loader(1)[0])]
    with open_run_of(tmp_path / "run") as run:
        train(run, loader, num_epochs=2)
    first, second = (row for row in rows_of(run, "compile") if row["function"] == "train_step")
    assert not first["changes"]
    assert {change["path"].split("[")[0] for change in second["changes"]} == {"batch"}
    assert {change["kind"] for change in second["changes"]} == {"shape"}


@pytest.mark.usefixtures("fresh_compiles")
def test_a_capture_has_the_steps_of_its_calls(tmp_path: Path) -> None:
    """It begins and ends between calls, and knows the program."""
    window = ProfilingConfig(log_dir=str(tmp_path / "profiles"), start_step=4, end_step=12)
    with open_run_of(tmp_path / "run", clock=SYSTEM_CLOCK, callbacks=[window]) as run:
        train(run, make_loader(16))
    (row,) = rows_of(run, "capture")
    assert (row["first_step"], row["last_step"], row["error"]) == (5, 12, "")
    assert row["report"]["step_program"].startswith("jit_train_step")


def test_flops_are_those_of_the_steps(tmp_path: Path) -> None:
    """As many for a step as in a loop of single ones."""
    jitted = jax.jit(lambda state, batch: (state - batch[0].T @ (batch[0] @ state), state.sum()))
    found = []
    for given, options in ((jitted, {}), (trackside.fuse_steps(jitted, NUM_STEPS), {"steps_per_call": NUM_STEPS})):
        with open_run_of(tmp_path / str(len(found))) as run:
            step, state = run.step(given), weights()
            for batch in run.batches(make_loader(6), **options):
                state, _ = step(state, batch)
        found.append(run._book._measurements.flops_per_step())
    assert found[0]
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "auto"])
def test_sizes_of_lists_are_checked(tmp_path: Path, value: Any) -> None:
    """The error names the argument and the value."""
    with open_run_of(tmp_path / "run") as run, pytest.raises(ConfigError, match=rf"steps_per_call.*{value!r}"):
        run.batches(make_loader(1), steps_per_call=value)


def test_a_number_that_contradicts_is_refused(tmp_path: Path) -> None:
    """How many steps a call makes is known."""
    fused = trackside.fuse_steps(step_of(), 4)
    with open_run_of(tmp_path / "run") as run, pytest.raises(ConfigError, match=r"steps_per_call=8.*up to 4"):
        run.step(fused, steps_per_call=8)


def test_several_runs_measure_one_function(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was fused once may be used in the next run, without compiling again."""
    fused = trackside.fuse_steps(step_of(donates=False), NUM_STEPS)
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            with open_run_of(tmp_path / name) as run:
                step, state = run.step(fused), weights()
                for batches in run.batches(make_loader(8), steps_per_call=NUM_STEPS):
                    state, _ = step(state, batches)
    assert run.num_steps == 8
    assert "train_step" not in [row["function"] for row in rows_of(run, "compile")]
    assert not caplog.records
