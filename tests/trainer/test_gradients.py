from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import DataError, MetricError
from trackside.metrics import MetricLayout, Metrics, to_host_metrics
from trackside.trainer.gradients import LossEvaluator, compute_gradients, name_intermediates, split_batch
from trackside.trainer.models.linen import LinenAdapter

PARAMS = {"w": jnp.asarray([0.5, -1.0, 2.0]), "b": jnp.asarray(0.25)}
KEY = jax.random.key(0)


def make_batch(size=12):
    rng = np.random.default_rng(0)
    # Without a pattern that the dealing out of examples could hide: counts differ between all microbatches.
    mask = np.resize([1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1], size).astype(np.float32)
    return {"x": rng.standard_normal((size, 3), np.float32), "y": rng.standard_normal(size, np.float32), "mask": mask}


def errors_of(params, batch):
    return (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


def mean_loss(params, apply_fn, batch, rng, train):
    """A mean over all examples, with a metric that has log modes."""
    errors = errors_of(params, batch)
    worst = {"value": errors.max(), "count": 1, "log_modes": ["max", "std"]}
    return errors.mean(), ({"loss": {"value": errors.sum(), "count": errors.size}, "worst": worst}, None)


def masked_loss(params, apply_fn, batch, rng, train):
    """A mean over the examples that count, as users write it: 0 / 0 where none does."""
    total, count = (errors_of(params, batch) * batch["mask"]).sum(), batch["mask"].sum()
    return total / count, ({"loss": {"value": total, "count": count.astype(jnp.int32)}}, None)


def weighted_loss(params, apply_fn, batch, rng, train):
    """A mean with real weights."""
    weights = batch["mask"] * 0.3 + 0.1
    total = (errors_of(params, batch) * weights).sum()
    return total / weights.sum(), ({"loss": {"value": total, "count": weights.sum()}}, None)


def number_loss(params, apply_fn, batch, rng, train):
    """A mean without a loss metric of its own."""
    errors = errors_of(params, batch)
    return errors.mean(), ({"spread": errors.max() - errors.min()}, None)


def gradients(loss_function, batch, num_microbatches=1, use_scan=False, params: Any = None, mutable: Any = None):
    """Result and gradients, compiled, as the training step computes them; and the log modes that were split off."""
    evaluate = LossEvaluator(loss_function)

    @jax.jit
    def compute(params, mutable, batch):
        return compute_gradients(evaluate, params, mutable, batch, KEY, num_microbatches, use_scan)

    result, grads = compute(PARAMS if params is None else params, mutable, batch)
    return result, grads, evaluate.log_modes


def logged(metrics, names=("loss",)):
    chosen = {name: metrics[name] for name in names}
    layout = MetricLayout.of(chosen, {}, default_log_modes=("mean",))
    return to_host_metrics(Metrics(layout).update(chosen))


both_ways = pytest.mark.parametrize("use_scan", [False, True], ids=["loop", "scan"])


@both_ways
@pytest.mark.parametrize("loss_function", [mean_loss, masked_loss, weighted_loss, number_loss])
def test_microbatches_give_what_the_whole_batch_gives(loss_function, use_scan):
    """Loss, gradients and loss metric of three microbatches are those of the whole batch, however items are counted."""
    batch = make_batch()
    whole, whole_grads, _ = gradients(loss_function, batch)
    parts, part_grads, _ = gradients(loss_function, batch, 3, use_scan)
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-5)
    jax.tree.map(lambda part, one: np.testing.assert_allclose(part, one, rtol=1e-4, atol=1e-6), part_grads, whole_grads)
    assert logged(parts.metrics) == pytest.approx(logged(whole.metrics), rel=1e-5)
    assert parts.metrics.keys() == whole.metrics.keys()


@both_ways
def test_log_modes_are_kept_beside_the_result(use_scan):
    """Log modes, which cannot leave grad or scan, are found at the evaluator once the step was traced."""
    _, _, modes = gradients(mean_loss, make_batch(), 2, use_scan)
    assert modes == {"worst": ("max", "std")}


