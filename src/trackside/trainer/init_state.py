"""The first training state, created where it belongs: no array is ever whole on one device first."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from trackside.trainer.batch import zeros_for_shape
from trackside.trainer.models import ModelAdapter
from trackside.trainer.sharding import optimizer_specs, param_specs, to_shardings, use_mesh_in_trace
from trackside.trainer.train_state import Carry


def init_carry(
    adapter: ModelAdapter,
    tx: optax.GradientTransformation,
    run_model_init: Callable[[Any, Any], dict[str, Any]],
    exmp_input: Any,
    seed: int,
    mesh: Mesh,
    fsdp_min_weight_size: int,
) -> tuple[Carry, Carry]:
    """Initialise parameters and optimizer on the mesh.

    Args:
        adapter: The model.
        tx: The optimizer.
        run_model_init: Makes the model's variables from an input and a key.
        exmp_input: An input to the model; arrays, or `jax.ShapeDtypeStruct`.
        seed: The training's seed.
        mesh: The mesh.
        fsdp_min_weight_size: From which size on parameters are split.

    Returns:
        The state, and its shardings.
    """

    def make_variables(exmp_input: Any) -> dict[str, Any]:
        init_rng, _ = jax.random.split(jax.random.key(seed))
        variables = dict(run_model_init(exmp_input, init_rng))
        variables.pop("intermediates", None)
        return variables

    def make_variables_on_mesh(exmp_input: Any) -> dict[str, Any]:
        with use_mesh_in_trace(mesh):
            return make_variables(exmp_input)

    def make_carry(exmp_input: Any) -> Carry:
        variables = adapter.unbox(make_variables_on_mesh(exmp_input))
        params = variables.pop("params", {})
        _, step_rng = jax.random.split(jax.random.key(seed))
        return Carry(jnp.zeros((), jnp.int32), params, variables, tx.init(params), jax.random.key_data(step_rng))

    is_abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(exmp_input))
    try:
        boxed = jax.eval_shape(make_variables_on_mesh, exmp_input)
    except ValueError:
        _check_metadata(adapter, make_variables, exmp_input, mesh)
        raise
    specs = _carry_specs(
        jax.eval_shape(make_carry, exmp_input), adapter.partition_specs(boxed), mesh, fsdp_min_weight_size
    )
    shardings = to_shardings(mesh, specs)
    if is_abstract:  # the zeros are made inside, and cost nothing if the model looks at shapes only
        zeros_of = exmp_input
        carry = jax.jit(lambda: make_carry(jax.tree.map(zeros_for_shape, zeros_of)), out_shardings=shardings)()
    else:
        carry = jax.jit(make_carry, out_shardings=shardings)(exmp_input)
    return carry, shardings


def _check_metadata(adapter: ModelAdapter, make_variables: Callable, exmp_input: Any, mesh: Mesh) -> None:
    """Raise if the metadata does not fit the mesh. Flax finds that too while it traces, but names no parameter."""
    try:
        boxed = jax.eval_shape(make_variables, exmp_input)
    except Exception:  # the model fails without a mesh, too: the error with the mesh is the one to show
        return
    params, wanted = adapter.unbox(boxed).get("params", {}), adapter.partition_specs(boxed).get("params", {})
    param_specs(mesh, params, wanted, min_weight_size=0)


def _carry_specs(carry: Carry, wanted: dict[str, Any], mesh: Mesh, min_weight_size: int) -> Carry:
    wanted = dict(wanted)
    params = param_specs(mesh, carry.params, wanted.pop("params", {}), min_weight_size)
    return Carry(
        step=PartitionSpec(),
        params=params,
        mutable_variables=param_specs(mesh, carry.mutable_variables, wanted, min_weight_size),
        opt_state=optimizer_specs(mesh, carry.opt_state, carry.params, params, min_weight_size),
        rng=PartitionSpec(),
    )
