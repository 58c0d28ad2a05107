"""Each example that steps are given counts once, however the loops over loaders are put together."""

import gc
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.measured_run.own_loops import open_run_of
from trackside.measured_run import MeasuredRun
from trackside.measured_run.measured_batches import MeasuredIterator

DATA = np.zeros((24, 2), np.float32)
TASKS = [DATA[:12], DATA[12:]]


def split(data: np.ndarray, size: int = 3) -> list[np.ndarray]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def tasks(run: MeasuredRun, step: Any) -> None:
    for task in run.batches(TASKS):
        for batch in run.batches(split(task)):
            step(batch)


def batches_that_are_loaders(run: MeasuredRun, step: Any) -> None:
    for task in run.batches([task.reshape(4, 3, 2) for task in TASKS]):
        for batch in run.batches(task):
            step(batch)


def tasks_of_one_batch(run: MeasuredRun, step: Any) -> None:
    for task in run.batches(TASKS):
        for batch in run.batches([task]):
            step(batch)


def tasks_that_are_left(run: MeasuredRun, step: Any) -> None:
    for task in run.batches(TASKS):
        for batch in itertools.islice(run.batches(split(task)), 2):
            step(batch)


def tasks_whose_iterator_stays(run: MeasuredRun, step: Any) -> None:
    for task in run.batches(TASKS):
        batches = iter(run.batches(split(task)))
        for _ in range(3):
            step(next(batches))


def three_loops(run: MeasuredRun, step: Any) -> None:
    for task in run.batches(TASKS):
        for half in run.batches(split(task, 6)):
            for batch in run.batches(split(half)):
                step(batch)


def side_by_side(run: MeasuredRun, step: Any) -> None:
    for _ in range(2):
        for first, second, third in zip(
            *(run.batches(split(DATA[: 3 * size], size)) for size in (3, 2, 1)), strict=True
        ):
            step((first, second, third))


def one_batch_side_by_side(run: MeasuredRun, step: Any) -> None:
    for pair in zip(run.batches(TASKS[:1]), run.batches(TASKS[1:]), strict=True):
        step(pair)


def second_loader_that_begins_again(run: MeasuredRun, step: Any) -> None:
    beside = iter(run.batches(split(DATA[:6])))
    for batch in run.batches(split(DATA)):
        if (other := next(beside, None)) is None:
            beside = iter(run.batches(split(DATA[:6])))
            other = next(beside)
        step((batch, other))


def two_batches_beside_each(run: MeasuredRun, step: Any) -> None:
    beside = iter(run.batches(split(DATA)))
    for batch in run.batches(split(DATA[:12])):
        step((batch, next(beside), next(beside)))


def first_batch_of_another(run: MeasuredRun, step: Any) -> None:
    for batch in run.batches(split(DATA)):
        step((batch, next(iter(run.batches(split(DATA, 2))))))


def pass_before_the_call(run: MeasuredRun, step: Any) -> None:
    for batch in run.batches(split(DATA)):
        others = list(run.batches(split(DATA[:4], 2)))
        step((batch, *others))


@pytest.mark.parametrize(
    ("loop_of", "num_samples"),
    [
        (tasks, 24),
        (batches_that_are_loaders, 24),
        (tasks_of_one_batch, 24),
        (tasks_that_are_left, 12),
        (tasks_whose_iterator_stays, 18),
        (three_loops, 24),
        (side_by_side, 2 * 3 * 6),
        (one_batch_side_by_side, 24),
        (second_loader_that_begins_again, 2 * 24),
        (two_batches_beside_each, 12 + 24),
        (first_batch_of_another, 8 * 5),
        (pass_before_the_call, 8 * 7),
    ],
    ids=lambda given: given.__name__.replace("_", " ") if callable(given) else str(given),
)
def test_examples_count_once(loop_of: Callable[[MeasuredRun, Any], None], num_samples: int) -> None:
    """Batches that are opened by a loop inside do not count beside what they hold; those of loaders side by side do."""
    with open_run_of() as run:
        loop_of(run, run.step(lambda batch: None, name="step"))
    assert run.ledger_totals.num_samples == num_samples


def iterators() -> list[MeasuredIterator]:
    """Those that are alive, whoever holds them."""
    return [one for one in gc.get_objects() if issubclass(type(one), MeasuredIterator)]


def test_passes_are_let_go_of() -> None:
    """A loader is not kept alive by what waits for its next batch."""
    of_others = iterators()
    with open_run_of() as run:
        step = run.step(lambda batch: None, name="step")
        tasks(run, step)
        side_by_side(run, step)
        assert not [one for one in iterators() if not any(one is other for other in of_others)]