@both_ways
def test_microbatch_without_items_counts_for_nothing(use_scan):
    """A microbatch whose examples are all masked, and whose own loss is 0 / 0, leaves the result as it is."""
    batch = make_batch()
    batch["mask"] = np.where(np.arange(12) % 3 == 1, 0, batch["mask"]).astype(np.float32)
    whole, whole_grads, _ = gradients(masked_loss, batch)
    parts, part_grads, _ = gradients(masked_loss, batch, 3, use_scan)
    np.testing.assert_allclose(parts.loss, whole.loss, rtol=1e-5)
    jax.tree.map(lambda part, one: np.testing.assert_allclose(part, one, rtol=1e-4, atol=1e-6), part_grads, whole_grads)
    assert logged(parts.metrics) == pytest.approx(logged(whole.metrics), rel=1e-5)


def test_batch_without_items_has_no_gradient():
    """Where no example of any microbatch counts, loss and gradients are zero and not NaN."""
    batch = {**make_batch(), "mask": np.zeros(12, np.float32)}
    result, grads, _ = gradients(masked_loss, batch, 2)
    assert float(result.loss) == 0.0
    assert not any(np.any(np.asarray(grad)) for grad in jax.tree.leaves(grads))


def test_nan_of_a_microbatch_is_not_hidden():
    """A microbatch with items and a NaN makes loss and gradients NaN, as the whole batch would."""
    batch = make_batch()
    batch["x"][3] = np.nan
    result, grads, _ = gradients(masked_loss, batch, 2)
    assert np.isnan(result.loss)
    assert np.isnan(grads["w"]).all()


@both_ways
def test_statistics_go_from_microbatch_to_microbatch(use_scan):
    """Each microbatch sees the mutable variables of the one before, and the last ones are kept."""

    def loss_function(params, apply_fn, batch, rng, train):
        stats = apply_fn["stats"]
        mean = 0.5 * stats["mean"] + 0.5 * batch["y"].mean()
        loss, (metrics, _) = mean_loss(params, apply_fn, batch, rng, train)
        return loss, (metrics, {"stats": {"mean": mean, "num_seen": stats["num_seen"] + 1}})

    start = {"stats": {"mean": jnp.zeros(()), "num_seen": jnp.zeros((), jnp.int32)}}
    batch = make_batch()
    result, _, _ = gradients(loss_function, batch, 3, use_scan, mutable=start)
    expected = 0.0
    for part in range(3):
        expected = 0.5 * expected + 0.5 * batch["y"][part::3].mean()
    assert int(result.mutable_variables["stats"]["num_seen"]) == 3
    np.testing.assert_allclose(result.mutable_variables["stats"]["mean"], expected, rtol=1e-5)


@both_ways
def test_every_microbatch_has_a_key_of_its_own(use_scan):
    """Microbatches draw different random numbers, the same ones by loop and by scan."""

    def loss_function(params, apply_fn, batch, rng, train):
        drawn = jax.random.uniform(rng)
        return params["b"] * drawn, ({"drawn": drawn, "squared": drawn**2}, None)

    result, _, _ = gradients(loss_function, make_batch(), 3, use_scan)
    drawn = [float(jax.random.uniform(jax.random.fold_in(KEY, part))) for part in range(3)]
    assert len(set(drawn)) == 3
    values = logged(result.metrics, ("drawn", "squared"))
    assert values["drawn_mean"] == pytest.approx(np.mean(drawn), rel=1e-5)
    assert values["squared_mean"] == pytest.approx(np.mean(np.square(drawn)), rel=1e-5)


@both_ways
def test_bfloat16_gradients_add_up_in_float32(use_scan):
    """Gradients that are small beside the sum are not lost, and come back in the parameters' own type."""

    def loss_function(params, apply_fn, batch, rng, train):
        return (params["w"] * batch["x"]).mean(), ({}, None)

    batch = {"x": jnp.asarray([256.0] + [1.0] * 15, jnp.bfloat16)}
    _, grads, _ = gradients(loss_function, batch, 16, use_scan, params={"w": jnp.asarray(1.0, jnp.bfloat16)})
    assert grads["w"].dtype == jnp.bfloat16
    assert grads["w"] == jnp.asarray(271 / 16, jnp.bfloat16)


