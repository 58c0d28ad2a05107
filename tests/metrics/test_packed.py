from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import MetricError
from trackside.metrics import LOG_MODES, HostMetrics, MetricLayout, Metrics, MetricSpec, to_host_metrics
from trackside.metrics.packed import MetricRecorder
from trackside.profiling.compiles import compile_counter


def learned_layout(step, *args, log_modes=LOG_MODES):
    recorder = MetricRecorder(log_modes)

    def trace(*args):
        recorder.update(step(*args))

    jax.eval_shape(trace, *args)
    assert recorder.layout is not None
    return recorder.layout


def accumulated(step, num_steps, data=()):
    """The metrics after `num_steps` calls of `step(index, data)`, accumulated by one compiled loop."""
    layout = learned_layout(step, jnp.int32(0), data)

    @jax.jit
    def run(data):
        start = Metrics(layout, jnp.asarray(layout.initial))
        return jax.lax.fori_loop(0, num_steps, lambda at, metrics: metrics.update(step(at, data)), start)

    return run(data)


def floats(values):
    return np.array(values, np.float32)


def of_steps(values, counts=None):
    """Accumulated metrics of one metric `m`, in all modes."""
    counts = np.ones(len(values), np.int32) if counts is None else np.asarray(counts)
    return accumulated(
        lambda at, data: {"m": {"value": data[0][at], "count": data[1][at]}},
        len(values),
        (jnp.asarray(values), jnp.asarray(counts)),
    )


def host(metrics):
    return HostMetrics(metrics.layout, np.asarray(metrics.vector))


@pytest.fixture(scope="module")
def loss_layout():
    return MetricLayout((MetricSpec("loss", LOG_MODES),))


def test_modes_follow_their_definitions():
    """The mean is weighted by count; single, max and std use each step's value / count."""
    values = to_host_metrics(of_steps(floats([6, 1, 8]), [3, 1, 2]))
    assert values == {
        "m_mean": 2.5,
        "m": 2.5,
        "m_single": 4.0,
        "m_max": 4.0,
        "m_std": pytest.approx(np.std([2, 1, 4]), rel=1e-6),
    }


def test_max_of_negative_values():
    """The maximum of (-3, -1, -2) is -1, and not the 0 that an accumulator of zeros would give."""
    assert to_host_metrics(of_steps(floats([-3, -1, -2])))["m_max"] == -1


def test_int32_counts_add_up_beyond_two_limbs():
    """Device counts that add up beyond 2^31 and 2^32 stay exact."""
    metrics = accumulated(lambda at, data: {"m": {"value": 1.0, "count": data}}, 5, jnp.int32(2**31 - 1))
    assert host(metrics).count.tolist() == [5 * (2**31 - 1)]


def test_python_counts_add_up_beyond_two_limbs():
    """Counts that are known when the step is traced may each be beyond 2^32, and add up exactly."""
    metrics = accumulated(lambda at, data: {"m": {"value": 1.0, "count": 2**33 + 1}}, 3)
    assert host(metrics).count.tolist() == [3 * (2**33 + 1)]


def test_a_million_losses_add_up():
    """The sum of a million float32 losses is right to ten digits, which a float32 sum is not."""
    losses = np.random.default_rng(0).uniform(2.0, 2.5, 1_000_000).astype(np.float32)
    exact, naive = losses.mean(dtype=np.float64), np.cumsum(losses)[-1] / len(losses)
    assert abs(naive - exact) > 1e-6 * exact
    metrics = accumulated(lambda at, data: {"m": data[at]}, len(losses), jnp.asarray(losses))
    assert to_host_metrics(metrics)["m_mean"] == pytest.approx(exact, rel=1e-10)


def test_std_of_a_narrow_distribution():
    """The standard deviation of values 1000 +- 0.01 is right, where E[x^2] - E[x]^2 in float32 has no digit left."""
    values = (1000 + 0.01 * np.random.default_rng(0).standard_normal(1000)).astype(np.float32)
    std = to_host_metrics(of_steps(values))["m_std"]
    assert std == pytest.approx(values.std(dtype=np.float64), rel=1e-2)


def test_integer_values_are_exact():
    """int32 values beyond 2^24 add up exactly, beyond 2^32 too."""
    values = np.array([2**24 + 1, 2**31 - 1, 2**31 - 3, -5, 2**30 + 7], np.int32)
    assert host(of_steps(values)).sum.tolist() == [values.sum(dtype=np.int64)]


