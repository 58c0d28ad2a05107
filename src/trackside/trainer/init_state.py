"""The first training state, created where it belongs: no array is ever whole on one device first."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from trackside.errors import ConfigError
from trackside.trainer.batch import zeros_for_shape
from trackside.trainer.loss_scale import first_loss_scale
from trackside.trainer.models import ModelAdapter
from trackside.trainer.models.adapter import INTERMEDIATES, pop_params
from trackside.trainer.models.casting import cast_floating
from trackside.trainer.precision import PrecisionConfig
from trackside.trainer.sharding import (
    ParallelConfig,
    optimizer_specs,
    param_specs,
    to_shardings,
    use_mesh_in_trace,
)
from trackside.trainer.train_state import Carry
from trackside.tree_paths import leaf_path

_PASSES = "xla_backend_optimization_level"
INITIAL_STATE_NAME = "initial state"
"""What the program is called that makes parameters and optimizer state."""


def init_carry(
    adapter: ModelAdapter,
    tx: optax.GradientTransformation,
    run_model_init: Callable[[Any, Any], dict[str, Any]],
    exmp_input: Any,
    seed: int,
    mesh: Mesh,
    parallel: ParallelConfig,
    named: Callable[[Callable, str], Callable],
    precision: PrecisionConfig | None = None,
) -> tuple[Carry, Carry]:
    """Initialise parameters and optimizer on the mesh.

    Args:
        adapter: The model.
        tx: The optimizer.
        run_model_init: Makes the model's variables from an input and a key.
        exmp_input: An input to the model; arrays, or `jax.ShapeDtypeStruct`.
        seed: The training's seed.
        mesh: The mesh.
        parallel: How parameters are split of which the model says nothing.
        named: Gives the compiles of a function a name.
        precision: In which type parameters are kept, and whether the loss is scaled; None to keep them as they are.

    Returns:
        The state, and its shardings.
    """
    loss_scale = None if precision is None else precision.loss_scale

    def keep(params: Any) -> Any:
        if precision is None:
            return params
        dtype = precision.params_dtype()
        return jax.tree.map(lambda leaf: cast_floating(leaf, dtype), params)

    def make_variables(exmp_input: Any) -> dict[str, Any]:
        init_rng, _ = jax.random.split(jax.random.key(seed))
        variables = dict(run_model_init(exmp_input, init_rng))
        variables.pop(INTERMEDIATES, None)
        return variables

    # Three times below; jitted, it is traced once, which takes seconds for a large model.
    @functools.partial(jax.jit, inline=True)
    def make_variables_on_mesh(exmp_input: Any) -> dict[str, Any]:
        with use_mesh_in_trace(mesh):
            return make_variables(exmp_input)

    def make_carry(exmp_input: Any) -> Carry:
        params, others = pop_params(jax.tree.map(_strong, adapter.unbox(make_variables_on_mesh(exmp_input))))
        return around(params, others)

    def around(params: Any, others: Any) -> Carry:
        _, step_rng = jax.random.split(jax.random.key(seed))
        params, scale = keep(params), None if loss_scale is None else first_loss_scale(loss_scale)
        return Carry(jnp.zeros((), jnp.int32), params, others, tx.init(params), jax.random.key_data(step_rng), scale)

    is_abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(exmp_input))
    try:
        boxed = jax.eval_shape(make_variables_on_mesh, exmp_input)
    except ValueError:
        _check_metadata(adapter, make_variables, exmp_input, mesh)
        raise
    specs = _carry_specs(jax.eval_shape(make_carry, exmp_input), adapter.partition_specs(boxed), mesh, parallel)
    shardings = to_shardings(mesh, specs)
    _check_trainable(pop_params(adapter.unbox(boxed))[0])
    jit = functools.partial(jax.jit, out_shardings=shardings, compiler_options=_runs_once(mesh))
    if adapter.has_values:  # copies, since the first step overwrites them and the model is the user's
        params, others = pop_params(jax.tree.map(_strong_copy, make_variables(exmp_input)))
        placed = jax.device_put((params, others), (shardings.params, shardings.mutable_variables))
        return named(jit(around), INITIAL_STATE_NAME)(*placed), shardings
    if is_abstract:  # the zeros are made inside, and cost nothing if the model looks at shapes only
        zeros_of = exmp_input
        make = jit(lambda: make_carry(jax.tree.map(zeros_for_shape, zeros_of)))
        return named(make, INITIAL_STATE_NAME)(), shardings
    return named(jit(make_carry), INITIAL_STATE_NAME)(exmp_input), shardings


def _runs_once(mesh: Mesh) -> dict[str, Any] | None:
    """How to compile a program that runs only once: on a CPU with fewer passes of LLVM, in half of the time.

    The result has the same bits, as a test makes sure. With no passes at all, it would not.
    """
    if mesh.devices.flat[0].platform != "cpu" or _PASSES in os.environ.get("XLA_FLAGS", ""):
        return None
    return {_PASSES: 1}


def _strong(leaf: Any) -> Any:
    """An array whose type is its own. One that came from a Python number would compile the second step again."""
    return jax.lax.convert_element_type(leaf, leaf.dtype)


def _strong_copy(leaf: Any) -> Any:
    return _strong(jnp.array(leaf, copy=True))


def _check_trainable(params: Any) -> None:
    """Raise if a parameter has no gradient."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ConfigError(
                f"params: {leaf_path(path)} is {leaf.dtype}, and only floating-point numbers can be trained; keep it "
                "in a collection of its own (`self.variable`, Linen), or in the state (`FunctionModel(has_state=True)`)"
            )


def _check_metadata(adapter: ModelAdapter, make_variables: Callable, exmp_input: Any, mesh: Mesh) -> None:
    """Raise if the metadata does not fit the mesh. Flax finds that too while it traces, but names no parameter."""
    try:
        boxed = jax.eval_shape(make_variables, exmp_input)
    except Exception:  # the model fails without a mesh, too: the error with the mesh is the one to show
        return
    params, wanted = pop_params(adapter.unbox(boxed))[0], pop_params(adapter.partition_specs(boxed))[0]
    param_specs(mesh, params, wanted, min_weight_size=0)


def _carry_specs(carry: Carry, wanted: dict[str, Any], mesh: Mesh, parallel: ParallelConfig) -> Carry:
    wanted_params, wanted_others = pop_params(wanted)
    min_weight_size = parallel.fsdp_min_weight_size
    params = param_specs(mesh, carry.params, wanted_params, min_weight_size, parallel.param_axes)
    return Carry(
        step=PartitionSpec(),
        params=params,
        mutable_variables=param_specs(mesh, carry.mutable_variables, wanted_others, min_weight_size),
        opt_state=optimizer_specs(mesh, carry.opt_state, carry.params, params, min_weight_size),
        rng=PartitionSpec(),
        loss_scale=jax.tree.map(lambda leaf: PartitionSpec(), carry.loss_scale),
    )