def test_loss_metric_is_added_where_there_is_none():
    """Without a loss metric from the user, the loss counts once per example, in float32 if it has fewer bits."""

    def loss_function(params, apply_fn, batch, rng, train):
        return jnp.asarray(0.1, jnp.bfloat16) + 0 * params["b"].astype(jnp.bfloat16), ({}, None)

    result, _, _ = gradients(loss_function, make_batch(12))
    assert logged(result.metrics) == {"loss_mean": float(jnp.asarray(0.1, jnp.bfloat16))}
    assert int(result.metrics["loss"].num_items[1]) == 12


@both_ways
@pytest.mark.parametrize("mutable", [None, {}])
def test_model_without_mutable_variables_stays_without(use_scan, mutable):
    """Where there are no mutable variables, the result has the same nothing, so that the state keeps its form."""
    evaluate = LossEvaluator(mean_loss)

    def compute(batch):
        return compute_gradients(evaluate, PARAMS, mutable, batch, KEY, 2, use_scan)[0].mutable_variables

    assert jax.eval_shape(compute, make_batch()) == mutable


def test_indivisible_batch_is_refused_with_its_size():
    """A batch that cannot be dealt out evenly is an error with both numbers."""
    with pytest.raises(DataError, match="batch of 7 examples: not divisible by gradient_accumulate_steps=3"):
        split_batch({"x": np.zeros(7)}, 3)


def test_examples_are_dealt_out_in_turn():
    """Microbatch k has the examples k, k + n, k + 2n and so on; scalars are in each."""
    parts = split_batch({"x": np.arange(6), "scale": 0.5}, 3)
    assert parts["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert parts["scale"].tolist() == [0.5, 0.5, 0.5]


class Sowing(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        self.sow("intermediates", "scale", x.mean())
        self.sow("intermediates", "scale", 2 * x.mean())
        return Block(name="block")(x)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.sow("intermediates", "norm", jnp.abs(x).max())
        return nn.Dense(1)(x)[:, 0]


def evaluate_sowing(modes):
    adapter = LinenAdapter(Sowing())
    params = adapter.init({"params": KEY}, np.ones((2, 3), np.float32))["params"]

    def evaluate_loss(params, mutable, batch, rng, train):
        apply_fn = adapter.bind(mutable, {"params": rng})
        output, updates = apply_fn({"params": params}, batch["x"], train=train, mutable=["intermediates"])
        return output.mean(), ({}, updates)

    evaluate = LossEvaluator(evaluate_loss, modes)
    return evaluate, evaluate(params, {}, {"x": np.full((2, 3), -3, np.float32)}, KEY, train=True)


def test_intermediates_are_logged_by_path():
    """What the model sows is logged by path, with the modes for intermediates, and is no part of the state."""
    evaluate, result = evaluate_sowing(("max",))
    names = ("intermediates/block/norm", "intermediates/scale", "intermediates/scale_1")
    assert set(result.metrics) == {"loss", *names}
    assert logged(result.metrics, names) == {
        f"{name}_mean": value for name, value in zip(names, (3, -3, -6), strict=True)
    }
    assert evaluate.log_modes == dict.fromkeys(names, ("max",))
    assert result.mutable_variables == {}


def test_intermediates_are_left_out_unless_asked_for():
    """Without modes for them, intermediates are dropped."""
    evaluate, result = evaluate_sowing(None)
    assert set(result.metrics) == {"loss"}
    assert evaluate.log_modes == {}


def test_intermediates_without_sequence_keep_their_name():
    """A value that was sown by a reducing function is no tuple, and is named by its path alone."""
    named = name_intermediates({"block": {"total": 3.0, "each": (1.0, 2.0)}})
    assert named == {
        "intermediates/block/total": 3.0,
        "intermediates/block/each": 1.0,
        "intermediates/block/each_1": 2.0,
    }


def test_intermediate_that_is_no_scalar_is_refused_by_path():
    """An array that was sown cannot be logged as a number; the error has its path."""

    def loss_function(params, apply_fn, batch, rng, train):
        return jnp.zeros(()), ({}, {"intermediates": {"block": {"map": (jnp.zeros((2, 2)),)}}})

    evaluate = LossEvaluator(loss_function, ("mean",))
    with pytest.raises(MetricError, match=r"intermediates/block/map: .*float32\[2, 2\] was sown; sow a number"):
        evaluate(PARAMS, {}, make_batch(), KEY, train=True)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (1.0, r"expected it to return loss, \(metrics, mutable_variables\); got float"),
        ((1.0, {}, None), "got a tuple of 3"),
        ([1.0, ({}, None)], "got a list of 2"),
        ((1.0, {"loss": 1.0}), r"got loss, dict. Without mutable variables: loss, \(metrics, None\)"),
        ((1.0, ({},)), "got loss, a tuple of 1"),
        ((1.0, ({}, 3.0)), "got float as mutable variables instead of a dict or None"),
        ((1.0, ([], None)), "metrics: expected a dict of step metrics, got list"),
        ((None, ({}, None)), "expected a scalar float as loss, got NoneType"),
        ((jnp.zeros(2), ({}, None)), r"expected a scalar float as loss, got float32\[2\]"),
        ((jnp.asarray(1), ({}, None)), r"expected a scalar float as loss, got int32\[\]"),
    ],
)
def test_loss_function_that_returns_something_else(returned, message):
    """What a loss function returns in the wrong form is refused with the form that is expected and what came."""
    evaluate = LossEvaluator(lambda *args, train: returned)
    with pytest.raises(MetricError, match=message):
        evaluate(PARAMS, {}, make_batch(), KEY, train=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"mean": jnp.zeros(3), "var": jnp.zeros(2)},
        {"mean": jnp.zeros(2, jnp.bfloat16), "var": jnp.zeros(2)},
        {"mean": jnp.zeros(2)},
    ],
    ids=["shape", "dtype", "missing"],
)
def test_mutable_variables_that_change_their_form_are_refused(changed):
    """A collection that comes back with another shape, type or set of variables is an error with both forms."""
    start = {"batch_stats": {"mean": jnp.zeros(2), "var": jnp.zeros(2)}}
    evaluate = LossEvaluator(lambda *args, train: (jnp.zeros(()), ({}, {"batch_stats": changed})))
    with pytest.raises(MetricError, match=r"mutable variables 'batch_stats': .*they were \{'mean': 'float32\[2\]'"):
        evaluate(PARAMS, start, make_batch(), KEY, train=True)


