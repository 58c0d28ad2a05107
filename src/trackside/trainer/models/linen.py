"""Flax Linen models on plain pytrees."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import flax.linen as nn
import jax
from flax.core import meta
from flax.errors import ScopeCollectionNotFound
from flax.linen.spmd import logical_to_mesh_axes
from jax.sharding import PartitionSpec

from trackside.errors import MetricError
from trackside.trainer.models.adapter import INTERMEDIATES, Body, Library
from trackside.trainer.models.casting import Casting
from trackside.trainer.models.linen_remat import LinenRemat
from trackside.trainer.models.remat import Remat


class LinenAdapter:
    """A Linen module behind the trainer's view of a model.

    Args:
        module: The module.
        logical_axis_rules: Which mesh axis each logical axis name of the model's metadata is split over.
        casting: What is cast around calls of the module; None for nothing.
        remat: Which layers compute their intermediate results again in the backward pass; None for none.
    """

    library: Library = "linen"
    has_values = False
    passes_state = False

    def __init__(
        self,
        module: nn.Module,
        logical_axis_rules: tuple[tuple[str, Any], ...] = (),
        casting: Casting | None = None,
        remat: Remat | None = None,
    ):
        self.model = module
        self._rules = logical_axis_rules
        self._casting = casting
        self._remat = None if remat is None else LinenRemat(remat)
        parameters = inspect.signature(type(module).__call__).parameters
        self._mode = _Mode(type(module).__call__)
        self._takes_several = _num_required(parameters.values()) > 1

    def init(self, rngs: dict[str, Any], exmp_input: Any) -> dict[str, Any]:
        """Make the variables, boxed in partitioning metadata where the module has any."""
        kwargs = self._mode.arguments(train=False)
        learning = contextlib.nullcontext() if self._remat is None else self._remat.learning()
        with nn.logical_axis_rules(self._rules), learning:
            return dict(self.model.init(rngs, *self._arguments(exmp_input), **kwargs))

    def unbox(self, variables: Any) -> Any:
        """The variables as plain arrays."""
        return jax.tree.map(
            lambda leaf: leaf.unbox(apply_constraint=False) if _is_partitioned(leaf) else meta.unbox(leaf),
            variables,
            is_leaf=_is_box,
        )

    def partition_specs(self, variables: Any) -> Any:
        """The specs of `nn.Partitioned` and `nn.LogicallyPartitioned` variables; None elsewhere."""
        return jax.tree.map(self._spec, variables, is_leaf=_is_box)

    def _spec(self, leaf: Any) -> PartitionSpec | None:
        if isinstance(leaf, nn.LogicallyPartitioned):
            rules = leaf.rules if leaf.rules is not None else self._rules
            return logical_to_mesh_axes(leaf.names, rules)
        if isinstance(leaf, nn.Partitioned):
            return leaf.get_partition_spec()
        return None

    def bind(self, mutable_variables: Any, rngs: dict[str, Any] | None) -> Callable:
        """`module.apply`, to which `{"params": params}` is enough."""
        default_rngs = dict(rngs or {})  # with "params", from which Flax takes streams of other names

        def apply_fn(variables: Any, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
            forgetting = contextlib.nullcontext() if self._remat is None else self._remat.forgetting()
            with nn.logical_axis_rules(self._rules), forgetting:
                return self._apply(
                    {**(mutable_variables or {}), **variables},
                    *args,
                    rngs=default_rngs if rngs is None else rngs,
                    **kwargs,
                )

        return apply_fn

    def _apply(self, variables: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """`module.apply`, with parameters, arguments and output cast if that is wanted, and nothing else."""
        casts = self._casting
        if casts is None:
            return self._apply_module(variables, *args, **kwargs)
        if "params" in variables:
            variables = {**variables, "params": casts.to_compute(variables["params"])}
        args, kwargs = casts.to_compute((args, kwargs))
        returned = self._apply_module(variables, *args, **kwargs)
        if kwargs.get("mutable", False) is False:
            return casts.to_output(returned)
        output, updates = returned
        return casts.to_output(output), updates

    def _apply_module(self, variables: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return self.model.apply(variables, *args, **kwargs)
        except ScopeCollectionNotFound as error:
            raise MetricError(
                f"model: {str(error).partition(' (http')[0]} A Linen model has to make all of its variables when it is "
                "initialized, which is done with train=False"
            ) from error

    def predict(self, apply_fn: Callable, params: Any, inputs: Any) -> Any:
        """The model's output as in evaluation."""
        kwargs = self._mode.arguments(train=False)
        return apply_fn({"params": params}, *self._arguments(inputs), **kwargs)

    def use(
        self, params: Any, mutable_variables: Any, rngs: dict[str, Any], train: bool, body: Body
    ) -> tuple[Any, dict[str, Any]]:
        """Use the module with its variables in place. Its methods are given the mode if they take it."""
        variables = {**mutable_variables, "params": params}
        collections = [*mutable_variables, INTERMEDIATES] if train else False
        model = BoundModule(self.model, variables, self.bind(None, rngs), collections, train, rngs)
        result, _ = body(model, None)
        return result, model.updates

    def call(self, model: Any, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The module keeps its state in its collections."""
        return model(*args, **kwargs), state

    def rebuild(self, params: Any, mutable_variables: Any) -> Any:
        """The module, bound to these variables."""
        return self.model.bind({"params": params, **(mutable_variables or {})})

    def _arguments(self, inputs: Any) -> tuple[Any, ...]:
        """A tuple is several arguments for a model that needs several, and one for all others."""
        return tuple(inputs) if self._takes_several and isinstance(inputs, tuple) else (inputs,)


class BoundModule:
    """A module that is called without its variables. What calls change in them is seen by later calls.

    Args:
        module: The module.
        variables: Its variables.
        apply_fn: Its apply function.
        collections: Which of them calls may change; False for none.
        train: The mode, for methods that take it.
        rngs: The keys of the first call; later ones get others.
    """

    def __init__(
        self,
        module: nn.Module,
        variables: dict[str, Any],
        apply_fn: Callable,
        collections: list[str] | bool,
        train: bool,
        rngs: dict[str, Any],
    ):
        self.updates: dict[str, Any] = {}
        self._module = module
        self._variables = variables
        self._apply_fn = apply_fn
        self._collections = collections
        self._train = train
        self._rngs = rngs
        self._num_calls = 0

    @property
    def params(self) -> Any:
        """The parameters."""
        return self._variables["params"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output for some inputs."""
        return self._call(*args, method="__call__", **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Other methods of the module, as functions of their arguments alone."""
        if not name.startswith("_") and not hasattr(self._module, name) and name in self.params:  # made by `setup`
            return functools.partial(self._call, method=name)
        if name.startswith("_") or not callable(getattr(self._module, name)):
            return getattr(self._module, name)
        return functools.partial(self._call, method=name)

    def _call(self, *args: Any, method: str, **kwargs: Any) -> Any:
        variables = {**self._variables, **self.updates}
        function = getattr(type(self._module), method, None)
        mode = _Mode(function).arguments(self._train, num_given=len(args) + 1) if inspect.isfunction(function) else {}
        kwargs = {**mode, **kwargs, "method": method if hasattr(self._module, method) else _of_submodule(method)}
        if self._num_calls:  # the keys of the call before would give the same random numbers
            folded = {name: jax.random.fold_in(key, self._num_calls) for name, key in self._rngs.items()}
            kwargs = {"rngs": folded, **kwargs}
        self._num_calls += 1
        if self._collections is False:
            return self._apply_fn(variables, *args, **kwargs)
        output, updates = self._apply_fn(variables, *args, mutable=self._collections, **kwargs)
        self.updates.update(updates)
        return output


_MODES = {"train": True, "training": True, "is_training": True, "deterministic": False}
"""The names by which models take the mode, and what each is in training."""


class _Mode:
    """How a method takes the mode, training or evaluation.

    Args:
        method: The method.
    """

    def __init__(self, method: Callable):
        self._parameters = list(inspect.signature(method).parameters)

    def arguments(self, train: bool, num_given: int = 0) -> dict[str, Any]:
        """The arguments that say it, apart from the first ones, which are given by position.

        Args:
            train: Whether this is training.
            num_given: How many are given by position, `self` included.
        """
        names = [name for name in self._parameters[num_given:] if name in _MODES]
        return {name: train == _MODES[name] for name in names}


def _of_submodule(name: str) -> Callable:
    """A method of a module that calls one of its submodules, which `setup` makes."""
    return lambda module, *args, **kwargs: getattr(module, name)(*args, **kwargs)


def _num_required(parameters: Iterable[inspect.Parameter]) -> int:
    """How many inputs a model's `__call__` cannot do without."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
    return len([one for one in required if one.name not in ("self", *_MODES)])


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, meta.AxisMetadata)


def _is_partitioned(leaf: Any) -> bool:
    return isinstance(leaf, nn.Partitioned)
