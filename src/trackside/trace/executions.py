"""Executions of programs, and which steps they made.

An execution is recognized by its run id, never by when the host was in a step: JAX returns before the device has
begun, so that the host's steps come before the work that they started.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trackside.trace.device_events import HOST_PLANE, Device, OpEvents
from trackside.trace.event_columns import MISSING
from trackside.trace.tables import StepMarker, StepTime
from trackside.trace.xspace import PS_PER_S, XSpace


@dataclass(frozen=True)
class Runs:
    """The executions on all devices, by device and start. One entry per execution in each column."""

    program: np.ndarray
    device: np.ndarray
    run_id: np.ndarray
    start_ps: np.ndarray
    end_ps: np.ndarray
    of_event: np.ndarray
    """The execution that each event belongs to; -1 for none."""

    def __len__(self) -> int:
        return len(self.program)


def find_runs(ops: OpEvents) -> Runs:
    """Group operations by the execution that they are part of."""
    program = np.array([key.program for key in ops.keys], np.int64)[ops.key] if len(ops) else ops.key
    known = np.flatnonzero(ops.run != MISSING)
    of_event = np.full(len(ops), -1, np.int64)
    if not known.size:
        return Runs(known, known, known, known, known, of_event)
    columns = (ops.device[known], program[known], ops.run[known])
    order = np.lexsort(columns[::-1])
    ordered = [column[order] for column in columns]
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.any([column[1:] != column[:-1] for column in ordered], axis=0)
    first = np.flatnonzero(is_first)
    start = np.minimum.reduceat(ops.start_ps[known][order], first)
    end = np.maximum.reduceat(ops.done_ps[known][order], first)
    device, programs, run_id = (column[first] for column in ordered)
    by_time = np.lexsort((start, device))
    rank = np.empty(len(first), np.int64)
    rank[by_time] = np.arange(len(first))
    of_event[known[order]] = rank[np.cumsum(is_first) - 1]
    return Runs(programs[by_time], device[by_time], run_id[by_time], start[by_time], end[by_time], of_event)


def find_markers(spaces: Sequence[XSpace], step_name: str) -> list[StepMarker]:
    """The step markers of a name, in time; all of them if none has that name."""
    markers = []
    for host, space in enumerate(spaces):
        for plane in space.planes:
            if plane.name != HOST_PLANE:
                continue
            step, num_steps = plane.events.stat("step_num"), plane.events.stat("num_steps")
            for index in plane.events.with_stat("step_num").tolist():
                markers.append(
                    StepMarker(
                        plane.metadata(int(plane.events.metadata_id[index])).name,
                        int(step[index]),
                        float(plane.events.start_ps[index] / PS_PER_S),
                        float(plane.events.end_ps[index] / PS_PER_S),
                        host,
                        None if num_steps[index] == MISSING else int(num_steps[index]),
                    )
                )
    markers.sort(key=lambda marker: (marker.host, marker.start_s))
    return [marker for marker in markers if marker.name == step_name] or markers


def choose_step_program(
    run_names: np.ndarray, run_devices: np.ndarray, busy_by_program: Mapping[str, float], num_markers: int
) -> str | None:
    """The program that makes the steps: executed as often as there are markers, else the one with most busy time.

    Args:
        run_names: The program's name of each execution.
        run_devices: The device of each execution.
        busy_by_program: Busy time by the program's name.
        num_markers: The number of step markers of a host.
    """
    executions = Counter(zip(run_names.tolist(), run_devices.tolist(), strict=True))
    marked = {name for (name, _), count in executions.items() if count == num_markers}
    return max(marked or busy_by_program, key=lambda name: busy_by_program.get(name, 0.0), default=None)


@dataclass(frozen=True)
class Steps:
    """Which steps the executions made. One entry per execution in each column."""

    step: np.ndarray
    """The first step; -1 where no marker tells."""
    num_steps: np.ndarray
    warnings: list[str]


def assign_steps(
    runs: Runs,
    is_step_run: np.ndarray,
    devices: Sequence[Device],
    markers: Sequence[StepMarker],
    one_per_marker: bool = False,
) -> Steps:
    """Number the executions of the step program.

    The k-th marker belongs to the k-th execution that began after the first marker did.

    Args:
        runs: The executions.
        is_step_run: Which of them are of the step program.
        devices: The devices.
        markers: The markers.
        one_per_marker: Whether each marker is known to be one execution; others are then left without a number.
    """
    step, num_steps, warnings = np.full(len(runs), -1, np.int64), np.ones(len(runs), np.int64), []
    for device in np.unique(runs.device).tolist():
        own = [marker for marker in markers if marker.host == devices[device].host]
        where = np.flatnonzero(is_step_run & (runs.device == device))
        if not own or not where.size:
            continue
        where = where[runs.start_ps[where] / PS_PER_S >= own[0].start_s]
        # A step may be several executions, as in a loop that accumulates gradients.
        per_marker = len(where) // len(own) if len(where) % len(own) == 0 and not one_per_marker else 1
        chosen = np.arange(len(where)) // max(per_marker, 1)
        fits = chosen < len(own)
        steps, counts = np.array([marker.step for marker in own]), _steps_per_marker(own)
        step[where[fits]] = steps[chosen[fits]]
        if per_marker <= 1:
            num_steps[where[fits]] = counts[chosen[fits]]
        if len(where) % len(own) and not (one_per_marker and len(where) > len(own)):
            warnings.append(f"{len(where)} executions for {len(own)} step markers: they were matched in order.")
    return Steps(step, num_steps, list(dict.fromkeys(warnings)))


def _steps_per_marker(markers: Sequence[StepMarker]) -> np.ndarray:
    """How many steps each marked call makes: as it says, else up to the next marker's step."""
    steps = [marker.step for marker in markers]
    ahead = [later - earlier for earlier, later in pairwise(steps)]
    ahead.append(ahead[-1] if ahead else 1)
    told = [marker.num_steps for marker in markers]
    return np.array([max(guess, 1) if count is None else count for count, guess in zip(told, ahead, strict=True)])


def measure_step_time(runs: Runs, is_step_run: np.ndarray, steps: Steps) -> StepTime | None:
    """Step time from the starts of successive executions; None for fewer than two."""
    intervals, counts = [], []
    for device in np.unique(runs.device).tolist():
        where = np.flatnonzero(is_step_run & (runs.device == device))
        # The executions of one step count together.
        is_first = np.ones(len(where), bool)
        step = steps.step[where]
        is_first[1:] = (step[1:] != step[:-1]) | (step[1:] < 0)
        where = where[is_first]
        intervals.append(np.diff(runs.start_ps[where]) / PS_PER_S)
        counts.append(steps.num_steps[where][:-1])
    taken = np.concatenate(intervals) if intervals else np.zeros(0)
    if not taken.size:
        return None
    made = np.concatenate(counts)
    per_step = taken / made
    median, p95 = np.quantile(per_step, [0.5, 0.95])
    return StepTime(float(taken.sum() / made.sum()), float(median), float(p95), len(per_step))
