"""Runs of which the fastest steps are not undisturbed ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.compare.series import step_series
from trackside.compare.disturbance import StepSeries, support
from trackside.compare.sides import read_side
from trackside.compare.undisturbed_step import StepTimeChange, compare_step_times
from trackside.events import EventWriter
from trackside.profiling.processor_use import ProcessorUse
from trackside.run_layout import event_file_name
from trackside.runs import open_run


def compare(before: StepSeries, after: StepSeries) -> StepTimeChange:
    return compare_step_times(before, after, np.random.default_rng(0))


def run(seed: int, true_s: float = 1e-3, processors: ProcessorUse | None = None, name: str = "run") -> StepSeries:
    """Steps of a machine that is hardly disturbed."""
    steps = step_series(np.random.default_rng(seed), true_s=true_s, num_steps=1500, noise=0.05, name=name)
    return replace(steps, processors=processors)


def use(own: float, other: float, number: int = 2) -> ProcessorUse:
    return ProcessorUse(10.0, 10.0 * own, 10.0 * other, number)


def test_support_is_the_share_of_stretches_about_as_fast():
    """Apart from the fastest ones themselves, which a short run would consist of."""
    assert support(np.array([1.0, 1.05, 1.09, 1.2, 1.3]), fastest=1.05, rank=1) == pytest.approx(2 / 5)
    assert support(np.array([1.0, 1.3, 1.6, 2.0]), fastest=1.0, rank=0) == pytest.approx(1 / 4)


def test_a_run_that_never_had_all_processors_is_not_called_slower():
    """Steps that wait for threads have a few lucky ones and no floor: how fast the program is cannot be told."""
    rng = np.random.default_rng(0)
    waiting = StepSeries("waiting", 1e-3 * np.exp(0.5 * rng.standard_normal(1500) + 0.9), np.ones(1500, np.int64))
    change = compare(run(0), waiting)
    assert change.verdict == "cannot tell"
    assert change.low is None
    assert "about as long as its fastest ones" in change.problem


@pytest.mark.parametrize(
    ("processors", "verdict"),
    [
        (None, "slower"),  # a run of an earlier version, which did not record them
        (use(own=1.9, other=0.05), "slower"),  # nobody else
        (use(own=1.0, other=1.0), "cannot tell"),  # another program has one of two
        (use(own=2.0, other=2.0, number=8), "slower"),  # half of them are idle
        (use(own=0.5, other=0.5, number=1), "slower"),  # one core is shared by turns
        (use(own=0.2, other=1.8), "slower"),  # a loader that sleeps: it hardly computes, and its steps are alike
    ],
)
def test_processors_that_others_had_are_taken_into_account(processors: ProcessorUse | None, verdict: str):
    """Steps that are all too slow look like a slower program; only a free machine tells that they are one."""
    change = compare(run(0), run(1, true_s=1.5e-3, processors=processors, name="after"))
    assert change.verdict == verdict
    if verdict == "cannot tell":
        assert change.problem.startswith("other programs used 1.0 of the 2 processors that after could use")


def test_a_busy_machine_does_not_matter_to_the_faster_run():
    """A run that is faster although others had the processors is so; one that is slower may only seem so."""
    squeezed = use(own=1.0, other=1.0)
    assert compare(run(0), run(1, true_s=0.5e-3, processors=squeezed)).verdict == "faster"
    assert compare(run(0, processors=squeezed), run(1, true_s=0.5e-3)).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("true_s", "own", "verdict"),
    [
        (3e-3, 1.0, "slower"),  # three times the processor time, too
        (6e-3, 0.2, "cannot tell"),  # the same processor time: it may only have waited for a processor
        (1.8e-3, 1.0, "cannot tell"),
    ],
)
def test_a_change_beyond_what_others_can_do_is_clear(true_s: float, own: float, verdict: str):
    """Sharing the processors makes steps longer, but does not multiply their processor time."""
    first, second = run(0, processors=use(own=1.0, other=0.0)), run(1, true_s=true_s, processors=use(own, 2.0 - own))
    second = replace(second, seconds=second.seconds * np.linspace(1.0, 2.0, len(second.seconds)))  # hardly ever alike
    assert compare(first, second).verdict == verdict
    opposite = {"slower": "faster"}.get(verdict, verdict)
    assert compare(second, first).verdict == opposite


def test_a_change_beyond_any_load_is_clear_without_processor_times():
    """Without processor times, a disturbed run gets only the verdicts that no load explains."""
    spread = np.linspace(1.0, 4.0, 1500)
    for factor, verdict in ((5.0, "cannot tell"), (20.0, "slower")):
        second = run(1, true_s=1e-3 * factor)
        assert compare(run(0), replace(second, seconds=second.seconds * spread)).verdict == verdict


def test_a_wide_interval_is_not_called_no_difference():
    """Where a change of a tenth cannot be excluded, the verdict is that it cannot be told, with the interval."""
    blurred = step_series(np.random.default_rng(0), num_steps=60, noise=1.0, name="blurred")
    blurred = replace(blurred, seconds=10.0 * blurred.seconds)
    change = compare(blurred, replace(blurred, seconds=blurred.seconds[::-1] * 1.02))
    assert change.verdict == "cannot tell"
    assert change.low is not None
    assert change.low < 0 < change.high
    assert "the change may be anything from" in change.problem


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="other systems do not tell")
def test_runs_record_processors(plain_run: Path):
    """A run of the trainer has them, and they come with its step times."""
    found = read_side(plain_run).steps.processors
    assert found is not None
    assert found == open_run(plain_run).processor_use
    assert found.wall_s > 0
    assert found.num_processors >= 1


def test_the_processors_of_all_legs_count(tmp_path: Path):
    """Each leg's last row holds what happened since it began."""
    writer = EventWriter(tmp_path / event_file_name(0))
    for leg, times in ((1, (10.0, 20.0)), (2, (40.0,))):
        writer.write("leg", leg=leg, step=0, epoch=0)
        for wall_s in times:
            writer.write("processors", step=1, wall_s=wall_s, own_s=wall_s, other_s=0.0, num_processors=2)
    writer.close()
    assert open_run(tmp_path).processor_use == ProcessorUse(60.0, 60.0, 0.0, 2)
