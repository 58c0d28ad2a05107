"""Scopes in few rows."""

import pytest

from trackside.trace.rollup import roll_up
from trackside.trace.tables import NO_SCOPE, ScopeRow


def rows(**shares: float) -> tuple[ScopeRow, ...]:
    return tuple(ScopeRow(name.replace("__", "/"), "forward", share, share, 1) for name, share in shares.items())


def labels(*given, max_rows: int = 12) -> list[str]:
    return [row.label for row in roll_up(rows(**dict(given)), max_rows)]


def test_largest_scope_is_opened():
    """A scope with much of the time shows what lies under it; a small one stays closed."""
    assert labels(("loss__a", 0.6), ("loss__b", 0.35), ("update__x", 0.03), ("update__y", 0.02)) == [
        "loss/a",
        "loss/b",
        "update",
    ]


def test_time_of_a_scope_itself_has_a_row():
    """What lies directly in a scope is not lost when it is opened."""
    assert labels(("loss", 0.3), ("loss__a", 0.7)) == ["loss/a", "loss/."]


def test_many_small_scopes_share_a_row():
    """The largest are shown, the rest is one row."""
    many = [(f"loss__layer_{index}", 0.1) for index in range(9)]
    shown = labels(*many, ("update", 0.1))
    assert shown[0] == "loss/(5 more)"
    assert len(shown) == 4 + 1 + 1


def test_rows_sum_to_the_whole():
    """However scopes are put together, no share is lost."""
    given = rows(a__b__c=0.2, a__b__d=0.25, a__b=0.05, a__e=0.2, f=0.3)
    for max_rows in (1, 3, 12):
        assert sum(row.total for row in roll_up(given, max_rows)) == pytest.approx(1.0)


def test_equal_blocks_are_opened_together():
    """Of two layers of one kind, neither stays closed because the other took a little longer."""
    blocks = [("a__block_0__x", 0.3), ("a__block_0__y", 0.2), ("a__block_1__x", 0.25), ("a__block_1__y", 0.2)]
    assert sorted(labels(*blocks, ("b", 0.05))) == [*sorted(name.replace("__", "/") for name, _ in blocks), "b"]
    assert sorted(labels(*blocks, ("b", 0.05), max_rows=4)) == ["a/block_0", "a/block_1", "b"]


def test_no_more_rows_than_asked_for():
    """Nothing is opened beyond the room there is."""
    many = [(f"a__{name}__{inner}", 0.1) for name in "bcd" for inner in "xyz"]
    assert len(labels(*many, max_rows=4)) <= 4


def test_what_has_no_scope():
    """The row of what has no scope is one, though its name holds no path."""
    table = (ScopeRow(NO_SCOPE, "other", 1.0, 1.0, 1),)
    assert roll_up(table, 5) == [(NO_SCOPE, {"other": 1.0}, 0.0)]


def test_what_is_estimated_is_rolled_up_too():
    """A row says how much of its share is estimated: of all under it, of the scope itself, and of the rest."""
    table = tuple(
        ScopeRow(f"net/{name}" if name else "net", "forward", 0.1, 0.1, 1, estimated_s=estimated_s)
        for name, estimated_s in (("a", 0.1), ("b", 0.05), ("c", 0.0), ("d", 0.0), ("e", 0.1), ("f", 0.02), ("", 0.04))
    )
    closed = roll_up(table, 1)
    assert [(row.label, row.estimated, row.mark) for row in closed] == [("net", pytest.approx(0.31), "~")]
    opened = {row.label: (pytest.approx(row.estimated), row.mark) for row in roll_up(table, 12)}
    assert opened["net/a"] == (0.1, "~")
    assert opened["net/c"] == (0.0, "")
    assert opened["net/."] == (0.04, "~")
    assert opened["net/(2 more)"] == (0.12, "~")
