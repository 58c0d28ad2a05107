"""Equinox models on plain pytrees.

The model is taken apart once: floating-point arrays are trained, other arrays are kept, and what is no array belongs to
the program. Inside the step it is put together from plain dicts. `filter_jit` is not used, because it sorts and hashes
the whole model at every call.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from trackside.errors import ConfigError, MetricError
from trackside.trainer.models.adapter import Body, Library, bind_by_use, no_specs, state_is_missing
from trackside.trainer.models.casting import Casting
from trackside.trainer.models.layer_calls import wrap_layers
from trackside.trainer.models.named_leaves import nest, path_of, pick
from trackside.trainer.models.remat import Remat

BUFFERS, STATE = "buffers", "state"
_VALUES = (bool, int, float, complex, str, bytes)  # functions and sentinels are new objects each time a model is built


class EquinoxAdapter:
    """An Equinox model behind the trainer's view of a model.

    Args:
        model: The model, a pair of model and `eqx.nn.State`, or a function that builds either from a key.
        casting: What is cast around calls of the model; None for nothing.
        remat: Which layers compute their intermediate results again in the backward pass; None for none.
    """

    library: Library = "equinox"

    def __init__(self, model: Any, casting: Casting | None = None, remat: Remat | None = None):
        self.model = model
        self._casting = None if casting is None else replace(casting, kept=(eqx.nn.State,))
        self._remat = remat
        self.has_values = not _is_builder(model)
        abstract, state = _pair(model if self.has_values else eqx.filter_eval_shape(model, jax.random.key(0)))
        if not isinstance(abstract, eqx.Module):
            raise ConfigError(
                f"model: expected an equinox.Module that is built, got {abstract!r}; a function that builds an NNX "
                "model takes `rngs`"
            )
        if state is None and any(isinstance(layer, eqx.nn.StateIndex) for _, layer in _layers(abstract)):
            raise ConfigError(
                f"model: {type(abstract).__name__} has layers with a state; pass the pair that "
                "`eqx.nn.make_with_state` gives"
            )
        self.passes_state = state is not None
        self._leaves = _Leaves(abstract)
        self._state = None if state is None else _Leaves(state)
        if not self._leaves.trained:
            raise ConfigError(f"model: {type(abstract).__name__} has no floating-point array, so nothing to train")
        paths = [path for path, layer in _layers(abstract) if callable(layer)]
        self._forgetful = frozenset() if remat is None else remat.choose(paths)

    def init(self, rngs: dict[str, Any], exmp_input: Any) -> dict[str, Any]:
        """Make the variables, or take those of a model that is built."""
        del exmp_input  # an Equinox model knows its shapes
        return self.take_apart(*_pair(self.model if self.has_values else self.model(rngs["params"])))

    def take_apart(self, model: Any, state: Any = None) -> dict[str, Any]:
        """The variables of a model with this form, and of its state if it has one: the way back from `rebuild`."""
        params, buffers = self._leaves.take(model)
        variables = {"params": params}
        if buffers:
            variables[BUFFERS] = buffers
        if self._state is not None:
            variables[STATE] = dict(zip(*self._state.take_all(state), strict=True))
        return variables

    def unbox(self, variables: Any) -> Any:
        """They are plain already."""
        return variables

    def partition_specs(self, variables: Any) -> Any:
        """Equinox has no metadata for it."""
        return no_specs(variables)

    def bind(self, mutable_variables: Any, rngs: dict[str, Any] | None) -> Callable:
        """The model's `__call__` as a function of its parameters. It takes what the model takes, state and key too."""
        return bind_by_use(self, mutable_variables, rngs)

    def predict(self, apply_fn: Callable, params: Any, inputs: Any) -> Any:
        """The model's output in inference mode, for each example of a batch."""
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        return jax.vmap(lambda *one: apply_fn({"params": params}, *one))(*inputs)

    def use(
        self, params: Any, mutable_variables: Any, rngs: dict[str, Any], train: bool, body: Body
    ) -> tuple[Any, dict[str, Any]]:
        """Use the model in training or inference mode, with its state."""
        del rngs  # an Equinox model is given its keys when it is called
        casts, checkpoint = self._casting, None if self._remat is None else _Checkpoint(self._remat.policy)
        params = params if casts is None else casts.to_compute(params)
        model = _in_mode(self._leaves.put(params, mutable_variables.get(BUFFERS, {})), train)
        wrap_layers(_layers(model), eqx.Module, casts, checkpoint, self._forgetful)
        result, state = body(model, self._open_state(mutable_variables))
        if self._state is None:
            return result, {}
        if not isinstance(state, eqx.nn.State):
            raise state_is_missing()
        return result, {STATE: dict(zip(*self._state.take_all(state), strict=True))}

    def call(self, model: Any, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The state is the last argument, if the model has one."""
        return (model(*args, **kwargs), None) if state is None else model(*args, state, **kwargs)

    def rebuild(self, params: Any, mutable_variables: Any) -> Any:
        """The model with these arrays; a pair of model and state if it has one."""
        mutable_variables = mutable_variables or {}
        model = self._leaves.put(params, mutable_variables.get(BUFFERS, {}))
        state = self._open_state(mutable_variables)
        return model if state is None else (model, state)

    def _open_state(self, mutable_variables: Any) -> Any:
        if self._state is None:
            return None
        values = mutable_variables[STATE]
        return self._state.put_all([values[name] for name in self._state.names])


@dataclass(frozen=True)
class _Checkpoint:
    """Lets a layer compute its intermediate results again, except for those that a policy keeps."""

    policy: Any

    def __call__(self, call: Callable) -> Callable:
        return eqx.filter_checkpoint(call, policy=self.policy)


class _Leaves:
    """The leaves of a model: which are trained, which are other arrays, and what the others are."""

    def __init__(self, tree: Any):
        found, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        self._paths = [path_of(path) for path, _ in found]
        self.names = [str(index) for index in range(len(found))]
        self._static = [None if _is_array(leaf) else leaf for _, leaf in found]
        self._is_array = [_is_array(leaf) for _, leaf in found]
        self.trained = [index for index, (_, leaf) in enumerate(found) if _is_array(leaf) and _is_inexact(leaf)]
        self._others = [
            index for index, is_array in enumerate(self._is_array) if is_array and index not in self.trained
        ]

    def take(self, tree: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The trained arrays and the others of a model with this form."""
        leaves = jax.tree.leaves(tree)
        self._check(leaves)
        return tuple(
            nest([self._paths[index] for index in chosen], [leaves[index] for index in chosen])
            for chosen in (self.trained, self._others)
        )  # type: ignore[return-value]

    def put(self, trained: dict[str, Any], others: dict[str, Any]) -> Any:
        """The model with these arrays."""
        leaves = list(self._static)
        for chosen, nested in ((self.trained, trained), (self._others, others)):
            for index, leaf in zip(chosen, pick([self._paths[index] for index in chosen], nested), strict=True):
                leaves[index] = leaf
        return jax.tree.unflatten(self._structure, leaves)

    def take_all(self, tree: Any) -> tuple[list[str], list[Any]]:
        """All leaves by number, of what has no names of its own."""
        leaves = jax.tree.leaves(tree)
        if len(leaves) != len(self.names):
            raise MetricError(f"state: expected {len(self.names)} arrays as at the start, got {len(leaves)}")
        return self.names, leaves

    def put_all(self, leaves: list[Any]) -> Any:
        """The tree with these leaves."""
        return jax.tree.unflatten(self._structure, leaves)

    def _check(self, leaves: list[Any]) -> None:
        if [_is_array(leaf) for leaf in leaves] != self._is_array:
            raise ConfigError("model: it has other leaves than when it was built first; build the same each time")
        for path, leaf, static, is_array in zip(self._paths, leaves, self._static, self._is_array, strict=True):
            if not is_array and isinstance(leaf, _VALUES) and leaf != static:
                raise ConfigError(
                    f"model: {'.'.join(path)} was {static!r} when the model was built first, and is {leaf!r} now; what "
                    "is no array has to stay the same"
                )


def _pair(built: Any) -> tuple[Any, Any]:
    """A model and its state, if it has one."""
    return built if isinstance(built, tuple) and len(built) == 2 else (built, None)


def _is_builder(model: Any) -> bool:
    return not isinstance(model, eqx.Module | tuple) and callable(model)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic)


def _is_inexact(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)


def _in_mode(model: Any, train: bool) -> Any:
    """The model in a mode, except that layers stay in inference mode which the user has put there.

    If all layers are in it, the user has evaluated the model, and nothing more is meant by it.
    """
    if not train:
        return eqx.nn.inference_mode(model)
    flags = [layer.inference for _, layer in _layers(model) if hasattr(layer, "inference")]
    return eqx.nn.inference_mode(model, False) if all(flags) else model


def _layers(model: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All modules of a model, by path."""
    if isinstance(model, eqx.Module):
        yield path, model
        for name, field in model.__dataclass_fields__.items():
            if field.metadata.get("static", False):
                continue  # the user's own object, which every model shares
            yield from _layers(getattr(model, name, None), (*path, name))
    elif isinstance(model, list | tuple):
        for index, one in enumerate(model):
            yield from _layers(one, (*path, str(index)))
    elif isinstance(model, dict):
        for key, one in model.items():
            yield from _layers(one, (*path, str(key)))
