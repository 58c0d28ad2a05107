import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.trainer import optimizer
from trackside.trainer.lr_schedules import SchedulerConfig
from trackside.trainer.optimizer import OptimizerConfig, build_optimizer, decay_mask, register_optimizer
from trackside.tree_paths import leaf_path

NAMES = ["sgd", "adam", "adamw", "nadam", "nadamw", "lamb", "lion", "adafactor", "rmsprop", "adagrad"]
LR = 0.1
PARAMS = np.array([1.0, -2.0, 3.0], np.float32)
GRADS = np.array([[0.5, 0.25, -1.0], [-0.5, 1.5, 0.125]], np.float32)


def config_of(name, lr=LR, **fields):
    return OptimizerConfig(name=name, scheduler=SchedulerConfig(lr=lr), **fields)


def trained(config: Any, params: Any = PARAMS, grads: Any = GRADS) -> Any:
    tx: Any = build_optimizer(config)

    @jax.jit
    def step(params, state, grad):
        updates, state = tx.update(grad, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(tx.init)(params)
    for grad in grads:
        params, state = step(params, state, grad)
    return params


def updates_of(config, grads, params=None):
    tx: Any = build_optimizer(config)
    return jax.jit(lambda grads, params: tx.update(grads, tx.init(params), params)[0])(
        grads, grads if params is None else params
    )


def dtypes_of(tree):
    return jax.tree.map(lambda leaf: leaf.dtype, tree)


def numpy_adam(grads, l2=0.0, decoupled=0.0, beta1=0.9, beta2=0.999, eps=1e-8, nesterov=False):
    param, mean, square = PARAMS.astype(np.float64), np.zeros(3), np.zeros(3)
    for step, grad in enumerate(grads, start=1):
        grad = grad + l2 * param
        mean = beta1 * mean + (1 - beta1) * grad
        square = beta2 * square + (1 - beta2) * grad**2
        ahead = beta1 * mean / (1 - beta1 ** (step + 1)) + (1 - beta1) * grad / (1 - beta1**step)
        unbiased = ahead if nesterov else mean / (1 - beta1**step)
        direction = unbiased / (np.sqrt(square / (1 - beta2**step)) + eps)
        param = param - LR * (direction + decoupled * param)
    return param


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(optimizer, "_OPTIMIZERS", dict(optimizer._OPTIMIZERS))


def test_sgd_without_momentum():
    """Plain SGD subtracts the gradient times the learning rate."""
    np.testing.assert_allclose(trained(config_of("sgd")), PARAMS - LR * GRADS.sum(0), rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum(nesterov):
    """SGD keeps a decaying sum of gradients; Nesterov's looks one step ahead."""
    param, trace = PARAMS.copy(), np.zeros(3)
    for grad in GRADS:
        trace = grad + 0.9 * trace
        param = param - LR * (grad + 0.9 * trace if nesterov else trace)
    np.testing.assert_allclose(trained(config_of("sgd", momentum=0.9, nesterov=nesterov)), param, rtol=1e-6)


def test_sgd_weight_decay_is_l2():
    """SGD adds the decayed parameters to the gradient, where momentum sees them."""
    param, trace = PARAMS.copy(), np.zeros(3)
    for grad in GRADS:
        trace = grad + 0.2 * param + 0.9 * trace
        param = param - LR * trace
    np.testing.assert_allclose(trained(config_of("sgd", momentum=0.9, weight_decay=0.2)), param, rtol=1e-6)


def test_adam():
    """Adam divides the mean of the gradients by the root of their mean square, both bias-corrected."""
    config = config_of("adam", beta1=0.8, beta2=0.95, eps=1e-3)
    np.testing.assert_allclose(trained(config), numpy_adam(GRADS, beta1=0.8, beta2=0.95, eps=1e-3), rtol=1e-5)


def test_adam_weight_decay_is_l2():
    """Adam's moments see the decay as part of the gradient."""
    np.testing.assert_allclose(trained(config_of("adam", weight_decay=0.3)), numpy_adam(GRADS, l2=0.3), rtol=1e-5)


def test_adamw_weight_decay_is_decoupled():
    """AdamW's moments do not see the decay, which the learning rate scales."""
    expected = numpy_adam(GRADS, decoupled=0.3)
    np.testing.assert_allclose(trained(config_of("adamw", weight_decay=0.3)), expected, rtol=1e-5)


def test_lion():
    """Lion steps by the sign of a mix of gradient and momentum, with decoupled decay."""
    param, momentum = PARAMS.copy(), np.zeros(3)
    for grad in GRADS:
        param = param - LR * (np.sign(0.7 * momentum + 0.3 * grad) + 0.2 * param)
        momentum = 0.9 * momentum + 0.1 * grad
    config = config_of("lion", beta1=0.7, beta2=0.9, weight_decay=0.2)
    np.testing.assert_allclose(trained(config), param, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "decay"),
    [
        (config_of("nadam", weight_decay=0.3), {"l2": 0.3}),
        (config_of("adam", nesterov=True), {}),
        (config_of("nadamw", weight_decay=0.3), {"decoupled": 0.3}),
    ],
)
def test_nesterov_looks_ahead(config, decay):
    """Nesterov's Adam, by its own name or by `nesterov`, takes the first moment one step further."""
    np.testing.assert_allclose(trained(config), numpy_adam(GRADS, **decay, nesterov=True), rtol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor"])
def test_decoupled_decay_shrinks_by_learning_rate_times_decay(name):
    """Where decay is decoupled, parameters without gradient shrink by the factor `1 - lr * weight_decay`."""
    shrunk = trained(config_of(name, weight_decay=0.5), grads=np.zeros((1, 3), np.float32))
    np.testing.assert_allclose(shrunk, PARAMS * (1 - LR * 0.5), rtol=1e-6)


@pytest.mark.parametrize("name", ["rmsprop", "adagrad"])
def test_l2_equals_a_gradient_with_the_decay_in_it(name):
    """Where decay is L2, it does what the same amount in the gradient does."""
    grad = GRADS[:1]
    decayed = trained(config_of(name, weight_decay=0.5), grads=grad)
    np.testing.assert_allclose(decayed, trained(config_of(name), grads=grad + 0.5 * PARAMS), rtol=1e-6)


def test_learning_rate_follows_the_schedule():
    """The first update has the learning rate of step 0, the second that of step 1."""
    config = OptimizerConfig(name="sgd", scheduler=SchedulerConfig(lr=1.0, warmup_steps=2))
    np.testing.assert_allclose(trained(config), PARAMS - 0.5 * GRADS[1], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_under_jit_and_eval_shape(name):
    """Each optimizer takes abstract parameters, keeps all dtypes from step to step and moves against the gradient."""
    config = config_of(name, lr=0.01, weight_decay=0.01, grad_clip_norm=1.0, grad_clip_value=1.0)
    tx: Any = build_optimizer(config)
    params = {"dense": {"kernel": jnp.ones((4, 2), jnp.bfloat16), "bias": jnp.ones(2, jnp.float32)}}
    grads = jax.tree.map(jnp.ones_like, params)

    def step(params, state):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    with jax.numpy_dtype_promotion("strict"):
        before = jax.eval_shape(lambda params: (params, tx.init(params)), params)
        after = jax.jit(lambda params: step(params, tx.init(params)))(params)
        assert dtypes_of(jax.eval_shape(step, *before)) == dtypes_of(before) == dtypes_of(after)
    assert all((np.asarray(leaf) < 1).all() for leaf in jax.tree.leaves(after[0]))


def test_init_takes_shapes_without_arrays():
    """`init` works on shapes themselves, and gives float32 moments for bfloat16 parameters."""
    tx: Any = build_optimizer(config_of("adam"))
    state = tx.init({"kernel": jax.ShapeDtypeStruct((3,), jnp.bfloat16)})
    assert {leaf.dtype for leaf in jax.tree.leaves(state) if leaf.shape == (3,)} == {jnp.dtype("float32")}


def test_second_moment_of_bfloat16_parameters_decays():
    """The moments of bfloat16 parameters are those of float32: 0.999 is 1 in bfloat16, and nothing would decay."""
    grads = [np.full(1, value, np.float32) for value in [8.0] + [0.5] * 50]
    states = {}
    for dtype in (jnp.bfloat16, jnp.float32):
        tx: Any = build_optimizer(config_of("adam"))
        params = jnp.zeros(1, dtype)
        state, update = tx.init(params), jax.jit(tx.update)
        for grad in grads:
            updates, state = update(jnp.asarray(grad, dtype), state, params)
            assert updates.dtype == dtype
        states[dtype] = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    for narrow, wide in zip(states[jnp.bfloat16], states[jnp.float32], strict=True):
        np.testing.assert_allclose(narrow, wide, rtol=1e-5)


def test_gradients_may_be_wider_than_parameters():
    """float32 gradients of bfloat16 parameters give bfloat16 updates and a state whose dtypes stay."""
    tx: Any = build_optimizer(config_of("adam", weight_decay=0.1))
    params = jnp.ones(2, jnp.bfloat16)
    state = tx.init(params)
    with jax.numpy_dtype_promotion("strict"):
        updates, new_state = jax.jit(tx.update)(jnp.ones(2, jnp.float32), state, params)
    assert updates.dtype == jnp.bfloat16
    assert dtypes_of(new_state) == dtypes_of(state)


def test_update_without_parameters():
    """Without weight decay, updates can be computed from gradients alone, and have their dtype."""
    tx: Any = build_optimizer(config_of("sgd"))
    updates, _ = tx.update(jnp.ones(2, jnp.bfloat16), tx.init(jnp.ones(2, jnp.bfloat16)))
    assert updates.dtype == jnp.bfloat16


def test_clip_norm_is_over_all_gradients():
    """Gradients of norm 5 clipped to 2 keep their direction and have norm 2."""
    grads = {"a": jnp.array([3.0]), "b": {"c": jnp.array([[4.0]])}}
    updates = updates_of(config_of("sgd", lr=1.0, grad_clip_norm=2.0), grads)
    np.testing.assert_allclose([updates["a"][0], updates["b"]["c"][0, 0]], [-1.2, -1.6], rtol=1e-6)


def test_clip_norm_leaves_small_gradients_alone():
    """Gradients within the norm, zeros included, are not changed."""
    config = config_of("sgd", lr=1.0, grad_clip_norm=5.5)
    for grads in (jnp.array([3.0, -4.0]), jnp.zeros(2)):
        np.testing.assert_array_equal(updates_of(config, grads), -grads)


def test_clip_norm_of_bfloat16_is_summed_in_float32():
    """Gradients of squared norm 264 are clipped by it: in bfloat16, adding 1 to 256 eight times leaves 256."""
    grads = {"a": jnp.ones(256, jnp.bfloat16), "b": [jnp.ones(1, jnp.bfloat16)] * 8}
    updates = updates_of(config_of("sgd", lr=1.0, grad_clip_norm=8.0), grads)
    expected = jnp.asarray(-8.0 / 264**0.5, jnp.bfloat16)
    for leaf in jax.tree.leaves(updates):
        np.testing.assert_array_equal(leaf, np.full_like(leaf, expected), strict=True)


def test_clip_value_limits_each_element():
    """Elements beyond the value are set to it, with their sign."""
    updates = updates_of(config_of("sgd", lr=1.0, grad_clip_value=0.5), jnp.array([2.0, -3.0, 0.25]))
    np.testing.assert_array_equal(updates, [-0.5, 0.5, -0.25])


def test_clip_value_comes_before_clip_norm():
    """With both, the norm is that of the gradients clipped by value."""
    updates = updates_of(config_of("sgd", lr=1.0, grad_clip_value=3.0, grad_clip_norm=1.0), jnp.array([300.0, 4.0]))
    np.testing.assert_allclose(updates, [-(0.5**0.5), -(0.5**0.5)], rtol=1e-6)


def test_clipping_does_not_see_weight_decay():
    """L2 is added after clipping, so the decay itself is never scaled down."""
    config = config_of("sgd", lr=1.0, grad_clip_norm=1.0, weight_decay=0.5)
    updates = updates_of(config, jnp.array([0.0, 10.0]), params=jnp.array([100.0, 0.0]))
    np.testing.assert_allclose(updates, [-50.0, -1.0], rtol=1e-6)


TREE = {
    "block_0": {"dense": {"kernel": 0, "bias": 0}, "norm": {"scale": 0}},
    "head": {"kernel": 0, "bias": 0},
}


def tree_of(value=1.0):
    return jax.tree.map(lambda _: jnp.full(2, value), TREE)


def decayed_paths(params, **fields):
    mask = decay_mask(OptimizerConfig(**fields), params)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    return {leaf_path(path) for path, decays in jax.tree_util.tree_leaves_with_path(mask) if decays is True}


ALL = {"block_0/dense/kernel", "block_0/dense/bias", "block_0/norm/scale", "head/kernel", "head/bias"}


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (None, None, ALL),
        (["kernel"], None, {"block_0/dense/kernel", "head/kernel"}),
        (["^head/", "scale$"], None, {"head/kernel", "head/bias", "block_0/norm/scale"}),
        (None, ["bias", "norm"], {"block_0/dense/kernel", "head/kernel"}),
        (["kernel"], ["^head"], {"block_0/dense/kernel"}),
        ([r"block_\d+/.*kernel"], None, {"block_0/dense/kernel"}),
        ([], None, set()),
        (None, [], ALL),
    ],
)
def test_mask_by_include_and_exclude(include, exclude, expected):
    """Include selects what it matches, exclude takes what it matches away, and without patterns all decay."""
    assert decayed_paths(tree_of(), weight_decay_include=include, weight_decay_exclude=exclude) == expected


def test_mask_of_abstract_parameters():
    """Shapes are enough to know which parameters decay."""
    assert decayed_paths(jax.eval_shape(tree_of), weight_decay_include=["head"]) == {"head/kernel", "head/bias"}


def test_paths_through_other_containers():
    """Lists, tuples, named tuples and dataclasses have their indices and field names in the path."""
    state = optax.TraceState(trace=[jnp.ones(1), (jnp.ones(1), {"kernel": jnp.ones(1)})])
    assert decayed_paths({"a": state}) == {"a/trace/0", "a/trace/1/0", "a/trace/1/1/kernel"}
    assert decayed_paths({"a": state}, weight_decay_exclude=[r"trace/\d$"]) == {"a/trace/1/0", "a/trace/1/1/kernel"}


@pytest.mark.parametrize("name", NAMES)
def test_excluded_parameters_do_not_decay(name):
    """In every optimizer, without gradients an included parameter shrinks and an excluded one stays."""
    params = {"kernel": np.array([1.0, 0.5], np.float32), "bias": np.array([1.0, 0.5], np.float32)}
    config = config_of(name, weight_decay=0.7, weight_decay_exclude=["bias"])
    after = trained(config, params, grads=[jax.tree.map(np.zeros_like, params)])
    np.testing.assert_array_equal(after["bias"], params["bias"])
    assert (after["kernel"] < params["kernel"]).all()


def test_pattern_that_matches_nothing_is_warned_of():
    """A pattern without a match is named, with its field, when the mask is built; the others still hold."""
    config = OptimizerConfig(weight_decay_include=["kernel", "kernal"], weight_decay=0.1)
    with pytest.warns(UserWarning, match=r"weight_decay_include: 'kernal' matches none of the 5"):
        mask = decay_mask(config, tree_of())
    assert mask["head"] == {"kernel": True, "bias": False}


def test_unmatched_pattern_is_warned_of_in_init_alone():
    """The optimizer warns when it is initialized, not again at every trace of its update."""
    tx: Any = build_optimizer(OptimizerConfig(weight_decay_exclude=["biass"], weight_decay=0.1))
    with pytest.warns(UserWarning, match=r"weight_decay_exclude: 'biass'"):
        state = tx.init(tree_of())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(tx.update)(tree_of(), state, tree_of())


def test_patterns_are_not_warned_of_without_weight_decay():
    """Patterns that have no effect need not match."""
    build_optimizer(OptimizerConfig(weight_decay_exclude=["biass"])).init(tree_of())


def test_own_optimizer(own_registry):
    """A registered optimizer gets config, schedule and mask, and clipped gradients."""

    @register_optimizer("signed")
    def signed(config, learning_rate, decay_mask):
        return optax.chain(
            optax.scale(config.optimizer_kwargs["factor"]),
            optax.add_decayed_weights(config.weight_decay, decay_mask),
            optax.scale_by_learning_rate(learning_rate),
        )

    config = config_of(
        "signed", optimizer_kwargs={"factor": 10.0}, grad_clip_value=1.0, weight_decay=2.0, weight_decay_include=["a"]
    )
    params = {"a": jnp.array([1.0]), "b": jnp.array([1.0])}
    updates = updates_of(config, {"a": jnp.array([5.0]), "b": jnp.array([5.0])}, params)
    np.testing.assert_allclose([updates["a"][0], updates["b"][0]], [-1.2, -1.0], rtol=1e-6)


def test_extra_arguments_reach_the_optimizer(own_registry):
    """What a caller passes to `update` by name arrives at an optimizer that takes it."""

    @register_optimizer("by_value")
    def by_value(config, learning_rate, decay_mask):
        def update(updates, state, params=None, **extra_args):
            return jax.tree.map(lambda grad: grad * extra_args["value"], updates), state

        return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)

    tx: Any = optax.with_extra_args_support(build_optimizer(config_of("by_value", grad_clip_value=1.0)))
    updates, _ = tx.update(jnp.ones(1), tx.init(jnp.ones(1)), jnp.ones(1), value=7.0)
    assert float(updates[0]) == 7.0


