"""Executions, and the steps that they made."""

import numpy as np
import pytest

from tests.trace.synthetic import PlaneWriter, cpu_op, space
from trackside.trace.device_events import Device, read_device_events
from trackside.trace.executions import (
    Runs,
    Steps,
    assign_steps,
    choose_step_program,
    find_markers,
    find_runs,
    measure_step_time,
)
from trackside.trace.tables import StepMarker
from trackside.trace.xspace import read_xspace

CPU = [Device("CPU:0", 0), Device("CPU:1", 0)]


def make_runs(*starts_s: float, device: list[int] | None = None) -> Runs:
    start = (np.array(starts_s) * 1e12).astype(np.int64)
    zeros = np.zeros(len(start), np.int64)
    devices = zeros if device is None else np.array(device)
    return Runs(zeros, devices, np.arange(len(start)), start, start + 1, zeros)


def make_markers(*steps: int, num_steps: int | None = None) -> list[StepMarker]:
    return [StepMarker("train", step, float(at), at + 0.5, 0, num_steps) for at, step in enumerate(steps)]


def assign(runs: Runs, markers: list[StepMarker]) -> Steps:
    return assign_steps(runs, np.ones(len(runs), bool), CPU, markers)


def test_runs_are_grouped_by_run_id():
    """Operations of one run on one device are one execution, even where executions overlap in time."""
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "a", "dot.1", 0, 10, run_id=8)
    cpu_op(plane, "b", "dot.1", 5, 10, run_id=9)
    cpu_op(plane, "a", "add.3", 20, 4, run_id=8)
    cpu_op(plane, "b", "add.3", 30, 4, run_id=8, device_ordinal=1)
    ops = read_device_events([read_xspace(space(plane))]).ops
    runs = find_runs(ops)
    assert runs.run_id.tolist() == [8, 9, 8]
    assert runs.device.tolist() == [0, 0, 1]
    assert runs.start_ps.tolist() == [0, 5_000, 30_000]
    assert runs.end_ps.tolist() == [24_000, 15_000, 34_000]
    assert [(ops.start_ps[index], run) for index, run in enumerate(runs.of_event)] == [
        (0, 0),
        (20_000, 0),
        (5_000, 1),
        (30_000, 2),
    ]


def test_markers_of_a_name():
    """Step markers have a name and a number; those of the given name count if there are any."""
    plane = PlaneWriter("/host:CPU")
    plane.event("python", "eval", 0, 1, step_num=1)
    plane.event("python", "train", 5, 2, step_num=40, num_steps=4)
    spaces = [read_xspace(space(plane))]
    assert find_markers(spaces, "train") == [StepMarker("train", 40, 5e-9, 7e-9, 0, 4)]
    assert [marker.name for marker in find_markers(spaces, "mine")] == ["eval", "train"]


def test_step_program_has_as_many_runs_as_markers():
    """The program that ran once per marker makes the steps, not the one that took longest."""
    names, devices = np.array(["jit_step"] * 3 + ["jit_init"], object), np.zeros(4, np.int64)
    assert choose_step_program(names, devices, {"jit_step": 1.0, "jit_init": 9.0}, 3) == "jit_step"


def test_step_program_without_markers_is_the_busiest():
    """Without markers, most busy time decides."""
    names, devices = np.array(["jit_step"] * 3 + ["jit_init"], object), np.zeros(4, np.int64)
    assert choose_step_program(names, devices, {"jit_step": 1.0, "jit_init": 9.0}, 0) == "jit_init"


def test_kth_marker_is_the_kth_run_on_each_device():
    """Executions that begin long after their markers still get their steps."""
    runs = make_runs(5.0, 6.0, 7.0, 5.1, 6.1, 7.1, device=[0, 0, 0, 1, 1, 1])
    assert assign(runs, make_markers(10, 11, 12)).step.tolist() == [10, 11, 12, 10, 11, 12]


def test_run_that_began_before_the_first_marker_has_no_step():
    """What was still going on when the window opened belongs to no step of the window."""
    runs = make_runs(-1.0, 1.0, 2.0)
    assert assign(runs, make_markers(10, 11)).step.tolist() == [-1, 10, 11]


def test_calls_of_several_steps():
    """A call of n steps is one run; n is the distance to the next marker's step."""
    steps = assign(make_runs(0.0, 1.0, 2.0), make_markers(10, 14, 18))
    assert steps.step.tolist() == [10, 14, 18]
    assert steps.num_steps.tolist() == [4, 4, 4]


def test_marker_may_tell_its_steps():
    """What the marker says goes before what the next one suggests."""
    assert assign(make_runs(0.0, 1.0), make_markers(10, 14, num_steps=2)).num_steps.tolist() == [2, 2]


def test_several_runs_per_marker():
    """A step that executes its program several times keeps its number."""
    assert assign(make_runs(0.0, 1.0, 2.0, 3.0), make_markers(10, 11)).step.tolist() == [10, 10, 11, 11]


def test_numbers_that_do_not_fit_are_mentioned():
    """Too few executions are matched in order, with a warning."""
    steps = assign(make_runs(0.0), make_markers(10, 11, 12))
    assert steps.step.tolist() == [10]
    assert "1 executions for 3 step markers" in steps.warnings[0]


def test_step_time_is_from_start_to_start():
    """Step time is the distance of successive starts on a device, never across devices."""
    runs = make_runs(0.0, 1.0, 3.0, 100.0, 101.0, 103.0, device=[0, 0, 0, 1, 1, 1])
    time = measure_step_time(runs, np.ones(6, bool), assign(runs, []))
    assert (time.mean_s, time.median_s, time.num_intervals) == pytest.approx((1.5, 1.5, 4))


def test_step_time_of_calls_is_per_step():
    """A call of four steps takes four step times."""
    runs = make_runs(0.0, 4.0, 8.0)
    assert measure_step_time(runs, np.ones(3, bool), assign(runs, make_markers(0, 4, 8))).mean_s == 1.0


def test_step_time_needs_two_runs():
    """A single execution has no step time, and it is not zero."""
    runs = make_runs(0.0)
    assert measure_step_time(runs, np.ones(1, bool), assign(runs, [])) is None
