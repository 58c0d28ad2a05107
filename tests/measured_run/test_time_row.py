"""The rows of where the time went."""

import pytest

from trackside.measured_run.step_meter import time_row
from trackside.profiling.ledger_totals import LedgerTotals


def test_callbacks_are_in_a_row_together_and_each() -> None:
    """A row has all callbacks in one figure, and each that took time by its name, in milliseconds per step."""
    parts = {"device_wait": 0.4, "callback/EMA": 0.02, "callback/Mine": 0.03, "callback/Idle": 0.0}
    row = time_row(LedgerTotals(0.45, parts, num_steps=10), goodput=None)
    assert row["device_wait_ms"] == pytest.approx(40.0)
    assert row["callbacks_ms"] == pytest.approx(5.0)
    assert (row["callback/EMA_ms"], row["callback/Mine_ms"]) == (pytest.approx(2.0), pytest.approx(3.0))
    assert "callback/Idle_ms" not in row
