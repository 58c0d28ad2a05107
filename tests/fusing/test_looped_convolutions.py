"""Convolutions inside of loops: the same results, in the order of dimensions that is fast on a CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.trainer.tiny import make_loader, make_trainer
from trackside.fusing.looped_convolutions import CONVOLUTION, fast_in_loops, in_fast_order
from trackside.trace.saved_values import inner_jaxprs

KINDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one dimension": ((2, 9, 3), (3, 3, 4), {"dimension_numbers": ("NHC", "HIO", "NHC")}),
    "two dimensions": ((2, 6, 5, 3), (3, 2, 3, 4), {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}),
    "channels first": ((2, 3, 6, 5), (4, 3, 3, 2), {"dimension_numbers": ("NCHW", "OIHW", "NCHW")}),
    "mixed orders": ((2, 3, 6, 5), (3, 2, 3, 4), {"dimension_numbers": ("NCHW", "HWIO", "NHWC")}),
    "strides": (
        (2, 6, 5, 3),
        (3, 2, 3, 4),
        {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "window_strides": (2, 1)},
    ),
    "dilated": (
        (2, 6, 5, 3),
        (2, 2, 3, 4),
        {
            "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
            "rhs_dilation": (2, 1),
            "lhs_dilation": (1, 2),
            "padding": ((1, 2), (0, 1)),
        },
    ),
    "groups": (
        (2, 4, 6, 5),
        (6, 2, 3, 2),
        {"dimension_numbers": ("NCHW", "OIHW", "NCHW"), "feature_group_count": 2},
    ),
    "depthwise": (
        (2, 6, 5, 4),
        (3, 2, 1, 4),
        {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": 4},
    ),
    "three dimensions": ((2, 4, 5, 3, 2), (2, 2, 2, 2, 3), {"dimension_numbers": ("NHWDC", "HWDIO", "NHWDC")}),
}


def convolve(inputs: jax.Array, kernel: jax.Array, **options: Any) -> jax.Array:
    num_spatial = inputs.ndim - 2
    return lax.conv_general_dilated(
        inputs, kernel, **{"window_strides": (1,) * num_spatial, "padding": "SAME", **options}
    )


def gradients(inputs: jax.Array, kernel: jax.Array, **options: Any) -> Any:
    """The convolution, and its gradients, which are convolutions in other orders."""
    return jax.value_and_grad(lambda pair: (convolve(*pair, **options) ** 2).sum())((inputs, kernel))


def example(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def convolutions(jaxpr: Any) -> Iterator[Any]:
    """All convolutions of a program."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == CONVOLUTION:
            yield equation
        for inner in inner_jaxprs(equation):
            yield from convolutions(inner)