def test_weights_serve_as_counts():
    """Float counts are summed as weights."""
    metrics = of_steps(floats([1.0, 3.0]), floats([0.5, 0.25]))
    assert host(metrics).count.tolist() == [0.75]
    assert to_host_metrics(metrics)["m_mean"] == pytest.approx(4 / 0.75)


def test_many_weights_add_up():
    """A hundred thousand weights of 0.1 add up as accurately as values do."""
    metrics = accumulated(lambda at, data: {"m": {"value": data, "count": data}}, 100_000, jnp.float32(0.1))
    assert host(metrics).count[0] == pytest.approx(100_000 * float(np.float32(0.1)), rel=1e-10)


@pytest.mark.parametrize("nothing", [0.0, 5.0, np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_step_without_items_changes_nothing(nothing, dtype):
    """A step whose count is 0 leaves every mode as it was, whatever its value."""
    with_empty = of_steps(floats([nothing, 6, nothing, 1, nothing]), np.array([0, 3, 0, 1, 0], dtype))
    assert to_host_metrics(with_empty) == to_host_metrics(of_steps(floats([6, 1]), np.array([3, 1], dtype)))


def test_metric_without_any_items_is_left_out():
    """A metric that had no items in any step is not logged, and the others are."""
    metrics = accumulated(lambda at, data: {"rare": {"value": 0.0, "count": 0}, "loss": 2.0}, 2)
    assert set(to_host_metrics(metrics)) == {"loss_mean", "loss", "loss_single", "loss_max", "loss_std"}


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (jnp.asarray([1.5, 2.5], jnp.bfloat16), 2.0),
        (jnp.asarray([True, False, True, True]), 0.75),
    ],
)
def test_values_of_other_types(values, mean):
    """bfloat16 and bool values are accumulated as the numbers that they are."""
    assert to_host_metrics(of_steps(values))["m_mean"] == mean


def test_many_bfloat16_values_add_up():
    """A sum of bfloat16 values is not itself held in bfloat16."""
    metrics = accumulated(lambda at, data: {"m": data}, 1000, jnp.asarray(1.0, jnp.bfloat16))
    assert host(metrics).sum.tolist() == [1000.0]


def test_nan_is_not_hidden():
    """A NaN shows in every mode that covers its step."""
    values = to_host_metrics(of_steps(floats([1, np.nan, 2])))
    assert {name for name, value in values.items() if np.isnan(value)} == {"m_mean", "m", "m_max", "m_std"}


def test_metrics_read_as_the_documented_mapping():
    """Metrics are a mapping from names to value and count so far, in the order of their names."""
    metrics = accumulated(lambda at, data: {"b": {"value": 2.0, "count": 4}, "a": {"value": 1.0, "count": 0.5}}, 2)
    assert isinstance(metrics, Mapping)
    assert (list(metrics), len(metrics), "a" in metrics, "c" in metrics) == (["a", "b"], 2, True, False)
    assert {name: {part: float(at) for part, at in metric.items()} for name, metric in metrics.items()} == {
        "a": {"value": 2.0, "count": 1.0},
        "b": {"value": 4.0, "count": 8.0},
    }
    with pytest.raises(KeyError, match="no metric 'c'; available: a, b"):
        metrics["c"]


def test_metrics_are_a_pytree_of_one_leaf(loss_layout):
    """Metrics have a single leaf, and come back from a tree map with their layout."""
    metrics = Metrics(loss_layout)
    assert [leaf is metrics.vector for leaf in jax.tree.leaves(metrics)] == [True]
    mapped = jax.tree.map(lambda leaf: leaf + np.uint32(1), metrics)
    assert isinstance(mapped, Metrics)
    assert mapped.layout is loss_layout
    assert mapped.vector[0] == 1


@pytest.fixture(scope="module")
def add(loss_layout):
    """A compiled step on `loss`: (metrics, value, finite) -> metrics."""

    @jax.jit
    def add(metrics, value, finite=True):
        return metrics.update({"loss": value}, finite=finite)

    return add


def is_finite(metrics: Metrics) -> bool:
    """What the loop reads: the first word of the vector."""
    return not np.asarray(metrics.vector)[0]


