"""Convolutions inside of loops, in the order of dimensions for which XLA has fast kernels on a CPU.

XLA brings convolutions into that order by itself, but only those outside of all loops. Models write their forward pass
in it anyway; the gradients are in another one, so that a small CNN's step took seven times as long in a loop. Here
they are transposed before XLA sees them, as it does by itself elsewhere (`benchmarks.looped_convolutions`).
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend import core

from trackside.fusing.loops import names_operations
from trackside.trace.flops import has_primitive
from trackside.trace.saved_values import inner_jaxprs

CONVOLUTION = "conv_general_dilated"
_LOOPS = ("scan", "while")
_MAX_SPATIAL = 2
"""In three dimensions of space, the kernels that are meant to be fast take four times as long as the others."""


def fast_in_loops(function: Callable[..., Any], outline: Any, is_looped: bool = False) -> Callable[..., Any]:
    """A function that computes the same, with convolutions inside of loops as they are fast on a CPU.

    Args:
        function: A function of arrays, in any containers, that can be traced.
        outline: Its jaxpr, or that of one with the same operations; None where nothing is compiled.
        is_looped: Whether the whole function will be the body of a loop.

    Returns:
        The function itself if nothing is to be gained.
    """
    if outline is None or jax.default_backend() != "cpu" or names_operations():
        return function
    is_found = has_primitive(outline, CONVOLUTION) if is_looped else has_looped_convolution(outline)
    return in_fast_order(function) if is_found else function


def has_looped_convolution(jaxpr: Any) -> bool:
    """Whether a program has a convolution inside of a loop of its own."""
    return any(
        has_primitive(inner, CONVOLUTION) if equation.primitive.name in _LOOPS else has_looped_convolution(inner)
        for equation in jaxpr.eqns
        for inner in inner_jaxprs(equation)
    )


def in_fast_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes the same, with all convolutions in the order of dimensions that is fast on a CPU."""

    def reordered(*args: Any) -> Any:
        closed, result = jax.make_jaxpr(function, return_shape=True)(*args)
        outputs = core.jaxpr_as_fun(_Reordering().closed(closed))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(result), outputs)

    return reordered


class _Reordering:
    """Brings the convolutions of programs into order. A program that is called in several places stays one."""

    def __init__(self) -> None:
        self._done: dict[int, core.Jaxpr] = {}
        self._done_closed: dict[int, core.ClosedJaxpr] = {}

    def closed(self, program: core.ClosedJaxpr) -> core.ClosedJaxpr:
        """The program with its convolutions in order; itself if it has none."""
        if id(program) not in self._done_closed:
            jaxpr = self._open(program.jaxpr)
            changed = jaxpr is not program.jaxpr
            self._done_closed[id(program)] = core.ClosedJaxpr(jaxpr, program.consts) if changed else program
        return self._done_closed[id(program)]

    def _open(self, jaxpr: core.Jaxpr) -> core.Jaxpr:
        if not has_primitive(jaxpr, CONVOLUTION):
            return jaxpr
        if id(jaxpr) not in self._done:
            equations = [new for equation in jaxpr.eqns for new in self._replacing(equation)]
            self._done[id(jaxpr)] = jaxpr.replace(eqns=equations)
        return self._done[id(jaxpr)]

    def _replacing(self, equation: core.JaxprEqn) -> list[core.JaxprEqn]:
        """What takes the place of an equation."""
        if equation.primitive.name == CONVOLUTION:
            num_spatial = len(equation.params["window_strides"])
            return _transposed(equation) if num_spatial <= _MAX_SPATIAL else [equation]
        return [equation.replace(params={name: self._parameter(value) for name, value in equation.params.items()})]

    def _parameter(self, value: Any) -> Any:
        """A parameter of an equation, in which there may be programs: bodies of loops, branches, calls."""
        if isinstance(value, core.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, core.Jaxpr):
            return self._open(value)
        if type(value) in (tuple, list):
            return type(value)(self._parameter(one) for one in value)
        return value


def _transposed(equation: core.JaxprEqn) -> list[core.JaxprEqn]:
    """A convolution between transpositions, in the place of one in another order."""

    def convolve(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        return _convolve(inputs, kernel, equation.primitive, equation.params)

    jaxpr = jax.make_jaxpr(convolve)(*(operand.aval for operand in equation.invars)).jaxpr
    places = dict(zip((*jaxpr.invars, *jaxpr.outvars), (*equation.invars, *equation.outvars), strict=True))
    return [
        inner.replace(
            invars=[places.get(operand, operand) for operand in inner.invars],
            outvars=[places.get(result, result) for result in inner.outvars],
            source_info=equation.source_info,
            ctx=equation.ctx,
        )
        for inner in jaxpr.eqns
    ]


def _convolve(inputs: jax.Array, kernel: jax.Array, primitive: Any, params: dict[str, Any]) -> jax.Array:
    """Examples, space, channels; in the kernel space, input channels, output channels."""
    numbers, last = params["dimension_numbers"], inputs.ndim - 1
    example, channel, *space = numbers.lhs_spec
    inputs = lax.transpose(inputs, (example, *space, channel))
    output_channel, input_channel, *space = numbers.rhs_spec
    kernel = lax.transpose(kernel, (*space, input_channel, output_channel))
    spatial = tuple(range(1, last))
    fast = lax.ConvDimensionNumbers((0, last, *spatial), (last, last - 1, *range(last - 1)), (0, last, *spatial))
    output = primitive.bind(inputs, kernel, **{**params, "dimension_numbers": fast})
    example, channel, *space = numbers.out_spec
    places = {example: 0, channel: last, **dict(zip(space, spatial, strict=True))}
    return lax.transpose(output, [places[at] for at in range(last + 1)])
