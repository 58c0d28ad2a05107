"""Step times of loops that log nothing of their training."""

from pathlib import Path

import pytest

import trackside
from tests.measured_run.own_loops import make_loader, open_run_of, rows_of, step_of, weights
from trackside.clock import ManualClock
from trackside.measured_run import MeasuredRun
from trackside.run_layout import event_file_name

STEP_S = 0.25


def train(run: MeasuredRun, clock: ManualClock, num_steps: int, **logged: float) -> None:
    """A loop whose steps take a quarter of a second; the numbers are logged in a validation."""
    step, state = run.step(step_of(donates=False)), weights()
    for batch in make_loader(num_steps):
        state, loss = step(state, batch)
        loss.block_until_ready()
        clock.advance(STEP_S)
    if logged:
        with run.part("validation"):
            run.log(logged)


@pytest.mark.parametrize("logged", [{}, {"loss": 1.0}])
def test_a_loop_that_logs_nothing_has_step_times(tmp_path: Path, logged: dict[str, float]) -> None:
    """Readers find them, also where only a validation is logged."""
    clock = ManualClock()
    with open_run_of(tmp_path / "run", clock) as run:
        train(run, clock, 40, **logged)
    rows = rows_of(run, "metrics", mode="train")
    assert rows[-1]["step"] == 40
    assert all(set(row["values"]) == {"epoch", "step_time"} for row in rows)
    assert rows[5]["values"]["step_time"] == pytest.approx(STEP_S)
    assert (tmp_path / "run" / event_file_name(0)).exists()
    assert trackside.open_run(tmp_path / "run").step_times.median_s == pytest.approx(STEP_S)


def test_a_long_run_has_few_such_rows(tmp_path: Path) -> None:
    """Rows come less often the longer the run takes."""
    clock = ManualClock()
    with open_run_of(tmp_path / "run", clock) as run:
        clock.advance(2000.0)
        train(run, clock, 200)
    assert len(rows_of(run, "metrics", mode="train")) < 10


def test_a_loop_that_logs_has_its_own_rows_only(tmp_path: Path) -> None:
    """Nothing is added to what a loop logs of its training."""
    clock = ManualClock()
    with open_run_of(tmp_path / "run", clock) as run:
        run.log(loss=3.0)
        train(run, clock, 20)
    assert [row["step"] for row in rows_of(run, "metrics", mode="train")] == [0]
