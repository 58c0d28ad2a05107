"""What the trainer needs to know of a model, whichever library it was written with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from trackside.config import ConfigDict
from trackside.trainer.sharding import ParallelConfig


@dataclass
class ModelConfig(ConfigDict):
    """Which model to train, and how it is spread over devices."""

    model_class: type | Callable[..., Any] | None = None
    """The model's class, built as `model_class(model_config)`, or as `model_class(this config)` if that is None."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """The mesh, and how parameters are spread over it."""
    model_config: Any = None
    """The model's own config; a `ConfigDict`, so that it can be saved and loaded with the run."""


class ModelAdapter(Protocol):
    """One model on plain pytrees: variables are a dict of collections, of which `params` is trained."""

    module: Any
    """The model as the user's library knows it."""

    def init(self, rngs: dict[str, Any], exmp_input: Any) -> dict[str, Any]:
        """Make the variables. They may carry the library's partitioning metadata."""
        ...

    def unbox(self, variables: Any) -> Any:
        """The variables as plain arrays, without metadata."""
        ...

    def partition_specs(self, variables: Any) -> Any:
        """For each array of the variables, the partition spec that the model asks for, or None if it does not."""
        ...

    def bind(self, mutable_variables: Any, rngs: dict[str, Any] | None) -> Callable:
        """The apply function, completed with what the model needs beside the parameters.

        Args:
            mutable_variables: The current batch statistics and the like.
            rngs: Keys to use where the caller passes none.
        """
        ...

    def predict(self, apply_fn: Callable, params: Any, inputs: Any) -> Any:
        """The model's output as in evaluation."""
        ...
