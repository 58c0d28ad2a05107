"""Where the time went, in the terminal."""

from rich.cells import cell_len

from trackside.profiling.ledger_totals import LedgerTotals
from trackside.report.ledger_lines import render_bar, render_ledger_table

TOTALS = LedgerTotals(
    10.0, {"device_wait": 7.0, "callback/Slow": 3.0}, 500, 4000, 0, 0.0, 6.0, 4.0, {"callback/Slow": 4.0}
)


def test_table_has_a_line_per_part_and_the_idle_reasons() -> None:
    """Rates come first, then each part with time, share and bar, then why the device was idle."""
    headline, first, second, idle = (line.plain for line in render_ledger_table(TOTALS, 80))
    assert headline == "where the time went: 10.0 s, 500 steps; overall 50 steps/s, 400 examples/s"
    assert first.split() == ["waiting", "for", "the", "device", "7.00", "s", "70.0", "%", "█" * 16 + "▊"]
    assert second.split() == ["Slow", "3.00", "s", "30.0", "%", "█" * 7 + "▎"]
    assert idle == "  the device was idle 40 % of the time between steps: Slow 40 %"


def test_bars_have_the_colour_of_their_part() -> None:
    """The bar of a part, and nothing else of its line, has the part's colour."""
    line = render_ledger_table(TOTALS, 80)[1]
    (span,) = line.spans
    assert (line.plain[span.start : span.end], span.style) == ("█" * 16 + "▊", "green")


def test_table_fits_its_width() -> None:
    """A long callback name and a narrow terminal make no line wider than asked for."""
    totals = LedgerTotals(10.0, {f"callback/{'n' * 100}": 10.0}, 500, 4000, 0, 0.0, 6.0, 4.0, {"compile": 4.0})
    assert max(cell_len(line.plain) for line in render_ledger_table(totals, 50)) <= 50


def test_no_step_no_table() -> None:
    """Before the first step there is nothing to show."""
    assert render_ledger_table(LedgerTotals(1.0, {"compile": 1.0}), 80) == []


def test_bar_is_as_wide_as_the_time() -> None:
    """The bar fills its width, each part by its share; letters where there are no colours."""
    bar, *legend = render_bar(LedgerTotals(10.0, {"device_wait": 7.5, "data_wait": 2.5}), 60, plain=True)
    assert bar.plain == "#" * 45 + "D" * 15
    assert legend[0].plain == "# waiting for the device 75 %  D waiting for data 25 %"
