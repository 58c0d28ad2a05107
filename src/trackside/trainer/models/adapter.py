"""What the trainer needs to know of a model, whichever library it was written with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import jax

from trackside.config import ConfigDict
from trackside.errors import ConfigError, MetricError
from trackside.trainer.sharding import ParallelConfig

Library = Literal["linen", "nnx", "equinox", "functions"]
LIBRARIES: tuple[Library, ...] = ("linen", "nnx", "equinox", "functions")

INTERMEDIATES = "intermediates"
"""Among the updates of a call: values that the model has sown for the log."""


@dataclass
class ModelConfig(ConfigDict):
    """Which model to train, and how it is spread over devices."""

    model_class: type | Callable[..., Any] | None = None
    """The model: a class of Flax Linen, Flax NNX or Equinox, a function that builds one, or a model that is built.

    A class or function is called with `model_config`, or with this config if that is None, and with `rngs` (NNX) or
    `key` (Equinox). Plain functions come as a `FunctionModel`.
    """
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """The mesh, and how parameters are spread over it."""
    model_config: Any = None
    """The model's own config; a `ConfigDict`, so that it can be saved and loaded with the run."""
    library: str | None = None
    """Which library the model is of: `linen`, `nnx`, `equinox` or `functions`; None to find out."""

    def __post_init__(self) -> None:
        if self.library is not None and self.library not in LIBRARIES:
            raise ConfigError(f"library: expected one of {', '.join(LIBRARIES)} or None, got {self.library!r}")


Body = Callable[[Any, Any], tuple[Any, Any]]
"""`body(model, state) -> result, state`: what is done with a model that has its arrays in place.

The state is None for a model that carries its own, and what comes back for it is ignored then.
"""


def pop_params(variables: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What is trained, and all other variables."""
    others = dict(variables)
    return others.pop("params", {}), others


def no_specs(variables: Any) -> Any:
    """For variables without metadata: nothing is asked for."""
    return jax.tree.map(lambda leaf: None, variables)


def state_is_missing() -> MetricError:
    """The error for a loss function that does not return the state of its model."""
    return MetricError(
        "loss_fn: the model has a state, and none was returned; write `def loss_fn(model, batch, rng, state)` and "
        "return `loss, metrics, state`"
    )


class ModelAdapter(Protocol):
    """One model on plain pytrees: dicts of arrays, by names that its users know."""

    library: Library
    """What it was written with."""
    model: Any
    """The model as the user's library knows it: built, or what builds it."""
    has_values: bool
    """Whether the model was built by the user, so that its arrays are those to begin with."""
    passes_state: bool
    """Whether a loss function gets the model's state and returns the new one."""

    def init(self, rngs: dict[str, Any], exmp_input: Any) -> dict[str, Any]:
        """Make the variables: `params`, which are trained, and others. They may carry partitioning metadata."""
        ...

    def unbox(self, variables: Any) -> Any:
        """The variables as plain arrays, without metadata."""
        ...

    def partition_specs(self, variables: Any) -> Any:
        """For each array of the variables, the partition spec that the model asks for, or None if it does not."""
        ...

    def bind(self, mutable_variables: Any, rngs: dict[str, Any] | None) -> Callable:
        """`apply_fn({"params": params}, *inputs, train=..., mutable=..., rngs=...)`, completed with what is missing.

        It gives the output; with `mutable`, the output and a dict of updated variables. See `bind_by_use`.

        Args:
            mutable_variables: The current batch statistics and the like.
            rngs: Keys to use where the caller passes none.
        """
        ...

    def predict(self, apply_fn: Callable, params: Any, inputs: Any) -> Any:
        """The model's output as in evaluation, for a whole batch of inputs."""
        ...

    def use(
        self, params: Any, mutable_variables: Any, rngs: dict[str, Any], train: bool, body: Body
    ) -> tuple[Any, dict[str, Any]]:
        """Do something with the model, its arrays in place, in training or inference mode.

        Returns:
            The body's result, and the mutable variables afterwards, with what was sown.
        """
        ...

    def call(self, model: Any, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Call a model that is in use: its output, and its state."""
        ...

    def rebuild(self, params: Any, mutable_variables: Any) -> Any:
        """The model with these arrays, as the user's library knows it."""
        ...


def bind_by_use(adapter: ModelAdapter, mutable_variables: Any, rngs: dict[str, Any] | None) -> Callable:
    """The apply function of `ModelAdapter.bind`, for adapters that put the model together for each use."""
    default_rngs = rngs or {}

    def apply_fn(
        variables: Any, *args: Any, train: bool = False, mutable: Any = False, rngs: Any = None, **kwargs: Any
    ) -> Any:
        def body(model: Any, state: Any) -> tuple[Any, Any]:
            return adapter.call(model, state, *args, **kwargs)

        params, others = pop_params({**(mutable_variables or {}), **variables})
        output, updates = adapter.use(params, others, default_rngs if rngs is None else rngs, train, body)
        return (output, updates) if mutable else output

    return apply_fn