def are_fast(function: Callable, *args: Any) -> bool:
    """Whether all convolutions have examples first and channels last, and there are some."""
    found = [equation.params["dimension_numbers"] for equation in convolutions(jax.make_jaxpr(function)(*args).jaxpr)]
    last = [len(numbers.lhs_spec) - 1 for numbers in found]
    return bool(found) and all(
        numbers.lhs_spec[:2] == numbers.out_spec[:2] == (0, at) and numbers.rhs_spec[:2] == (at, at - 1)
        for numbers, at in zip(found, last, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_computes_the_same(kind: str) -> None:
    """Results and gradients of every kind of convolution are those of the function as it was written."""
    inputs_shape, kernel_shape, options = KINDS[kind]

    def function(inputs: jax.Array, kernel: jax.Array) -> Any:
        return gradients(inputs, kernel, **options)

    args = example(*inputs_shape), example(*kernel_shape)
    for ours, others in zip(
        jax.tree.leaves(in_fast_order(function)(*args)), jax.tree.leaves(function(*args)), strict=True
    ):
        np.testing.assert_allclose(ours, others, rtol=2e-5, atol=2e-5)
    assert are_fast(in_fast_order(function), *args) is (kind != "three dimensions")  # slower there, so left alone


def in_scan(x: jax.Array, kernel: jax.Array) -> Any:
    return lax.scan(lambda x, _: (convolve(x, kernel), None), x, length=2)[0]


def in_while(x: jax.Array, kernel: jax.Array) -> Any:
    return lax.while_loop(lambda x: x.sum() < 0, lambda x: convolve(x, kernel), x)


def in_branch(x: jax.Array, kernel: jax.Array) -> Any:
    return lax.cond(x.sum() > 0, lambda x: convolve(x, kernel), lambda x: x, x)


def in_jit(x: jax.Array, kernel: jax.Array) -> Any:
    return jax.jit(convolve)(x, kernel)


def in_checkpoint(x: jax.Array, kernel: jax.Array) -> Any:
    return jax.grad(jax.checkpoint(lambda x: jnp.sin(convolve(x, kernel)).sum()))(x)


def in_custom_jvp(x: jax.Array, kernel: jax.Array) -> Any:
    function = jax.custom_jvp(convolve)
    function.defjvp(lambda primals, tangents: (convolve(*primals), convolve(tangents[0], primals[1])))
    return function(x, kernel)


def in_custom_vjp(x: jax.Array, kernel: jax.Array) -> Any:
    function = jax.custom_vjp(convolve)
    function.defvjp(lambda x, kernel: (convolve(x, kernel), None), lambda _, grad: (grad, grad))
    return function(x, kernel)


def without_any(x: jax.Array, kernel: jax.Array) -> Any:
    return x.sum() + kernel.sum()


@pytest.mark.parametrize(
    "function", [in_scan, in_while, in_branch, in_jit, in_checkpoint, in_custom_jvp, in_custom_vjp]
)
def test_reaches_into_what_is_called(function: Callable) -> None:
    """Convolutions in loops, branches, calls and functions with derivatives of their own are reached, too."""
    args = example(2, 3, 6, 6), example(3, 3, 3, 3)
    assert not are_fast(function, *args)
    assert are_fast(in_fast_order(function), *args)
    np.testing.assert_allclose(in_fast_order(function)(*args), function(*args), rtol=2e-5, atol=2e-5)


def test_keeps_scopes() -> None:
    """What takes the place of a convolution counts for the scope that the user has named."""

    def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
        with jax.named_scope("stem"):
            return convolve(x, kernel)

    equations = jax.make_jaxpr(in_fast_order(function))(example(2, 3, 6, 6), example(3, 3, 3, 3)).eqns
    assert len(equations) > 1
    assert {str(equation.source_info.name_stack) for equation in equations} == {"stem"}


def test_a_program_that_is_called_twice_stays_one() -> None:
    """A jitted layer that is used in several places is still lowered once."""
    layer = jax.jit(convolve)

    def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return layer(layer(x, kernel), kernel)

    calls = jax.make_jaxpr(in_fast_order(function))(example(2, 3, 6, 6), example(3, 3, 3, 3)).eqns
    assert calls[0].params["jaxpr"] is calls[1].params["jaxpr"]


def test_changes_only_what_gains() -> None:
    """A function stays as it is where XLA does all by itself, and where JAX is to name single operations."""
    args = example(2, 3, 6, 6), example(3, 3, 3, 3)
    outside, looped, without = (jax.make_jaxpr(one)(*args) for one in (convolve, in_scan, without_any))
    assert fast_in_loops(convolve, outside) is convolve
    assert fast_in_loops(in_scan, looped) is not in_scan
    assert fast_in_loops(convolve, outside, is_looped=True) is not convolve
    assert fast_in_loops(without_any, without, is_looped=True) is without_any
    assert fast_in_loops(in_scan, None) is in_scan
    with jax.debug_nans(True):
        assert fast_in_loops(in_scan, looped) is in_scan


class Looping(nn.Module):
    """Convolutions in a scan of the model's own, with channels first."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.ones_init(), (1, 1, 3))
        return nn.Dense(1)(in_scan(x[:, None], kernel)[:, 0])


def test_a_loop_of_the_model_is_reordered_in_every_program() -> None:
    """Single steps, evaluation and prediction have it in fast order, too, if the loop is the model's own."""
    trainer = make_trainer(model_class=Looping, steps_per_call=1)
    trainer.train_model(make_loader(2), make_loader(1), num_epochs=1)
    layout, carry = trainer.init_train_metrics().layout, trainer.progress.carry
    call, vector = trainer.engine.train_call(layout), trainer.engine.fresh_vector(layout)
    assert are_fast(call, carry, vector, make_loader(1)[0])
    assert np.isfinite(trainer.predict(make_loader(2))).all()
