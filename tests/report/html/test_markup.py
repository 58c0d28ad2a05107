"""Markup: text cannot become code."""

import pytest

from trackside.report.html.markup import Cell, Column, Html, element, joined, path_text, share_bar, table, with_code


def test_text_is_escaped_and_markup_is_not() -> None:
    """A string is text wherever it stands; what `element` made is not escaped again."""
    assert element("p", "<b>", element("i", "&")) == "<p>&lt;b&gt;<i>&amp;</i></p>"


def test_attributes_are_escaped() -> None:
    """A quote does not end an attribute."""
    assert element("a", title='"><script>') == '<a title="&quot;&gt;&lt;script&gt;"></a>'


def test_attributes_that_say_no_are_left_out() -> None:
    """None and False leave an attribute out, True needs no value, underscores become hyphens."""
    made = element("td", class_="x", data_sort=0, hidden=True, title=None, open=False)
    assert made == '<td class="x" data-sort="0" hidden></td>'


def test_children_may_be_nested() -> None:
    """Lists and generators of children are taken apart; None is nothing."""
    assert joined("a", [None, ("b", Html("<br>"))], (str(number) for number in range(2))) == "ab<br>01"


def test_lone_surrogates_are_shown_as_question_marks() -> None:
    """A file name that is not valid Unicode does not stop the page from being written."""
    assert element("p", "\udcff").encode("utf-8") == b"<p>?</p>"


def test_table_cells_sort_by_their_number() -> None:
    """A cell that shows a unit carries the number to sort by."""
    made = table([Column("time", is_number=True)], [[Cell("1.5 ms", 0.0015)]])
    assert '<td class="number" data-sort="0.0015">1.5 ms</td>' in made


def test_backticks_become_code() -> None:
    """Names in backticks are set as code; one backtick alone stays."""
    assert with_code("pad `x` now") == "pad <code>x</code> now"
    assert with_code("a ` b") == "a ` b"


def test_paths_may_break_after_a_slash() -> None:
    """A path wraps at its slashes, and is escaped."""
    assert path_text("a/<b>") == "a/<wbr>&lt;b&gt;"


@pytest.mark.parametrize(("share", "width"), [(0.5, "50.00%"), (-1.0, "0.00%"), (7.0, "100.00%")])
def test_bars_stay_in_their_place(share: float, width: str) -> None:
    """A share beyond what is possible draws no more than the whole."""
    assert f'width="{width}"' in share_bar(share)
