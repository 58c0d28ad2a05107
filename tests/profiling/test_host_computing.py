"""How much of the time between two calls is computing, where the process is the device."""

import pytest

from trackside.profiling.host_computing import HostComputing


def test_own_code_that_computes() -> None:
    """Own code and parts that the user named are computing as far as processors were used; waiting for data is not."""
    gap = {"other": 4.0, "forward": 2.0, "data_wait": 1.0, "logging": 1.0}
    computed = HostComputing().of_gap(gap, {"other": 1.0, "forward": 2.0, "data_wait": 1.0, "logging": 1.0})
    assert computed == {"other": 1.0, "forward": 2.0}


def test_several_processors_do_not_count_several_times() -> None:
    """A pool of threads computes for no longer than the time that passes."""
    assert HostComputing().of_gap({"other": 2.0}, {"other": 7.0}) == {"other": 2.0}


def test_gaps_that_nobody_saw_are_like_the_others() -> None:
    """They have the mean share of those that were seen, whatever these took; before there are any, nothing is idle."""
    computing = HostComputing()
    assert computing.of_gap({"other": 2.0}, None) == {"other": 2.0}
    computing.of_gap({"other": 1.0}, {"other": 0.5})
    computing.of_gap({"other": 1000.0}, {})
    assert computing.of_gap({"other": 2.0}, None) == pytest.approx({"other": 0.5})
