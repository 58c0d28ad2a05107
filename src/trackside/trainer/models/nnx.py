"""Flax NNX models on plain pytrees.

The model is split once, when the trainer is built. Inside the step it is merged from plain dicts, called, and split
again. `nnx.State` never crosses jit and `nnx.jit` is not used: flattening in Python costs more than a small step.

Keys of the model's random streams are made from the step's key each time, a different one for each stream, so they are
not part of what is saved. Variables that a model shares stay shared.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from trackside.errors import ConfigError, MetricError
from trackside.trainer.models.adapter import INTERMEDIATES, Body, Library, bind_by_use
from trackside.trainer.models.casting import Casting
from trackside.trainer.models.layer_calls import wrap_layers
from trackside.trainer.models.named_leaves import Path, nest, path_of, pick, split_arrays
from trackside.trainer.models.remat import Remat

STATE = "state"


class NnxAdapter:
    """An NNX model behind the trainer's view of a model.

    Args:
        model: The model, or a function that builds it from `nnx.Rngs`.
        logical_axis_rules: Which mesh axis each logical axis name of the model's metadata is split over.
        casting: What is cast around calls of the model; None for nothing.
        remat: Which layers compute their intermediate results again in the backward pass; None for none.
    """

    library: Library = "nnx"
    passes_state = False

    def __init__(
        self,
        model: Any,
        logical_axis_rules: tuple[tuple[str, Any], ...] = (),
        casting: Casting | None = None,
        remat: Remat | None = None,
    ):
        self.model = model
        self._casting = None if casting is None else replace(casting, kept=(nnx.Pytree, nnx.Variable))
        self._remat = remat
        self.has_values = isinstance(model, nnx.Module)
        self._rules = dict(logical_axis_rules)
        self._form = _Form(model, remat) if self.has_values else None

    def init(self, rngs: dict[str, Any], exmp_input: Any) -> dict[str, Any]:
        """Make the variables, or take those of a model that is built."""
        del exmp_input  # an NNX model knows its shapes
        if self.has_values:
            return self.form.take(self.model)
        with nnx.use_eager_sharding(False):  # the trainer splits arrays itself, when it knows the mesh
            if self._form is None:
                self._form = _Form(_abstract(self.model, rngs), self._remat)
            return self._form.take(self.model(_to_rngs(rngs)))

    @property
    def form(self) -> "_Form":
        """How the model is taken apart; known once it was built."""
        assert self._form is not None
        return self._form

    def unbox(self, variables: Any) -> Any:
        """They are plain already."""
        return variables

    def partition_specs(self, variables: Any) -> Any:
        """What `nnx.with_partitioning` and the like have noted; None elsewhere."""
        specs = {"params": self.form.params.specs(self._rules)}
        return {**specs, STATE: self.form.rest.specs(self._rules)} if STATE in variables else specs

    def bind(self, mutable_variables: Any, rngs: dict[str, Any] | None) -> Callable:
        """The model's `__call__` as a function of its parameters."""
        return bind_by_use(self, mutable_variables, rngs)

    def predict(self, apply_fn: Callable, params: Any, inputs: Any) -> Any:
        """The model's output in evaluation mode."""
        return apply_fn({"params": params}, *(inputs if isinstance(inputs, tuple) else (inputs,)))

    def use(
        self, params: Any, mutable_variables: Any, rngs: dict[str, Any], train: bool, body: Body
    ) -> tuple[Any, dict[str, Any]]:
        """Use the merged model, after `train()` or `eval()`."""
        casts, checkpoint = self._casting, None if self._remat is None else _Checkpoint(self._remat.policy)
        model = self.form.merge(params if casts is None else casts.to_compute(params), mutable_variables, rngs)
        _set_mode(model, train)
        wrap_layers(_layers(model), nnx.Module, casts, checkpoint, self.form.forgetful)
        before = nnx.graphdef(model)
        with warnings.catch_warnings():  # within nnx.capture, values of other types would be dropped without a word
            warnings.filterwarnings("ignore", ".*nnx.capture.*", DeprecationWarning)
            result, _ = body(model, None)
        sown = nnx.pop(model, nnx.Intermediate)
        graph, _, _, rest = nnx.split(model, _is_trained, nnx.RngState, ...)
        if graph != before:
            raise MetricError(
                f"model: calling {type(model).__name__} changed attributes that are not variables; keep what changes "
                "in an nnx.Variable"
            )
        updates = {STATE: self.form.rest.to_plain(rest)} if self.form.rest.paths else {}
        intermediates = nnx.to_pure_dict(sown)
        return result, {**updates, INTERMEDIATES: intermediates} if intermediates else updates

    def call(self, model: Any, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The model keeps its state itself."""
        return model(*args, **kwargs), state

    def rebuild(self, params: Any, mutable_variables: Any) -> Any:
        """A model of its own with these arrays. Its random streams start from key 0."""
        return self.form.merge(params, mutable_variables, {})


@dataclass(frozen=True)
class _Checkpoint:
    """Lets a layer compute its intermediate results again, except for those that a policy keeps."""

    policy: Any

    def __call__(self, call: Callable) -> Callable:
        @functools.wraps(call)
        def checkpointed(layer: Any, *args: Any, **kwargs: Any) -> Any:
            arrays, put_back = split_arrays((args, kwargs))

            def run(layer: Any, *arrays: Any) -> Any:
                args, kwargs = put_back(arrays)
                return call(layer, *args, **kwargs)

            return nnx.remat(run, policy=self.policy)(layer, *arrays)

        return checkpointed


def _abstract(build: Callable, rngs: dict[str, Any]) -> Any:
    """The model's form. Without a mesh, since Flax would take logical names of axes for those of the mesh."""
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return nnx.eval_shape(lambda: _checked(build(_to_rngs(rngs))))


def _checked(model: Any) -> Any:
    if not isinstance(model, nnx.Module):
        raise ConfigError(
            f"model: expected a function of `rngs` to build an nnx.Module, got {type(model).__name__}; one that builds "
            "an Equinox model takes `key`"
        )
    return model


class _Form:
    """A model taken apart: its graph, and the names of its variables.

    Args:
        model: The model; its arrays may be abstract.
        remat: Which of its layers compute their intermediate results again.
    """

    def __init__(self, model: Any, remat: Remat | None = None):
        _check_attributes(model)
        paths = [path for path, layer in _layers(model) if callable(layer)]
        self.forgetful = frozenset() if remat is None else remat.choose(paths)
        self._graph, params, rngs, rest = nnx.split(model, _is_trained, nnx.RngState, ...)
        self.params, self._rngs, self.rest = (_Part(part) for part in (params, rngs, rest))
        if not self.params.paths:
            raise ConfigError(
                f"model: {type(model).__name__} has no nnx.Param of floating-point numbers, so nothing to train"
            )

    def take(self, model: Any) -> dict[str, Any]:
        """The variables of a model of this form."""
        _, params, _, rest = nnx.split(model, _is_trained, nnx.RngState, ...)
        if [_Part(part).paths for part in (params, rest)] != [self.params.paths, self.rest.paths]:
            raise ConfigError(
                f"model: {type(model).__name__} came out differently when it was built a second time; a model has to "
                "be the same for the same arguments"
            )
        variables = {"params": self.params.to_plain(params)}
        return {**variables, STATE: self.rest.to_plain(rest)} if self.rest.paths else variables

    def merge(self, params: Any, mutable_variables: Any, rngs: dict[str, Any]) -> Any:
        """A model with these variables, whose random streams start from these keys."""
        return nnx.merge(
            self._graph,
            self.params.to_state(params),
            self._rngs.filled(_stream_values(self._rngs, rngs)),
            self.rest.to_state((mutable_variables or {}).get(STATE, {})),
        )


class _Part:
    """Some variables of a model, by path, and how they come back into it."""

    def __init__(self, state: Any):
        flat = nnx.to_flat_state(state)
        self._keys = [path for path, _ in flat]
        self.variables = [variable for _, variable in flat]
        self.paths: list[Path] = [path_of(path) for path in self._keys]

    def to_plain(self, state: Any) -> dict[str, Any]:
        return nest(self.paths, [_value(variable) for _, variable in nnx.to_flat_state(state)])

    def to_state(self, plain: dict[str, Any]) -> Any:
        return self.filled(pick(self.paths, plain))

    def filled(self, values: list[Any]) -> Any:
        variables = [
            variable.replace(value) if isinstance(variable, nnx.Variable) else value
            for variable, value in zip(self.variables, values, strict=True)
        ]
        return nnx.from_flat_state(list(zip(self._keys, variables, strict=True)))

    def specs(self, rules: dict[str, Any]) -> dict[str, Any]:
        return nest(self.paths, [_spec(variable, rules) for variable in self.variables])


def _is_trained(path: Any, variable: Any) -> bool:
    """Whether a variable is a parameter that has gradients; integers are kept and saved, as other variables are."""
    del path
    if not isinstance(variable, nnx.Param):
        return False
    dtype = getattr(variable.get_value(), "dtype", None)
    return dtype is None or jnp.issubdtype(dtype, jnp.inexact)


def _layers(model: Any) -> list[tuple[Path, Any]]:
    """All modules of a model, by path."""
    return [(path_of(path), layer) for path, layer in nnx.iter_modules(model)]


_IN_EVALUATION = ("deterministic", "use_running_average")
"""The attributes that are True in layers whose mode is evaluation."""


def _set_mode(model: Any, train: bool) -> None:
    """Set the mode of all layers, except that those stay in evaluation mode which the user has put there.

    If all layers are in it, the user has evaluated the model, and nothing more is meant by it.
    """
    if not train:
        model.eval()
        return
    found = [
        (layer, name)
        for _, layer in _layers(model)
        for name in _IN_EVALUATION
        if getattr(layer, name, None) is not None
    ]
    kept = [(layer, name) for layer, name in found if getattr(layer, name) is True]
    model.train()
    if len(kept) < len(found):
        for layer, name in kept:
            setattr(layer, name, True)


def _value(variable: Any) -> Any:
    return jnp.asarray(variable.get_value() if isinstance(variable, nnx.Variable) else variable)


def _spec(variable: Any, rules: dict[str, Any]) -> PartitionSpec | None:
    names = variable.get_metadata().get("out_sharding") if isinstance(variable, nnx.Variable) else None
    if names is None:
        return None
    return PartitionSpec(*(rules.get(name, name) if isinstance(name, str) else name for name in names))


def _stream_values(part: _Part, rngs: dict[str, Any]) -> list[Any]:
    """A key for each random stream, all of them different, and counts that start at 0."""
    values = []
    for index, variable in enumerate(part.variables):
        if not isinstance(variable, nnx.RngKey):
            values.append(jnp.zeros(variable.shape, variable.dtype))
            continue
        base = rngs.get(variable.tag, next(iter(rngs.values()), None))
        key = jax.random.fold_in(jax.random.key(0) if base is None else base, index)
        values.append(key if not variable.shape else jax.random.split(key, variable.shape))
    return values


def _to_rngs(rngs: dict[str, Any]) -> nnx.Rngs:
    """Streams by their names; those that the model asks for and nobody gave come from the first key."""
    return nnx.Rngs(next(iter(rngs.values())), **rngs)


def _check_attributes(model: Any) -> None:
    """An array that is in no variable would become part of the program, and never change."""
    for path, module in nnx.iter_modules(model):
        for name, value in vars(module).items():
            if isinstance(value, jax.Array | jax.ShapeDtypeStruct):
                at = ".".join((*path_of(path), name))
                raise ConfigError(f"model: {at} is an array outside of any variable; write nnx.Variable(array)")