def test_optimizer_kwargs_reach_optax():
    """Arguments that the config has no field for are passed on."""
    tx: Any = build_optimizer(OptimizerConfig(optimizer_kwargs={"mu_dtype": "bfloat16"}))
    dtypes = [str(leaf.dtype) for leaf in jax.tree.leaves(tx.init(jnp.ones(3))) if leaf.shape == (3,)]
    assert dtypes == ["bfloat16", "float32"]


@pytest.mark.parametrize("key", ["mu_type", "b1", "learning_rate"])
def test_unknown_optimizer_kwargs_are_refused(key):
    """An argument that optax does not know, or that a field stands for, is named with those that can be given."""
    with pytest.raises(ConfigError, match=rf"optimizer_kwargs: 'adam' takes eps_root, mu_dtype, got {key}"):
        build_optimizer(OptimizerConfig(optimizer_kwargs={key: 1.0}))


def test_config_round_trip():
    """A config, with its scheduler, is equal to what is read back from its dict."""
    config = OptimizerConfig(
        name="adamw",
        scheduler=SchedulerConfig(name="cosine", decay_steps=10, warmup_steps=2),
        weight_decay=0.1,
        weight_decay_include=["kernel$"],
        weight_decay_exclude=["norm", r"block_\d"],
        grad_clip_norm=1.0,
        optimizer_kwargs={"mu_dtype": "bfloat16"},
    )
    assert ConfigDict.from_dict(OptimizerConfig, config.to_dict()) == config
    assert ConfigDict.from_dict(OptimizerConfig, OptimizerConfig().to_dict()) == OptimizerConfig()


