import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import MetricError
from trackside.metrics import add_step_metrics, check_log_modes
from trackside.metrics.step_metric import split_log_modes


def total_of(metric):
    return float(metric.value[0]) + float(metric.value[1])


def count_of(metric):
    high, low = metric.num_items
    return float(high) + float(low) if metric.has_float_count else int(high) * 2**32 + int(low)


def only(metric):
    return split_log_modes({"m": metric})[0]["m"]


def test_number_is_a_sum_over_one_item():
    """A plain number counts once and has no log modes."""
    metrics, modes = split_log_modes({"loss": 2.5})
    assert (total_of(metrics["loss"]), count_of(metrics["loss"]), modes) == (2.5, 1, {})


def test_dict_is_parted_into_arrays_and_modes():
    """Of a metric dict, value and count become arrays and the log modes are given back by name, each mode once."""
    metrics, modes = split_log_modes({"acc": {"value": 3.0, "count": 4, "log_modes": ["max", "std", "max"]}})
    assert (total_of(metrics["acc"]), count_of(metrics["acc"])) == (3.0, 4)
    assert modes == {"acc": ("max", "std")}
    assert all(leaf.shape == () for leaf in jax.tree.leaves(metrics))


def test_split_metrics_pass_through_unchanged():
    """Metrics that were split before are taken as they are."""
    metrics, _ = split_log_modes({"loss": 1.0})
    assert split_log_modes(metrics)[0]["loss"] is metrics["loss"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (jnp.asarray(1.5, jnp.bfloat16), 1.5),
        (jnp.asarray(-0.25, jnp.float16), -0.25),
        (True, 1.0),
        (jnp.asarray(False), 0.0),
        (np.bool_(True), 1.0),
        (jnp.asarray(200, jnp.uint8), 200),
        (jnp.asarray(-100, jnp.int8), -100),
        (jnp.asarray(-30_000, jnp.int16), -30_000),
        (jnp.asarray(2**31 - 1, jnp.int32), 2**31 - 1),
        (jnp.asarray(-(2**31), jnp.int32), -(2**31)),
        (jnp.asarray(2**32 - 1, jnp.uint32), 2**32 - 1),
        (2**40 + 1, 2**40 + 1),
        (np.int64(-(2**40) - 1), -(2**40) - 1),
        (np.array(2**40 + 1), 2**40 + 1),
    ],
)
def test_value_of_any_real_type_is_kept_exactly(value, expected):
    """Values of every real type keep all of their digits, also integers that do not fit in one float32 or int32."""
    assert total_of(only(value)) == expected


@pytest.mark.parametrize(
    ("count", "expected", "is_float"),
    [
        (0, 0, False),
        (2**31 + 5, 2**31 + 5, False),
        (2**32 + 5, 2**32 + 5, False),
        (np.int64(2**33 + 1), 2**33 + 1, False),
        (np.array(2**33 + 1), 2**33 + 1, False),
        (True, 1, False),
        (jnp.asarray(7, jnp.int32), 7, False),
        (jnp.asarray(7, jnp.uint8), 7, False),
        (jnp.asarray(True), 1, False),
        (2.5, 2.5, True),
        (jnp.asarray(1.5, jnp.bfloat16), 1.5, True),
    ],
)
def test_count_of_any_type_is_kept_exactly(count, expected, is_float):
    """Integer counts are exact beyond 2^32 and float counts stay floats."""
    metric = only({"value": 1.0, "count": count})
    assert (count_of(metric), metric.has_float_count) == (expected, is_float)


