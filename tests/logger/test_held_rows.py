"""Rows that wait to be written together."""

from trackside.clock import SYSTEM_CLOCK
from trackside.logger.held_rows import MAX_HELD_ROWS, MAX_HELD_S, HeldRow, HeldRows
from trackside.profiling.ledger import Ledger


def make_rows() -> tuple[HeldRows, list[list[int]]]:
    written: list[list[int]] = []
    rows = HeldRows(lambda held: written.append([row.step for row in held]), Ledger(SYSTEM_CLOCK))
    return rows, written


def test_rows_wait_until_there_are_enough():
    """Those of steps that follow each other at once are written when their number is reached."""
    rows, written = make_rows()
    for step in range(MAX_HELD_ROWS + 1):
        rows.hold(HeldRow(dict, step, 0.0))
    assert written == [list(range(MAX_HELD_ROWS))]
    rows.write()
    assert written[1:] == [[MAX_HELD_ROWS]]


def test_rows_do_not_wait_long():
    """A row that completed long after the first is written with it."""
    rows, written = make_rows()
    for step, completed_s in enumerate((0.0, MAX_HELD_S / 2, MAX_HELD_S * 2)):
        rows.hold(HeldRow(dict, step, completed_s))
    assert written == [[0, 1, 2]]


def test_nothing_held_is_nothing_written():
    """There is no writing without rows."""
    rows, written = make_rows()
    rows.write()
    assert written == []
