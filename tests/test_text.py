"""How numbers read."""

import pytest

from trackside.text import (
    a_type,
    chart_label,
    count,
    duration,
    evidence_value,
    four_digits,
    head,
    moment,
    num_bytes,
    percent,
    percent_of_peak,
    seconds,
    share_bar,
    tail,
    three_digits,
    with_prefix,
    wrap,
)


@pytest.mark.parametrize(("share", "expected"), [(0.62, "62 %"), (0.1, "10 %"), (0.0512, "5.1 %"), (1.0, "100 %")])
def test_percent(share, expected):
    """Shares are whole percentages, with a digit more where they are small."""
    assert percent(share) == expected


def test_percent_of_peak():
    """A share of a measured peak has a range, one of a peak from a data sheet has none."""
    assert percent_of_peak(0.12, (0.1, 0.14)) == "12 % (10 to 14 %, measured peak)"
    assert percent_of_peak(0.05, (0.0402, 0.11)) == "5.0 % (4.0 to 11 %, measured peak)"
    assert percent_of_peak(0.12, None) == "12 %"


@pytest.mark.parametrize(
    ("time_s", "expected"), [(75.25, "75.2 s"), (1234.5, "1234 s"), (0.0125, "12.5 ms"), (3.2e-5, "32 us"), (0, "0 us")]
)
def test_seconds(time_s, expected):
    """Times have the unit that suits them."""
    assert seconds(time_s) == expected


@pytest.mark.parametrize(("number", "expected"), [(12, "12 B"), (6400, "6.4 kB"), (2.5e6, "2.5 MB"), (3e9, "3 GB")])
def test_num_bytes(number, expected):
    """Numbers of bytes have the unit that suits them."""
    assert num_bytes(number) == expected


def test_count():
    """One thing is singular."""
    assert [count(1, "time"), count(2, "time")] == ["1 time", "2 times"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("data_wait_share", 0.5, "50 %"),
        ("data_wait_s", 0.002, "2 ms"),
        ("bytes_per_step", 2000.0, "2 kB"),
        ("num_steps", 12000, "12,000"),
        ("rate", 0.12345, "0.123"),
        ("rate", 4127.5, "4,130"),
        ("callback", "Saver", "Saver"),
    ],
)
def test_evidence_reads_in_the_unit_of_its_name(name, value, expected):
    """A figure of the evidence is shown in the unit that its name ends in."""
    assert evidence_value(name, value) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0.0, "0"),
        (0.12345, "0.123"),
        (81.06, "81.1"),
        (999.4, "999"),
        (999.6, "1,000"),
        (4127.0, "4,130"),
        (4127, "4,130"),
        (1.234e7, "12,300,000"),
        (-4127.0, "-4,130"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(number: float, expected: str) -> None:
    """Large numbers are told in thousands, as people write them."""
    assert three_digits(number) == expected


@pytest.mark.parametrize(("number", "expected"), [(12, "12 B"), (1.5e4, "15 kB"), (2.5e12, "2.5 TB"), (-3e6, "-3 MB")])
def test_prefixes(number: float, expected: str) -> None:
    """Large numbers have the prefix that suits them."""
    assert with_prefix(number, "B") == expected


def test_a_long_text_is_cut_at_the_end_that_says_less() -> None:
    """A path keeps its end, a sentence its beginning, and the ellipsis counts."""
    assert [tail("/a/b/c.py", 5), tail("c.py", 5)] == ["…c.py", "c.py"]
    assert [head("a sentence", 5), head("word", 5)] == ["a se…", "word"]


def test_a_number_stays_with_its_unit() -> None:
    """Lines break between words, and never between a number and its unit."""
    assert wrap("the step took about 12 ms", 22, hanging="  ") == ["the step took about", "  12 ms"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.7, "1 min"), (192, "3 min 12 s"), (7500, "2 h 5 min"), (270000, "3 d 3 h")],
)
def test_duration(seconds: float, text: str) -> None:
    """Two units at most."""
    assert duration(seconds) == text


def test_numbers_stay_with_their_units() -> None:
    """No line begins with a unit."""
    assert wrap("it is 532 kB and 12 % more than all that", 27) == ["it is 532 kB and 12 % more", "than all that"]
    assert wrap("memory of 532 kB and a half", 21)[0] == "memory of 532 kB and"
    assert wrap("the first is of 532 kB", 20) == ["the first is of", "532 kB"]


@pytest.mark.parametrize(
    ("number", "expected"), [(3.0, "3"), (12345.6, "12,346"), (0.123456, "0.1235"), (1e7, "1e+07"), (-2000.0, "-2,000")]
)
def test_four_digits(number, expected):
    """Numbers without a unit are whole where they are whole, and have four digits otherwise."""
    assert four_digits(number) == expected


def test_lone_surrogates_become_question_marks() -> None:
    """A name that is not valid Unicode can be part of a chart."""
    assert chart_label("\udcff") == "?"


@pytest.mark.parametrize("text", ["<b>x</b>", "&lt;", "a & b", "<a href='javascript:1'>x</a>"])
def test_labels_are_literal(text: str) -> None:
    """A label has no markup for plotly to read, and says what the text said."""
    shown = chart_label(text)
    assert "<" not in shown
    assert shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") == text


def test_labels_are_short_and_on_one_line() -> None:
    """A long name is cut, a line break becomes a space."""
    assert chart_label("a\nb") == "a b"
    assert chart_label("x" * 500) == "x" * 79 + "…"


@pytest.mark.parametrize("timestamp", [1e30, -1e30, float("nan"), float("inf")])
def test_moments_that_no_calendar_has(timestamp: float) -> None:
    """A damaged time of a row is shown as unknown, and nothing fails on it."""
    assert moment(timestamp) == "unknown time"


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, ""), (0.001, "▏"), (0.027, "▋"), (0.5, "█" * 12), (1.0, "█" * 24), (1e-9, "▏")]
)
def test_bars_tell_small_shares_apart(share: float, expected: str) -> None:
    """A share is shown to an eighth of a column, and is never invisible."""
    assert share_bar(share, 24) == expected


@pytest.mark.parametrize(("value", "expected"), [(None, "None"), (3.0, "a float"), (3, "an int"), ([], "a list")])
def test_a_type_has_its_article(value: object, expected: str) -> None:
    """Errors read as sentences."""
    assert a_type(value) == expected
