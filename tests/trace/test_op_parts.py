"""Parts of an operation from what they cost."""

import math

import pytest

from trackside.trace.hlo import Frame
from trackside.trace.op_parts import OpPart, merge_places, split_by_cost

LINE = Frame("/home/me/a.py", 3, "f")


def part(scope: str, phase: str = "forward", line: Frame | None = None) -> OpPart:
    return OpPart(tuple(scope.split("/")) if scope else (), phase, line)


def test_shares_are_in_proportion_to_costs():
    """Parts sum to 1, the largest first."""
    parts = split_by_cost({part("a"): 1.0, part("b"): 3.0})
    assert [("/".join(each.scope), each.share) for each in parts] == [("b", 0.75), ("a", 0.25)]


def test_a_scope_that_is_hardly_any_of_it_is_left_out():
    """What is below one in a hundred goes to the others; many small lines of one scope do not."""
    small_lines = {part("b", line=Frame("/home/me/b.py", line, "g")): 0.5 for line in range(10)}
    parts = split_by_cost({part("a", line=LINE): 100.0, **small_lines, part("c"): 0.5})
    assert {each.scope for each in parts} == {("a",), ("b",)}
    assert sum(each.share for each in parts) == pytest.approx(1.0)
    assert len(parts) == 11


@pytest.mark.parametrize("cost", [0.0, math.inf])
def test_nothing_to_go_by(cost):
    """Without costs, or with ones that no program has, there are no parts."""
    assert split_by_cost({part("a"): cost}) == ()


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(("net", "a"), "forward")], (("net", "a"), "forward")),
        ([(("net", "a"), "forward"), (("net", "a"), "backward")], (("net", "a"), "other")),
        ([(("net", "a"), "other"), (("net", "b"), "other")], (("net", "(one kernel over 2 scopes)"), "other")),
        ([(("net",), "other"), (("net", "b"), "other")], (("net", "(one kernel over 2 scopes)"), "other")),
        ([(("a",), "other"), ((), "other")], (("(one kernel over 1 scope)",), "other")),
    ],
)
def test_what_several_places_have_in_common(places, expected):
    """The scope and the phase that all share are named; of what they do not share, only the number."""
    assert merge_places(places) == expected
