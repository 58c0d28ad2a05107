"""The ledger as text: figures that people can read."""

from trackside.profiling.ledger import LedgerTotals
from trackside.profiling.ledger_text import render_ledger


def test_throughput_is_told_without_exponents() -> None:
    """Steps, examples and tokens per second head the ledger."""
    totals = LedgerTotals(2.0, {"dispatch": 2.0}, num_steps=162, num_samples=8254, num_tokens=1_056_512)
    assert render_ledger(totals).splitlines()[0] == (
        "where the time went: 2.0 s, 162 steps; per second 81 steps, 4,130 examples, 528,000 tokens"
    )


def test_notes_come_last() -> None:
    """What else there is to say of the run follows the parts."""
    assert render_ledger(LedgerTotals(2.0, {"dispatch": 2.0}, 1), ["a note"]).splitlines()[-1] == "  a note"


def test_nothing_is_told_of_no_steps() -> None:
    """A training without steps has no throughput."""
    assert render_ledger(LedgerTotals(2.0, {"other": 2.0})) == ""
