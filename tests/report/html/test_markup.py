"""Markup and labels: text cannot become code, neither in HTML nor in a chart."""

import numpy as np
import pytest

from trackside.report.html.charts import Chart, label, line, numbers, part_class
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
    assert label("\udcff") == "?"


@pytest.mark.parametrize("text", ["<b>x</b>", "&lt;", "a & b", "<a href='javascript:1'>x</a>"])
def test_labels_are_literal(text: str) -> None:
    """A label has no markup for plotly to read, and says what the text said."""
    shown = label(text)
    assert "<" not in shown
    assert shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == text


def test_labels_are_short_and_on_one_line() -> None:
    """A long name is cut, a line break becomes a space."""
    assert label("a\nb") == "a b"
    assert label("x" * 500) == "x" * 79 + "…"


def test_numbers_become_json() -> None:
    """What is not finite becomes null, whole numbers have no point, others six digits."""
    assert numbers(np.array([1.0, np.nan, np.inf, 0.123456789, 1e20])) == [1, None, None, 0.123457, 1e20]
    assert numbers(np.array([3, 4])) == [3, 4]


def test_legend_has_each_name_once_as_text() -> None:
    """The legend has the name as the run has it, for the script to write as text."""
    chart = Chart("c", "", [line([1], [2], "<b>", "--accent"), line([1], [3], "<b>", "--accent")])
    legend = chart.to_dict()["legend"]
    assert [entry["text"] for entry in legend] == ["<b>"]


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


def test_parts_have_one_colour_each() -> None:
    """Each callback of the library has its own, and a part of a newer version is among the others."""
    assert [part_class(part) for part in ("data_wait", "callbacks", "new")] == [
        *("part-data-wait", "part-callbacks", "part-other")
    ]
    assert part_class("callback/JaxProfiler") != part_class("callback/MemoryProfiler")
    assert part_class("callback/<x>") in {f"callback-{number}" for number in range(8)}
