"""Percentiles of step times over the clean steps."""

import numpy as np
import pytest

from trackside.report.step_time_summary import summarise_step_times
from trackside.runs import StepTimes


def make_times(seconds: list[float], num_steps: list[int], **masks: list[bool]) -> StepTimes:
    none = [False] * len(seconds)
    marked = {name: np.array(masks.get(name, none)) for name in ("warm_up", "compiling", "disturbed")}
    return StepTimes(np.cumsum(num_steps), np.array(num_steps), np.array(seconds), np.zeros(len(seconds)), **marked)


def test_percentiles_count_steps_and_not_rows() -> None:
    """A row over ninety steps weighs ninety times as much as a row over one."""
    times = summarise_step_times(make_times([0.001, 0.1], [90, 10]))
    assert times is not None
    assert (times.p50_s, times.p95_s) == (0.001, 0.1)
    assert times.mean_s == pytest.approx(0.0109)


def test_left_out_steps_have_one_reason_each() -> None:
    """A step that compiled during warm-up is counted once; steps without a time are counted too."""
    masks = {"warm_up": [True, True, False], "compiling": [True, False, False]}
    times = summarise_step_times(make_times([1.0, 1.0, 0.5], [2, 3, 5], **masks), num_steps=12)
    assert times is not None
    assert times.left_out == {"compiling": 2, "warm_up": 3, "not_timed": 2}
    assert (times.num_steps, times.num_left_out) == (5, 7)


def test_no_clean_step_no_percentiles() -> None:
    """Where every step was disturbed, there is no step time."""
    assert summarise_step_times(make_times([1.0], [1], disturbed=[True])) is None
