"""The times of phases, from traces in which operations wait for each other and for other programs."""

import pytest

from tests.trace.synthetic import STEP_PROGRAM, PlaneWriter, cpu_op, metadata_plane, space
from trackside.trace.analyse import read_analysis
from trackside.trace.undisturbed_phases import UndisturbedPhases, undisturbed_phases

PROGRAMS = metadata_plane({7: ("jit_step", STEP_PROGRAM)})
NUM_STEPS = 10


def phases_of(*steps: tuple[tuple[int, int], tuple[int, int]]) -> UndisturbedPhases:
    """Of steps with a backward product and an update, each given by its start and its end in nanoseconds."""
    plane = PlaneWriter("/host:CPU")
    for run, step in enumerate(steps):
        began = 10_000 * run
        for line, (op, (start, end)) in enumerate(zip(("dot.2", "add.3"), step, strict=True)):
            cpu_op(plane, f"tf_XLAEigen/{line}", op, began + start, end - start, run_id=run)
    found = undisturbed_phases(read_analysis(space(PROGRAMS, plane), program="jit_step"))
    assert found is not None
    return found


def loss_share(times: dict[str, float]) -> float:
    return times["backward"] / sum(times.values())


def test_without_disturbance_both_are_the_time_of_the_operations():
    """A product of 60 ns and an update of 40."""
    found = phases_of(*[((0, 60), (60, 100))] * NUM_STEPS)
    assert (loss_share(found.work_s), loss_share(found.wall_s)) == pytest.approx((0.6, 0.6))
    assert found.num_in_progress == pytest.approx(1.0)


def test_waiting_for_an_operation_of_the_step_does_not_count():
    """A product that takes 10 ns, and in most steps waits for the update's 90 in addition, is a tenth of the step."""
    alone, waiting = ((0, 10), (10, 100)), ((0, 100), (0, 90))
    found = phases_of(*[waiting] * (NUM_STEPS - 2), *[alone] * 2)
    assert loss_share(found.work_s) == pytest.approx(0.1)
    assert loss_share(found.wall_s) < 0.25  # shared evenly, it would be more than half
    assert found.num_in_progress > 1.5


def test_a_core_that_is_taken_away_does_not_count():
    """A step in which the product was interrupted for long is not among the fastest."""
    undisturbed, interrupted = ((0, 60), (60, 100)), ((0, 960), (960, 1000))
    found = phases_of(*[undisturbed, interrupted] * (NUM_STEPS // 2))
    assert (loss_share(found.work_s), loss_share(found.wall_s)) == pytest.approx((0.6, 0.6))


def test_what_slows_all_operations_alike_changes_nothing():
    """However long the steps are."""
    found = phases_of(*[((0, 60 * factor), (60 * factor, 100 * factor)) for factor in range(1, NUM_STEPS)])
    assert (loss_share(found.work_s), loss_share(found.wall_s)) == pytest.approx((0.6, 0.6))


def test_nothing_executed_gives_nothing():
    """A window without any execution has no phases."""
    plane = PlaneWriter("/host:CPU")
    plane.event("python", "train", 0, 5, step_num=1)
    assert undisturbed_phases(read_analysis(space(PROGRAMS, plane))) is None
