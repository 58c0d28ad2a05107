"""A function of the user's that makes several steps in a call counts, and is logged, as as many steps."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trackside
from tests.measured_run.own_loops import make_loader, open_run_of, rows_of, step_of, weights
from trackside.callbacks import JaxProfilerConfig
from trackside.clock import ManualClock
from trackside.errors import MetricError
from trackside.measured_run import MeasuredRun

NUM_STEPS = 4


def scan_of() -> Any:
    """A jitted function that makes a step with each of the stacked batches, and gives their losses."""
    step = step_of(donates=False)
    return jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))


def stacks(number: int = 3) -> list[tuple[np.ndarray, ...]]:
    """Batches of three examples, stacked by four."""
    stack = tuple(np.stack(leaves) for leaves in zip(*make_loader(NUM_STEPS), strict=True))
    return [stack] * number


def losses_of(run: MeasuredRun) -> dict[int, float]:
    return {
        row["step"]: row["values"]["loss"] for row in rows_of(run, "metrics", mode="train") if "loss" in row["values"]
    }


def test_a_vector_of_losses_is_a_row_for_each_step(tmp_path: Path) -> None:
    """Rows have the steps and the values that a loop of single steps has."""
    with trackside.run(tmp_path / "scan") as scanned:
        scan, state = scanned.step(scan_of(), steps_per_call=NUM_STEPS), weights()
        for batch in scanned.batches(stacks()):
            state, losses = scan(state, batch)
            scanned.log(loss=losses)
    with trackside.run(tmp_path / "single") as single:
        step, state = single.step(step_of()), weights()
        for batch in make_loader(NUM_STEPS) * 3:
            state, loss = step(state, batch)
            single.log(loss=loss)
    assert list(losses_of(scanned)) == list(range(1, 13))
    assert losses_of(scanned) == pytest.approx(losses_of(single))
    assert scanned.num_steps == scanned.ledger_totals.num_steps == 12
    assert scanned.ledger_totals.num_samples == 36


@pytest.mark.parametrize("num_left", [1, 3])
def test_a_last_stack_of_fewer_batches_makes_fewer_steps(tmp_path: Path, num_left: int) -> None:
    """Steps, rows and examples are those of the batches that there were."""
    rest = tuple(leaf[:num_left] for leaf in stacks(1)[0])
    with open_run_of(tmp_path / "run") as run:
        scan, state = run.step(scan_of(), steps_per_call=NUM_STEPS), weights()
        for batch in run.batches([*stacks(2), rest]):
            state, losses = scan(state, batch)
            run.log(loss=losses)
    num_steps = 2 * NUM_STEPS + num_left
    assert list(losses_of(run)) == list(range(1, num_steps + 1))
    assert (run.num_steps, run.ledger_totals.num_steps) == (num_steps, num_steps)
    assert run.ledger_totals.num_samples == 3 * num_steps


def test_a_smaller_batch_that_is_no_stack_changes_no_steps(tmp_path: Path) -> None:
    """A call that goes over one batch several times makes as many steps with a smaller one."""
    step = step_of(donates=False)

    def repeat(state: Any, batch: Any) -> Any:
        for _ in range(3):
            state, loss = step(state, batch)
        return state, loss

    batch = make_loader(1)[0]
    with open_run_of(tmp_path / "run") as run:
        made, state = run.step(jax.jit(repeat), steps_per_call=3), weights()
        for given in run.batches([batch, tuple(leaf[:2] for leaf in batch)]):
            state, _ = made(state, given)
    assert run.num_steps == 6


def test_one_number_belongs_to_the_last_step_and_logs_add_up(tmp_path: Path) -> None:
    """Values for each step, and one for the call, are in the same rows though they were logged apart."""
    with open_run_of(tmp_path / "run") as run:
        scan = run.step(scan_of(), steps_per_call=NUM_STEPS)
        _, losses = scan(weights(), stacks()[0])
        run.log(loss=losses)
        run.log(doubled=2 * losses, lr=0.5)
    rows = rows_of(run, "metrics", mode="train")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["values"]["doubled"] for row in rows] == pytest.approx([2 * float(loss) for loss in losses])
    assert ["lr" in row["values"] for row in rows] == [False, False, False, True]


def test_every_counts_steps_and_not_calls(tmp_path: Path) -> None:
    """Of calls of four steps, every third step is logged; one number, after each call that has such a step."""
    with open_run_of(tmp_path / "run") as run:
        scan, state = run.step(scan_of(), steps_per_call=NUM_STEPS), weights()
        for batch in run.batches(stacks()):
            state, losses = scan(state, batch)
            run.log(loss=losses, every=3)
            run.log(lr=0.5, every=8)
    assert list(losses_of(run)) == [3, 6, 9, 12]
    rows = rows_of(run, "metrics", mode="train")
    assert [row["step"] for row in rows if "lr" in row["values"]] == [8]


def test_a_step_that_is_not_finite_is_named(tmp_path: Path) -> None:
    """The row of the step says so, and not that of the call's last."""
    with open_run_of(tmp_path / "run") as run:
        run.step(lambda: jnp.zeros(NUM_STEPS), steps_per_call=NUM_STEPS, name="scan")()
        run.log(loss=jnp.array([1.0, np.nan, 1.0, 1.0]))
    assert [row["step"] for row in rows_of(run, "non_finite")] == [2]


