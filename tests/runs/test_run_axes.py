"""Time and examples of a run."""

from pathlib import Path

import numpy as np
import pytest

from tests.runs.written import WrittenRun
from trackside.runs import open_run
from trackside.runs.run_axes import RunAxes, time_unit_of


def test_pauses_between_legs_do_not_count() -> None:
    """Moments in a pause are at its beginning; those after it are earlier by its length."""
    axes = RunAxes(100.0, pauses=((110.0, 150.0), (160.0, 165.0)))
    assert axes.elapsed_s(np.array([105.0, 130.0, 155.0, 170.0])).tolist() == [5.0, 10.0, 15.0, 25.0]


@pytest.mark.parametrize("moment", [90.0, np.inf, -np.inf, np.nan])
def test_times_that_cannot_be(moment: float) -> None:
    """A clock that was set back, and damage, give no negative or infinite time."""
    assert RunAxes(100.0).elapsed_s(np.array([moment])).tolist() == [0.0]
    assert RunAxes(moment).elapsed_s(np.array([moment])).tolist() == [0.0]


def test_examples_over_legs(tmp_path: Path) -> None:
    """Each leg counts its own; what was trained after the step that the next one resumed from does not count."""
    run = WrittenRun(tmp_path).leg()
    run.ledger(100, 100, device_wait=1.0)  # 8 examples per step
    run.leg(2, 50)
    run.write("ledger", step=60, num_samples=10 * 32, num_steps=10, wall_s=1.0, parts={})
    axes = open_run(tmp_path).axes
    assert axes.counts_examples
    assert axes.examples(np.array([0, 25, 50, 60, 70])).tolist() == [0, 200, 400, 720, 1040]


def test_leg_that_resumed_after_the_last_count(tmp_path: Path) -> None:
    """A checkpoint later than the last row of a killed leg: steps between them have as many examples as before."""
    run = WrittenRun(tmp_path).leg()
    run.ledger(100, 100, device_wait=1.0)
    run.leg(2, 120)
    run.ledger(130, 10, device_wait=1.0)
    assert open_run(tmp_path).axes.examples(np.array([120, 130])).tolist() == [960, 1040]


def test_examples_that_were_not_counted(tmp_path: Path) -> None:
    """A run without counts says so."""
    run = WrittenRun(tmp_path).leg().metrics(1, loss_mean=1.0)
    run.write("ledger", step=10, num_samples=0, num_steps=10, wall_s=1.0, parts={})
    assert not open_run(tmp_path).axes.counts_examples


@pytest.mark.parametrize(
    ("longest_s", "unit"), [(0.0, "seconds"), (119.0, "seconds"), (130.0, "minutes"), (1e5, "hours")]
)
def test_units(longest_s: float, unit: str) -> None:
    """An axis of time has few digits."""
    assert time_unit_of(longest_s)[1] == unit
