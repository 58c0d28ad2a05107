"""Log rows read from packed vectors, and totals over many of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metrics.test_host import LAYOUT, accumulated_vector
from trackside.metrics import HostMetrics, row
from trackside.metrics.row import MetricTotals, RowReader

STEPS = st.lists(st.tuples(st.floats(-100, 100, width=32), st.integers(0, 5)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(STEPS)
def test_row_is_what_host_metrics_compute(steps):
    """A row read in one go holds the numbers that the metrics on the host give, in every mode."""
    vector = accumulated_vector(steps)
    assert RowReader(LAYOUT)(vector) == pytest.approx(HostMetrics(LAYOUT, vector).compute(), rel=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(STEPS, min_size=1, max_size=9))
def test_rows_read_together_are_those_read_one_by_one(intervals):
    """To the last bit, in their order, also where some metrics had no items."""
    vectors = np.stack([accumulated_vector(steps) for steps in intervals])
    together = [
        dict(zip(names, flat[at * len(names) : (at + 1) * len(names)], strict=True))
        for names, num_rows, flat in RowReader(LAYOUT).read_all(vectors)
        for at in range(num_rows)
    ]
    assert together == [RowReader(LAYOUT)(vector) for vector in vectors]
    assert [list(row) for row in together] == [list(RowReader(LAYOUT)(vector)) for vector in vectors]


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(STEPS, min_size=1, max_size=12), st.integers(1, 12), st.integers(1, 5))
def test_totals_do_not_depend_on_how_intervals_are_given(intervals, num_at_once, fold_every):
    """One by one or several at once, the sums are the same to the last bit."""
    vectors = np.stack([accumulated_vector(steps) for steps in intervals])
    one_by_one, at_once = MetricTotals(LAYOUT), MetricTotals(LAYOUT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row, "_FOLD_EVERY", fold_every)
        for vector in vectors:
            one_by_one.add(vector)
        for at in range(0, len(vectors), num_at_once):
            at_once.add_all(vectors[at : at + num_at_once])
    assert at_once.metrics.to_plain() == one_by_one.metrics.to_plain()


def test_last_step_by_the_metrics_own_names():
    """The last step's own values go by the metrics' names, whatever their modes are logged as."""
    vector = accumulated_vector([(1.0, 1), (6.0, 2)])
    assert RowReader(LAYOUT).last_step(vector) == {"n": 3.0, "w": 12.0}


def test_reading_needs_no_writable_memory():
    """The vectors that JAX hands out are read-only."""
    vector = accumulated_vector([(1.0, 1)])
    vector.flags.writeable = False
    assert RowReader(LAYOUT)(vector)["n_mean"] == 1.0


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.lists(STEPS, min_size=1, max_size=6), st.integers(1, 4))
def test_totals_are_the_merged_intervals(intervals, fold_every):
    """Totals over intervals are what merging one interval after the other gives, however often they are folded."""
    merged, totals = HostMetrics(LAYOUT), MetricTotals(LAYOUT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row, "_FOLD_EVERY", fold_every)
        for steps in intervals:
            vector = accumulated_vector(steps)
            merged.merge(HostMetrics(LAYOUT, vector))
            totals.add(vector)
    assert totals.compute() == pytest.approx(merged.compute(), rel=1e-9, abs=1e-6)
    assert totals.metrics.num_steps == merged.num_steps


def test_totals_before_any_step():
    """Totals of nothing are nothing."""
    assert MetricTotals(LAYOUT).compute() == {}


def test_vectors_may_be_told_apart_from_their_totals():
    """Adding a vector does not change it."""
    vector = accumulated_vector([(2.0, 1)])
    before = vector.copy()
    totals = MetricTotals(LAYOUT)
    totals.add(vector)
    totals.compute()
    np.testing.assert_array_equal(vector, before)