@pytest.mark.parametrize("size", [NUM_STEPS - 1, NUM_STEPS + 1])
def test_other_vectors_are_errors(size: int) -> None:
    """An array of another length than the call has steps is no number for each."""
    with open_run_of() as run:
        run.step(lambda: jnp.zeros(()), steps_per_call=NUM_STEPS, name="scan")()
        with pytest.raises(MetricError, match="not one number"):
            run.log(loss=jnp.zeros(size))


def test_logged_step_times_are_those_of_the_steps(tmp_path: Path) -> None:
    """The steps of a call share its time."""
    clock = ManualClock(start=1.0)

    def scan() -> np.ndarray:
        clock.advance(0.4)
        return np.zeros(NUM_STEPS)

    with open_run_of(tmp_path / "run", clock=clock) as run:
        step = run.step(scan, steps_per_call=NUM_STEPS)
        for _ in range(6):
            run.log(loss=step())
    assert run._meter.step_times.median_s() == pytest.approx(0.1)
    times = [row["values"]["step_time"] for row in rows_of(run, "metrics", mode="train")]
    assert times[NUM_STEPS:] == pytest.approx([0.1] * (5 * NUM_STEPS))


def test_batches_of_one_example_are_not_taken_for_a_stack() -> None:
    """A loop that stacks batches itself has counted their examples."""
    with open_run_of() as run:
        scan, loader = run.step(scan_of(), steps_per_call=NUM_STEPS), make_loader(NUM_STEPS, batch_size=1)
        scan(weights(), tuple(np.stack(leaves) for leaves in zip(*run.batches(loader), strict=True)))
    assert run.ledger_totals.num_samples == NUM_STEPS


def test_stacked_tokens_are_counted() -> None:
    """The tokens of a stack are those of its sequences."""
    with open_run_of() as run:
        step = run.step(jax.jit(lambda tokens: tokens.sum((1, 2))), steps_per_call=NUM_STEPS, name="scan")
        for tokens in run.batches([np.ones((NUM_STEPS, 3, 5), np.int32)] * 2):
            step(tokens)
    assert run.ledger_totals.num_tokens == 2 * NUM_STEPS * 3 * 5


def test_flops_of_a_step_are_a_share_of_the_call() -> None:
    """Calls of several steps and single ones have the same FLOPs per step."""
    with open_run_of() as run:
        run.step(scan_of(), steps_per_call=NUM_STEPS)(weights(), stacks()[0])
    with open_run_of() as single:
        single.step(step_of())(weights(), make_loader()[0])
    flops = single._book._measurements.flops_per_step()
    assert flops
    assert run._book._measurements.flops_per_step() == pytest.approx(flops)


def test_captures_count_steps(tmp_path: Path) -> None:
    """A capture begins and ends between two calls, and knows how many steps they made."""
    config = JaxProfilerConfig(profile_first_step=4, profile_n_steps=NUM_STEPS, profile_every_n_minutes=-1)
    with trackside.run(tmp_path / "run", callbacks=[config]) as run:
        scan, state = run.step(scan_of(), steps_per_call=NUM_STEPS), weights()
        for batch in run.batches(stacks(5)):
            state, losses = scan(state, batch)
            run.log(loss=losses)
    (captured,) = rows_of(run, "capture")
    assert captured["report"]["num_steps"] == NUM_STEPS
