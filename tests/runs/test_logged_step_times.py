"""Step times over a run, and which of them say nothing of a step."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.runs.written import WrittenRun
from trackside.runs import StepTimes, open_run
from trackside.runs.logged_step_times import WARM_UP_STEPS


def write_steps(run: WrittenRun, first: int, last: int) -> WrittenRun:
    """A row every ten steps, each of as many milliseconds as its number."""
    for step in range(first, last + 1, 10):
        run.metrics(step, step_time=step / 1000, loss=1.0)
    return run


def times_with(folder: Path, kind: str = "", **event: Any) -> StepTimes:
    """The step times of a run of 100 steps in which something happened after step 50."""
    run = write_steps(WrittenRun(folder).leg(), 10, 50)
    if kind == "val":
        run.metrics(50, "val", loss=1.0)
    elif kind:
        run.write(kind, **event)
    write_steps(run, 60, 100)
    return open_run(folder).step_times


def steps_of(times: StepTimes, mask: np.ndarray) -> list[int]:
    return times.step[mask].tolist()


def test_intervals(tmp_path: Path) -> None:
    """An interval has its last step, its number of steps, its time per step and its moment."""
    times = times_with(tmp_path)
    assert times.step.tolist() == list(range(10, 101, 10))
    assert times.num_steps.tolist() == 10 * [10]
    assert times.seconds.tolist() == [step / 1000 for step in range(10, 101, 10)]
    assert times.t.tolist() == [1002.0 + index for index in range(10)]
    assert len(times) == 10


def test_first_steps_are_warm_up(tmp_path: Path) -> None:
    """The first steps of each leg are no clean ones, all others are."""
    assert WARM_UP_STEPS == 10
    run = write_steps(WrittenRun(tmp_path).leg(1), 10, 40)
    write_steps(run.leg(2, step=35), 40, 60)
    times = open_run(tmp_path).step_times
    assert times.num_steps.tolist() == [10, 10, 10, 5, 10, 10]
    assert steps_of(times, times.warm_up) == [10, 40, 50]
    assert steps_of(times, times.clean) == [20, 30, 60]


def test_a_test_at_the_end_disturbs_no_earlier_step(tmp_path: Path) -> None:
    """The row of a test has the step of the best model, and the time at which it was made."""
    run = write_steps(WrittenRun(tmp_path).leg(), 10, 60).metrics(30, "test", loss=1.0)
    write_steps(run, 70, 80)
    times = open_run(tmp_path).step_times
    assert not times.disturbed.any()


def test_rows_without_a_time_are_left_out(tmp_path: Path) -> None:
    """A row whose steps were all left out by the trainer is no interval."""
    write_steps(WrittenRun(tmp_path).leg().metrics(10, loss=1.0), 20, 40)
    assert open_run(tmp_path).step_times.step.tolist() == [20, 30, 40]


def test_compile(tmp_path: Path) -> None:
    """The interval in which something was compiled is marked; what was compiled before the first step marks none."""
    times = times_with(tmp_path / "a", "compile", step=51, function="train_step")
    assert steps_of(times, times.compiling) == [60]
    times = times_with(tmp_path / "b", "compile", step=None, function="init")
    assert steps_of(times, times.compiling) == []


def test_capture(tmp_path: Path) -> None:
    """All intervals from a capture's first step until it was written are disturbed."""
    times = times_with(tmp_path, "capture", first_step=41, last_step=45, disturbed_steps=[41, 72], path="x")
    assert steps_of(times, times.disturbed) == [50, 60, 70, 80]


def test_validation(tmp_path: Path) -> None:
    """The interval after a validation is disturbed."""
    times = times_with(tmp_path, "val")
    assert steps_of(times, times.disturbed) == [60]


def test_checkpoint(tmp_path: Path) -> None:
    """The intervals from a checkpoint's step until it was written are disturbed."""
    times = times_with(tmp_path, "checkpoint", step=30, path="x")
    assert steps_of(times, times.disturbed) == [40, 50, 60]


def test_a_run_that_always_saves(tmp_path: Path) -> None:
    """Where checkpoints are being written nearly all the time, only the steps right after each are left out."""
    run = WrittenRun(tmp_path).leg()
    for step in range(10, 201, 10):
        write_steps(run, step, step)
        if step % 50 == 40:
            run.write("checkpoint", step=step - 40)  # written long after its step
    times = open_run(tmp_path).step_times
    assert steps_of(times, times.disturbed) == [10, 60, 110, 160]
    assert len(steps_of(times, times.clean)) == 16


def test_no_training_rows(tmp_path: Path) -> None:
    """Without rows of training there are no times."""
    WrittenRun(tmp_path).leg().metrics(1, "val", loss=1.0)
    times = open_run(tmp_path).step_times
    assert len(times) == len(times.clean) == 0
