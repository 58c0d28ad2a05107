import numpy as np
import pytest

from trackside.compare.difference import Difference, interval_of, largest_first


def test_an_interval_without_zero_is_significant():
    """A change is sure where its interval lies on one side of zero."""
    assert Difference("part", 1.0, 2.0, low=0.5, high=1.5).is_significant
    assert Difference("part", 2.0, 1.0, low=-1.5, high=-0.5).is_significant
    assert not Difference("part", 1.0, 1.1, low=-0.1, high=0.3).is_significant


def test_without_an_interval_nothing_is_sure_but_what_is_counted():
    """One figure of each run is no proof, unless it has no noise."""
    assert not Difference("part", 1.0, 2.0).is_significant
    assert Difference("compiles", 1, 2, "count", is_exact=True).is_significant
    assert not Difference("compiles", 2, 2, "count", is_exact=True).is_significant


def test_what_is_not_there_counts_as_none():
    """Something that only one run has is a change by all of it, without a share."""
    new = Difference("scope", None, 2.0)
    assert new.change == 2.0
    assert new.relative_change is None
    assert Difference("scope", 2.0, None).relative_change == -1.0


def test_sure_changes_come_first():
    """Order is by certainty, then by size."""
    sure, unsure, small = (
        Difference("sure", 1.0, 2.0, low=0.5, high=1.5),
        Difference("unsure", 1.0, 9.0),
        Difference("small", 1.0, 1.1, low=0.05, high=0.15),
    )
    assert [one.name for one in largest_first([unsure, small, sure])] == ["sure", "small", "unsure"]


def test_interval_holds_the_middle():
    """The interval leaves out as much on each side."""
    assert interval_of(np.arange(1001.0)) == pytest.approx((25.0, 975.0))