def test_finite_flag_is_sticky_until_reset(add, loss_layout):
    """One step that is not finite marks all that follow, until the metrics are reset."""
    flags, metrics = [], Metrics(loss_layout)
    for finite in (True, False, True):
        metrics = add(metrics, 1.0, finite)
        flags.append(is_finite(metrics))
    flags.append(is_finite(add(metrics.reset(), 1.0, True)))
    assert flags == [True, False, False, True]


def test_reset_forgets_every_step(add, loss_layout):
    """After a reset, all modes and the number of steps are of the new steps only."""
    metrics = Metrics(loss_layout)
    for value in (5.0, 7.0, 3.0):
        metrics = add(metrics, value)
    assert int(metrics.num_steps) == 3
    again = add(metrics.reset(), -1.0)
    assert int(again.num_steps) == 1
    values = to_host_metrics(again)
    assert values == {"loss_mean": -1.0, "loss": -1.0, "loss_single": -1.0, "loss_max": -1.0, "loss_std": 0.0}


def test_updates_and_resets_compile_once(loss_layout):
    """Many updates, with resets to an initial vector on the device in between, are one executable."""
    counter = compile_counter()

    @jax.jit
    def step(vector, value):
        return Metrics(loss_layout, vector).update({"loss": value}).vector

    fresh = jax.device_put(loss_layout.initial, jax.devices()[0])
    values = np.arange(8, dtype=np.float32)
    vector = step(fresh, values[0])
    num_events = counter.num_events
    for at, value in enumerate(values):
        vector = step(fresh if at % 3 == 0 else vector, value)
    assert counter.num_events == num_events
    assert HostMetrics(loss_layout, np.asarray(vector)).num_steps == 2


def test_recorder_learns_names_modes_and_kind_of_count():
    """Under eval_shape the recorder sees which metrics there are, their modes, and which have weights as counts."""

    def step(x):
        return {
            "loss": x.sum(),
            "acc": {"value": x.sum(), "count": x.size, "log_modes": ["max", "single"]},
            "weighted": {"value": x.sum(), "count": x.sum()},
        }

    layout = learned_layout(step, jax.ShapeDtypeStruct((3,), np.float32), log_modes=("mean", "std"))
    assert layout.specs == (
        MetricSpec("acc", ("max", "single")),
        MetricSpec("loss", ("mean", "std")),
        MetricSpec("weighted", ("mean", "std"), has_float_count=True),
    )


def test_recorder_takes_modes_that_were_split_off_before():
    """Log modes that a loss wrapper has split off are passed separately."""
    recorder = MetricRecorder(("mean",)).update({"loss": 1.0}, {"loss": ("max",)})
    assert recorder.layout == MetricLayout((MetricSpec("loss", ("max",)),))


def test_recorder_for_evaluation_leaves_modes_aside():
    """In evaluation only the default mode counts, whatever the metrics ask for."""
    recorder = MetricRecorder(("mean_nopostfix",), only_default=True)
    recorder.update({"loss": {"value": 1.0, "log_modes": ["max"]}}, {"loss": ("std",)})
    assert recorder.layout == MetricLayout((MetricSpec("loss", ("mean_nopostfix",)),))


@pytest.mark.parametrize("changed", [{"loss": 1.0, "extra": 2.0}, {"los": 1.0}, {}])
def test_changed_set_of_metrics_is_refused(changed, loss_layout):
    """A step that returns other metrics than when it was first traced is an error with both sets."""
    with pytest.raises(
        MetricError, match=r"expected \['loss'\] as in the first trace of the step, got \[.*; return the same metrics"
    ):
        Metrics(loss_layout).update(changed)


@pytest.mark.parametrize(("has_float_count", "count"), [(False, 1.5), (True, 2)])
def test_changed_kind_of_count_is_refused(has_float_count, count):
    """A count that was an integer and becomes a weight, or the reverse, is an error and not a wrong number."""
    layout = MetricLayout((MetricSpec("loss", ("mean",), has_float_count),))
    with pytest.raises(MetricError, match=r"count of metric 'loss': .*same type in every step"):
        Metrics(layout).update({"loss": {"value": 1.0, "count": count}})


def test_step_without_metrics():
    """A step without any metrics still counts its steps and keeps the finite flag."""
    metrics = Metrics(MetricLayout(())).update({}).update({}, finite=jnp.asarray(False))
    assert (host(metrics).num_steps, is_finite(metrics), to_host_metrics(metrics)) == (2, False, {})
