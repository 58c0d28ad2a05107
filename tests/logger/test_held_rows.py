"""Rows that wait to be written together."""

import numpy as np

from trackside.clock import SYSTEM_CLOCK
from trackside.logger.held_rows import MAX_HELD_ROWS, MAX_HELD_S, HeldRows, RowQueue, to_columns
from trackside.metric_columns import NamedNumbers
from trackside.profiling.ledger import Ledger


def make_queue() -> tuple[RowQueue, list[list[int]]]:
    written: list[list[int]] = []
    queue = RowQueue(lambda held: written.append([step for rows in held for step in rows.steps]), Ledger(SYSTEM_CLOCK))
    return queue, written


def held(*steps: int, completed_s: float = 0.0) -> HeldRows:
    """Rows with their step as the only number; those of even steps are named otherwise."""
    return HeldRows(read, np.array(steps, np.uint32)[:, None], steps, [completed_s] * len(steps))


def read(vectors: np.ndarray) -> list[NamedNumbers]:
    numbers = [float(vector[0]) for vector in vectors]
    return [NamedNumbers(("even",) if number % 2 == 0 else ("odd",), 1, [number]) for number in numbers]


def test_rows_wait_until_there_are_enough():
    """Those of steps that follow each other at once are written when their number is reached."""
    queue, written = make_queue()
    for step in range(0, MAX_HELD_ROWS + 2, 2):
        queue.hold(held(step, step + 1))
    assert written == [list(range(MAX_HELD_ROWS))]
    queue.write()
    assert written[1:] == [[MAX_HELD_ROWS, MAX_HELD_ROWS + 1]]


def test_rows_do_not_wait_long():
    """A row that completed long after the first is written with it."""
    queue, written = make_queue()
    for step, completed_s in enumerate((0.0, MAX_HELD_S / 2, MAX_HELD_S * 2)):
        queue.hold(held(step, completed_s=completed_s))
    assert written == [[0, 1, 2]]


def test_nothing_held_is_nothing_written():
    """There is no writing without rows."""
    queue, written = make_queue()
    queue.write()
    assert written == []


def test_rows_keep_their_own_step_and_time():
    """However they were held, and whichever metrics they have."""
    blocks = [held(1, completed_s=1.0), held(2, 3, completed_s=2.0), held(4, completed_s=4.0)]
    rows = [
        (columns.names, columns.flat, columns.steps, columns.epochs, ended_s)
        for columns, ended_s in to_columns(blocks, 7)
    ]
    assert rows == [
        (("odd",), [1.0], [1], [7], [1.0]),
        (("even",), [2.0], [2], [7], [2.0]),
        (("odd",), [3.0], [3], [7], [2.0]),
        (("even",), [4.0], [4], [7], [4.0]),
    ]
