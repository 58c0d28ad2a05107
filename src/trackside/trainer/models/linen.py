"""Flax Linen models on plain pytrees."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import flax.linen as nn
import jax
from flax.core import meta
from flax.linen.spmd import logical_to_mesh_axes
from jax.sharding import PartitionSpec

from trackside.errors import ConfigError
from trackside.trainer.models.adapter import ModelConfig


class LinenAdapter:
    """A Linen module behind the trainer's view of a model.

    Args:
        module: The module.
        logical_axis_rules: Which mesh axis each logical axis name of the model's metadata is split over.
    """

    def __init__(self, module: nn.Module, logical_axis_rules: tuple[tuple[str, Any], ...] = ()):
        self.module = module
        self._rules = logical_axis_rules
        parameters = inspect.signature(type(module).__call__).parameters
        self._takes_train = "train" in parameters
        self._takes_several = _num_required(parameters.values()) > 1

    def init(self, rngs: dict[str, Any], exmp_input: Any) -> dict[str, Any]:
        """Make the variables, boxed in partitioning metadata where the module has any."""
        kwargs: dict[str, Any] = {"train": False} if self._takes_train else {}
        with nn.logical_axis_rules(self._rules):
            return dict(self.module.init(rngs, *self._arguments(exmp_input), **kwargs))

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
        default_rngs = {name: key for name, key in (rngs or {}).items() if name != "params"}

        def apply_fn(variables: Any, *args: Any, rngs: Any = None, **kwargs: Any) -> Any:
            with nn.logical_axis_rules(self._rules):
                return self.module.apply(
                    {**(mutable_variables or {}), **variables},
                    *args,
                    rngs=default_rngs if rngs is None else rngs,
                    **kwargs,
                )

        return apply_fn

    def predict(self, apply_fn: Callable, params: Any, inputs: Any) -> Any:
        """The model's output as in evaluation."""
        kwargs: dict[str, Any] = {"train": False} if self._takes_train else {}
        return apply_fn({"params": params}, *self._arguments(inputs), **kwargs)

    def _arguments(self, inputs: Any) -> tuple[Any, ...]:
        """A tuple is several arguments for a model that needs several, and one for all others."""
        return tuple(inputs) if self._takes_several and isinstance(inputs, tuple) else (inputs,)


def _num_required(parameters: Iterable[inspect.Parameter]) -> int:
    """How many inputs a model's `__call__` cannot do without."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
    return len([one for one in required if one.name not in ("self", "train")])


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, meta.AxisMetadata)


def _is_partitioned(leaf: Any) -> bool:
    return isinstance(leaf, nn.Partitioned)


def build_module(config: ModelConfig) -> nn.Module:
    """Build the model that a config names.

    A class is checked before it is called: its name may have come from a file.
    """
    model_class = config.model_class
    if isinstance(model_class, type) and not issubclass(model_class, nn.Module):
        raise ConfigError(_unsupported(model_class))
    if not callable(model_class):
        raise ConfigError(f"model_class: expected a flax.linen.Module class, got {model_class!r}")
    if isinstance(model_class, nn.Module):
        raise ConfigError(f"model_class: expected a class, got an instance, {type(model_class).__name__}(...)")
    try:
        module = model_class(config.model_config if config.model_config is not None else config)
    except TypeError as error:
        raise ConfigError(
            f"model_class: {getattr(model_class, '__name__', model_class)} is built with its config as the only "
            f"argument, and that failed: {error}. A Linen model takes it by a field, such as `config: Any = None`"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(_unsupported(module))
    return module


def _unsupported(got: Any) -> str:
    return f"model_class: expected a flax.linen.Module class or a function that returns a module, got {got!r}"
