"""The ledger as text: figures that people can read."""

import pytest

from trackside.profiling.ledger_text import idle_interval, render_ledger
from trackside.profiling.ledger_totals import LedgerTotals


def test_throughput_is_told_without_exponents() -> None:
    """Steps, examples and tokens per second head the ledger."""
    totals = LedgerTotals(2.0, {"dispatch": 2.0}, num_steps=162, num_samples=8254, num_tokens=1_056_512)
    assert render_ledger(totals).splitlines()[0] == (
        "where the time went: 2.0 s, 162 steps; overall 81 steps/s, 4,130 examples/s, 528,000 tokens/s"
    )


def test_examples_that_nobody_counted_are_not_said_to_be_none() -> None:
    """A loop may get its batches from somewhere that is not measured."""
    shown = render_ledger(LedgerTotals(2.0, {"dispatch": 2.0}, num_steps=4))
    assert shown.splitlines()[0] == "where the time went: 2.0 s, 4 steps; overall 2 steps/s"


def test_notes_come_last() -> None:
    """What else there is to say of the run follows the parts."""
    assert render_ledger(LedgerTotals(2.0, {"dispatch": 2.0}, 1), ["a note"]).splitlines()[-1] == "  a note"


def test_time_outside_is_told() -> None:
    """What passed between the calls of a trainer is said, if it is not negligible, and has no share."""
    lines = render_ledger(LedgerTotals(2.0, {"dispatch": 2.0}, 1, outside_s=600.0)).splitlines()
    assert lines[-1] == "  600 s passed between calls of the trainer, or cells of a notebook: that is not counted"
    assert "not counted" not in render_ledger(LedgerTotals(2.0, {"dispatch": 2.0}, 1, outside_s=0.01))


def test_closing_a_tool_is_told_by_its_name() -> None:
    """A tool that was waited for at the end is a line of its own."""
    assert "closing SlowTool" in render_ledger(LedgerTotals(2.0, {"drain/SlowTool": 2.0}, 1))


@pytest.mark.parametrize(
    ("low_s", "high_s", "shown"),
    [(None, None, "40.0 % of"), (0.39, 0.43, "40.0 % of"), (0.31, 0.52, "40.0 % (31 to 52 %) of")],
)
def test_idle_share_has_an_interval_where_it_is_not_sure(low_s: float, high_s: float, shown: str) -> None:
    """A share that may be off by some points is shown with the limits; one that is sure, or that has none, is not."""
    totals = LedgerTotals(
        1.0,
        {"dispatch": 1.0},
        1,
        device_busy_s=0.6,
        device_idle_s=0.4,
        device_idle_low_s=low_s,
        device_idle_high_s=high_s,
    )
    assert render_ledger(totals).splitlines()[-1] == f"  the device idled {shown} the time between steps"
    assert idle_interval(totals, of_busy=True) == (" (48 to 69 %)" if "(" in shown else "")


def test_nothing_is_told_of_no_steps() -> None:
    """A training without steps has no throughput."""
    assert render_ledger(LedgerTotals(2.0, {"other": 2.0})) == ""