def test_unknown_name_lists_the_registered_ones():
    """An unknown optimizer is refused with all names that there are, and the closest one."""
    with pytest.raises(ConfigError, match=r"'admw'.*adafactor, adagrad, adam, adamw.*sgd.*Did you mean 'adamw'"):
        OptimizerConfig(name="admw")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beta1": 1.0}, r"beta1: .*below 1, got 1.0"),
        ({"beta2": -0.1}, r"beta2: .*got -0.1"),
        ({"eps": -1e-8}, r"eps: .*got -1e-08"),
        ({"momentum": 1.5}, r"momentum: .*below 1 or None, got 1.5"),
        ({"weight_decay": -0.1}, r"weight_decay: .*got -0.1"),
        ({"grad_clip_norm": 0.0}, r"grad_clip_norm: .*above 0 or None, got 0.0"),
        ({"grad_clip_value": -1.0}, r"grad_clip_value: .*above 0 or None, got -1.0"),
        ({"weight_decay_include": ["ok", "(kernel"]}, r"weight_decay_include: '\(kernel' is not a regular expression"),
        ({"weight_decay_exclude": ["*bias"]}, r"weight_decay_exclude: '\*bias' is not a regular expression"),
        ({"weight_decay_exclude": [3]}, r"weight_decay_exclude: 3 is not a regular expression"),
        ({"weight_decay_exclude": "bias"}, r"weight_decay_exclude: expected a list .*got 'bias'"),
        ({"scheduler": {"lr": 1.0}}, r"scheduler: expected a SchedulerConfig"),
        ({"name": "sgd", "nesterov": True}, r"nesterov: 'sgd' .*momentum=None; set momentum"),
    ],
)
def test_bad_input_names_field_and_value(fields, message):
    """What cannot work is refused when the config is made, with the field and its value."""
    with pytest.raises(ConfigError, match=r"OptimizerConfig\." + message):
        OptimizerConfig(**fields)
