"""Lines of text for a terminal."""

from rich.cells import cell_len

from trackside.report.terminal_lines import fit, fit_tail


def test_text_is_cut_to_columns_and_not_to_characters() -> None:
    """Wide characters take two columns."""
    assert fit("日本語", 5) == "日本…"
    assert fit_tail("a/b/c", 4) == "…b/c"
    assert cell_len(fit_tail("日本語日本語", 5)) == 5