def test_unknown_collections_are_not_kept():
    """A collection that the model did not have from the start is no part of its state; those it had stay."""
    evaluate = LossEvaluator(lambda *args, train: (jnp.zeros(()), ({}, {"cache": {"k": jnp.ones(2)}})))
    result = evaluate(PARAMS, {"stats": {"n": jnp.ones(())}}, make_batch(), KEY, train=True)
    assert set(result.mutable_variables) == {"stats"}


def test_batch_without_examples_cannot_stand_in_for_a_count():
    """A loss without a metric needs a batch with a size."""
    evaluate = LossEvaluator(lambda *args, train: (jnp.zeros(()), ({}, None)))
    with pytest.raises(DataError, match="leading batch dimension"):
        evaluate(PARAMS, {}, {"scale": 1.0}, KEY, train=True)


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        layers = nn.scan(
            ScannedLayer, variable_axes={"params": 0, "intermediates": 0}, split_rngs={"params": True}, length=3
        )
        return layers(name="layers")(x, None)[0]


class ScannedLayer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        self.sow("intermediates", "norm", jnp.abs(x).max())
        return x + 1, None


def test_intermediates_of_scanned_layers_are_named_by_layer():
    """What the layers under `nn.scan` have sown is logged for each of them."""
    _, updates = Scanned().apply({}, np.zeros((2, 3), np.float32), mutable=["intermediates"])
    named = name_intermediates(updates["intermediates"])
    assert {name: value.item() for name, value in named.items()} == {
        f"intermediates/layers/norm/{layer}": float(layer) for layer in range(3)
    }


def evaluate_twice(metric, modes=None):
    """Trace a loss of 3 over a batch of two examples, twice, as the trainer does."""

    def loss_function(params, apply_fn, batch, rng, train):
        loss = batch["x"].mean()
        return loss, (metric(loss), None)

    evaluate = LossEvaluator(loss_function, modes)
    for _ in range(2):
        jax.eval_shape(lambda batch: evaluate({}, {}, batch, KEY, train=True).metrics, {"x": np.full(2, 3, np.float32)})


def test_intermediates_that_never_come_are_reported_once(caplog):
    """`log_intermediates=True` without `mutable=` says what to do."""
    evaluate_twice(lambda loss: {}, modes=("mean",))
    assert caplog.text.count("mutable=['intermediates']") == 1
