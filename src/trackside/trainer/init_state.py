"""The first training state, created where it belongs: no array is ever whole on one device first."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from trackside.errors import ConfigError
from trackside.fusing.batch_copies import copied_leaf
from trackside.measured_run.in_ledger import ProgramCache, accounting
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import INITIAL_STATE
from trackside.trainer.background_program import BackgroundProgram
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

LOGGER = logging.getLogger(__name__)

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
) -> "FirstState":
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
        The state, still to be made.
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
    form = jax.eval_shape(make_carry, exmp_input)
    shardings = to_shardings(mesh, _carry_specs(form, adapter.partition_specs(boxed), mesh, parallel))
    form = jax.tree.map(_placed_form, form, shardings)
    _check_trainable(pop_params(adapter.unbox(boxed))[0])
    jit = functools.partial(jax.jit, out_shardings=shardings, compiler_options=_runs_once(mesh))
    if adapter.has_values:  # copies, since the first step overwrites them and the model is the user's
        params, others = pop_params(jax.tree.map(_strong_copy, make_variables(exmp_input)))
        placed = jax.device_put((params, others), (shardings.params, shardings.mutable_variables))
        return FirstState(jit(around), placed, form, shardings, named)
    if is_abstract:  # the zeros are made inside, and cost nothing if the model looks at shapes only

        def make_from_zeros() -> Carry:
            return make_carry(jax.tree.map(zeros_for_shape, exmp_input))

        return FirstState(jit(make_from_zeros), (), form, shardings, named)
    # A copy: the model may look at values, and by then the user may have filled the example with others.
    return FirstState(jit(make_carry), (jax.tree.map(copied_leaf, exmp_input),), form, shardings, named)


class FirstState:
    """The state before the first step, which may be asked for before there is one.

    Args:
        call: Makes it; jitted.
        args: What that takes.
        form: What it looks like.
        shardings: How it is spread over the mesh.
        named: Gives the compiles of a function a name.
    """

    def __init__(
        self,
        call: Callable,
        args: tuple[Any, ...],
        form: Carry,
        shardings: Carry,
        named: Callable[[Callable, str], Callable],
    ):
        self.form = form
        """Shapes, types and places of its arrays."""
        self.shardings = shardings
        self._call, self._args, self._named = call, args, named
        self._program: BackgroundProgram | None = None
        self._accounting: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext

    def begin(self, ledger: Ledger, cache: ProgramCache | None) -> None:
        """Compile it on another thread, while this one traces the training step, for which the form is enough.

        Args:
            ledger: Where the time is booked that it takes to wait for it, and to make it.
            cache: Where compiled programs are kept; None for nowhere.
        """
        self._accounting = functools.partial(_spend_on_state, ledger, cache)
        self._program = BackgroundProgram(self._call, self._args, INITIAL_STATE_NAME, ledger, cache)

    def make(self) -> Carry:
        """Make it, as soon as that is compiled."""
        with self._accounting():
            if self._program is None:
                return self._named(self._call, INITIAL_STATE_NAME)(*self._args)
            compiled = self._program.wait()
            with jax.disable_jit(False):  # whatever is around the place where it is asked for first
                if compiled is not None:
                    try:
                        return compiled(*self._args)
                    except (TypeError, ValueError):  # JAX does not take these arguments where it is asked for
                        LOGGER.debug("the initial state could not be made by what was compiled for it", exc_info=True)
                return self._named(self._call, INITIAL_STATE_NAME)(*self._args)


@contextlib.contextmanager
def _spend_on_state(ledger: Ledger, cache: ProgramCache | None) -> Iterator[None]:
    with accounting(ledger, cache), ledger.spend(INITIAL_STATE):
        yield


def _runs_once(mesh: Mesh) -> dict[str, Any] | None:
    """How to compile a program that runs only once: on a CPU with fewer passes of LLVM, in half of the time.

    The result has the same bits, as a test makes sure. With no passes at all, it would not.
    """
    if mesh.devices.flat[0].platform != "cpu" or _PASSES in os.environ.get("XLA_FLAGS", ""):
        return None
    return {_PASSES: 1}


def _placed_form(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    weak_type = getattr(leaf, "weak_type", False)  # keys have none
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak_type)


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
