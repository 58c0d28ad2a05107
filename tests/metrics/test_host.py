import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.errors import MetricError
from trackside.metrics import (
    LOG_MODES,
    HostMetrics,
    MetricLayout,
    Metrics,
    MetricSpec,
    reset_metrics,
    to_host_metrics,
)

LAYOUT = MetricLayout((MetricSpec("n", LOG_MODES), MetricSpec("w", LOG_MODES, has_float_count=True)))


@jax.jit
def add(vector, value, count):
    step = {"n": {"value": value, "count": count}, "w": {"value": value, "count": count.astype(jnp.float32) / 4}}
    return Metrics(LAYOUT, vector).update(step).vector


def accumulated_vector(steps):
    vector = LAYOUT.initial
    for value, count in steps:
        vector = add(vector, np.float32(value), np.int32(count))
    return np.asarray(vector)


def accumulated(steps):
    return HostMetrics(LAYOUT, accumulated_vector(steps))


def by_definition(steps, scale):
    """The logged numbers of the steps, straight from the definitions, in double precision."""
    steps = [(float(np.float32(value)), count * scale) for value, count in steps if count]
    if not steps:
        return None
    ratios = [value / count for value, count in steps]
    mean = sum(value for value, _ in steps) / sum(count for _, count in steps)
    return {"_mean": mean, "": mean, "_single": ratios[-1], "_max": max(ratios), "_std": np.std(ratios)}


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    steps=st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.integers(0, 5)), max_size=10),
    cuts=st.sets(st.integers(1, 9)),
)
def test_merging_intervals_is_accumulating_in_one_go(steps, cuts):
    """However steps are split into intervals, the merged result matches the definitions, in every mode."""
    merged, start = HostMetrics(LAYOUT), 0
    for end in [*sorted(cut for cut in cuts if cut < len(steps)), len(steps)]:
        merged.merge(accumulated(steps[start:end]))
        start = end
    expected = {}
    for name, scale in (("n", 1), ("w", 0.25)):
        values = by_definition(steps, scale)
        if values is not None:
            expected.update({name + postfix: value for postfix, value in values.items()})
    assert merged.num_steps == len(steps)
    assert merged.compute() == pytest.approx(expected, rel=1e-5, abs=1e-3)


def test_merge_keeps_counts_exact():
    """Counts merge exactly beyond 2^32."""
    layout = MetricLayout((MetricSpec("m", ("mean",)),))
    total = HostMetrics(layout)
    for _ in range(3):
        vector = np.asarray(Metrics(layout).update({"m": {"value": 1.0, "count": 2**32 + 1}}).vector)
        total.merge(HostMetrics(layout, vector))
    assert total.count.tolist() == [3 * (2**32 + 1)]


def test_reading_a_vector_does_not_change_it():
    """Merging does not change the vector that the metrics were read from."""
    vector = np.asarray(add(LAYOUT.initial, np.float32(2), np.int32(1)))
    before = vector.copy()
    HostMetrics(LAYOUT, vector).merge(accumulated([(3.0, 1)]))
    assert np.array_equal(vector, before)


def test_totals_survive_json_to_the_last_bit():
    """What was taken down as plain values is the same again, and of other metrics it is nothing."""
    metrics = accumulated([(8.0, 2), (1.0 / 3.0, 3)])
    again = HostMetrics.from_plain(LAYOUT, json.loads(json.dumps(metrics.to_plain())))
    assert again is not None
    assert again.compute() == metrics.compute()
    assert HostMetrics.from_plain(MetricLayout((MetricSpec("other", ("mean",)),)), metrics.to_plain()) is None


def test_metrics_before_any_step_log_nothing():
    """Without steps there is nothing to log, and no minus infinity or NaN."""
    assert HostMetrics(LAYOUT).compute() == {}


def test_plain_dicts_become_numbers():
    """Numbers of a plain dict keep their names; metric dicts are logged by their modes, or by their mean."""
    values = to_host_metrics(
        {
            "epoch": 3,
            "lr": jnp.asarray(0.5),
            "loss": {"value": 6.0, "count": 4},
            "acc": {"value": 3.0, "count": 4, "log_modes": ["max", "mean_nopostfix"]},
        }
    )
    assert values == {"epoch": 3.0, "lr": 0.5, "loss_mean": 1.5, "acc_max": 0.75, "acc": 0.75}


def test_plain_dict_with_what_is_no_number():
    """An entry of a plain dict that is not a number is refused by its name."""
    with pytest.raises(MetricError, match="value of metric 'note'"):
        to_host_metrics({"note": "good"})


def test_reset_of_metrics_in_either_form():
    """Accumulated metrics are reset to no steps, plain ones to zeros, with their modes kept."""
    metrics = Metrics(LAYOUT, add(LAYOUT.initial, np.float32(2), np.int32(1)))
    assert to_host_metrics(reset_metrics(metrics)) == {}
    plain = {"loss": {"value": 2.0, "count": 3, "log_modes": ["max"]}, "lr": 0.5}
    assert reset_metrics(plain) == {"loss": {"value": 0.0, "count": 0, "log_modes": ["max"]}, "lr": 0.0}


def test_an_infinity_is_merged_without_a_warning():
    """Its standard deviation is not a number, which is logged and not warned of."""
    merged = HostMetrics(LAYOUT)
    for value in (-np.inf, 1.0, -np.inf):
        merged.merge(accumulated([(value, 1)]))
    assert np.isnan(merged.compute()["n_std"])
    assert merged.compute()["n_single"] == -np.inf