@pytest.mark.parametrize("count", [0, jnp.asarray(0), 0.0])
def test_sum_over_no_items_is_zero(count):
    """Without items the value is 0, also where a masked mean has made it NaN."""
    assert total_of(only({"value": jnp.nan, "count": count})) == 0.0


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([("loss", 1.0)], r"expected a dict of step metrics, got list.*loss, \(metrics, mutable_variables\)"),
        (jnp.zeros(()), "expected a dict of step metrics"),
        ({1: 2.0}, "expected strings as names, such as 'accuracy', got 1"),
        ({"": 2.0}, "expected strings as names, such as 'accuracy', got ''"),
        ({"acc": jnp.zeros(3)}, r"value of metric 'acc': expected a scalar.*shape \(3,\)"),
        ({"acc": [1.0, 2.0]}, "value of metric 'acc': expected a scalar"),
        ({"acc": {"value": 1.0, "count": jnp.zeros(2)}}, r"count of metric 'acc': expected a scalar.*shape \(2,\)"),
        ({"acc": jnp.asarray(1j)}, "value of metric 'acc': expected a real number, got dtype complex64"),
        ({"acc": "high"}, "value of metric 'acc': expected a scalar, got 'high'"),
        ({"acc": None}, "value of metric 'acc': expected a scalar, got None"),
        ({"acc": 2**64}, "value of metric 'acc': expected a number below"),
        ({"acc": {"value": 1.0, "weight": 2}}, "metric 'acc': .*'weight'"),
        ({"acc": {"value": 1.0, 3: 2}}, "metric 'acc': .*3"),
        ({"acc": {"count": 2}}, "metric 'acc': expected a number or a dict with value"),
        ({"acc": {"value": 1.0, "count": -1}}, "count of metric 'acc': expected a number of items, got -1"),
        ({"acc": {"value": 1.0, "log_modes": ["median"]}}, "log_modes of metric 'acc': unknown log mode 'median'"),
        ({"acc": {"value": 1.0, "log_modes": "max"}}, "log_modes of metric 'acc': expected a list.*got 'max'"),
        ({"acc": {"value": 1.0, "log_modes": {"max"}}}, "log_modes of metric 'acc': expected a list"),
    ],
)
def test_malformed_metrics_are_refused_by_name(metrics, message):
    """What is not a step metric is an error that names the metric, the wrong part and its value."""
    with pytest.raises(MetricError, match=message):
        split_log_modes(metrics)


def test_unknown_mode_lists_the_modes():
    """An unknown log mode is refused, with the place where it was set and all valid modes."""
    with pytest.raises(MetricError, match=r"default_train_log_modes: .*'avg'.*mean, mean_nopostfix, single, max, std"):
        check_log_modes(["mean", "avg"], "default_train_log_modes")


def test_log_modes_need_not_cross_jit():
    """The arrays that are left of metrics with log modes pass through grad and jit."""
    seen = {}

    @jax.jit
    @jax.grad
    def loss(x):
        metrics, modes = split_log_modes({"m": {"value": x, "count": 1, "log_modes": ["max"]}})
        seen.update(modes)
        return metrics["m"].value[0] * 2

    assert float(loss(1.0)) == 2.0
    assert seen == {"m": ("max",)}


def test_microbatches_add_up():
    """Values are added to values and counts to counts, with the carry of counts beyond 2^32."""
    one = split_log_modes({"loss": {"value": 1.5, "count": 2**32 - 1}, "w": {"value": 1.0, "count": 0.5}})[0]
    two = split_log_modes({"loss": {"value": 2.0, "count": 3}, "w": {"value": 3.0, "count": 0.25}})[0]
    both = add_step_metrics(one, two)
    assert (total_of(both["loss"]), count_of(both["loss"])) == (3.5, 2**32 + 2)
    assert (total_of(both["w"]), count_of(both["w"])) == (4.0, 0.75)


def test_sum_keeps_what_one_float_would_lose():
    """A small value that is added to a large one is not lost."""
    large, small = only(2.0**30), only(1.0)
    assert total_of(add_step_metrics({"m": large}, {"m": small})["m"]) == 2**30 + 1


def test_infinite_value_stays_infinite():
    """A sum with an infinite value is infinite and not NaN."""
    total = add_step_metrics({"m": only(jnp.inf)}, {"m": only(1.0)})["m"]
    assert total_of(total) == float("inf")
    assert np.isnan(total_of(add_step_metrics({"m": total}, {"m": only(-jnp.inf)})["m"]))
