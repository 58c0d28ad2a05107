"""What several processes decide together, with threads that stand for them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trackside.errors import CheckpointError, DataError
from trackside.processes import JAX_PROCESSES, Processes, ThreadProcesses


def run_on_each(function: Callable[[Processes], Any], count: int = 3) -> list[Any]:
    """What a function gives or raises on each of several processes."""

    def run(processes: Processes) -> Any:
        try:
            return function(processes)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, ThreadProcesses.group(count)))


def test_the_first_process_decides_for_all() -> None:
    """Only the first is asked, and all get its answer."""
    asked = []

    def decide(processes: Processes) -> int:
        return processes.main_decides(lambda: asked.append(processes.index) or 7, "a number")

    assert run_on_each(decide) == [7, 7, 7]
    assert asked == [0]


def test_what_fails_on_the_first_process_fails_on_all() -> None:
    """The first raises its own error, and the others one that says what has failed."""

    def fail() -> int:
        raise OSError("the disk is gone")

    first, *others = run_on_each(lambda processes: processes.main_decides(fail, "the folder"))
    assert isinstance(first, OSError)
    assert all(isinstance(error, CheckpointError) and "the folder" in str(error) for error in others)


def test_a_failure_of_one_is_raised_by_all() -> None:
    """None waits for one that has given up; the message names it."""

    def give_up(processes: Processes) -> None:
        processes.raise_together(CheckpointError("no space") if processes.index == 1 else None)

    first, second, third = run_on_each(give_up)
    assert "no space" in str(second)
    assert "process 1" in str(first)
    assert "process 1" in str(third)


def test_counts_that_differ_are_refused_by_all() -> None:
    """The error lists what each process has, and what to do."""

    def check(processes: Processes) -> None:
        processes.check_same({"batches": 4 + processes.index, "examples": 8}, "drop the last ones")

    for error in run_on_each(check):
        assert isinstance(error, DataError)
        assert "batches: [4, 5, 6]" in str(error)
        assert "drop the last ones" in str(error)


def test_gathered_values_are_in_the_order_of_the_processes() -> None:
    """What JSON can hold comes over as it is."""
    gathered = run_on_each(lambda processes: processes.gather({"index": processes.index}))
    assert gathered == [[{"index": 0}, {"index": 1}, {"index": 2}]] * 3


def test_one_process_agrees_with_itself() -> None:
    """Nothing is sent, and errors come as they are."""
    assert (JAX_PROCESSES.count, JAX_PROCESSES.is_main, JAX_PROCESSES.gather("x")) == (1, True, ["x"])
    assert JAX_PROCESSES.main_decides(lambda: 3, "a number") == 3
    with pytest.raises(ZeroDivisionError):
        JAX_PROCESSES.main_decides(lambda: 1 // 0, "a number")
