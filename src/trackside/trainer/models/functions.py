"""Models that are plain functions."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trackside.trainer.models.adapter import Body, Library, bind_by_use, no_specs, state_is_missing
from trackside.trainer.models.casting import Casting

STATE = "state"


@dataclass(frozen=True)
class FunctionModel:
    """A model that consists of two functions."""

    init_fn: Callable[..., Any]
    """`init_fn(key, inputs) -> params`; a pair of params and state with `has_state`."""
    apply_fn: Callable[..., Any]
    """`apply_fn(params, inputs)`; with `has_state`, `apply_fn(params, state, inputs) -> (outputs, state)`.

    It is given `train` and `rng` if it takes them.
    """
    has_state: bool = False
    """Whether the model has a state that changes from step to step without being trained."""


class BoundFunctions:
    """The apply function of a model with its parameters in place.

    Args:
        apply_fn: The function.
        params: The parameters, also as `model.params`.
        kwargs: What it is given in addition to its arguments.
        casting: What is cast around calls; None for nothing.
        has_state: Whether the first argument and the second result are the state, which is not cast.
    """

    def __init__(
        self,
        apply_fn: Callable,
        params: Any,
        kwargs: dict[str, Any],
        casting: Casting | None = None,
        has_state: bool = False,
    ):
        self.params = params
        self._apply_fn = apply_fn
        self._kwargs = kwargs
        self._casting = casting
        self._has_state = has_state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The output for some inputs."""
        kwargs, casts = {**self._kwargs, **kwargs}, self._casting
        if casts is None:
            return self._apply_fn(self.params, *args, **kwargs)
        state, args = (args[:1], args[1:]) if self._has_state else ((), args)
        args, kwargs = casts.to_compute((args, kwargs))
        output = self._apply_fn(casts.to_compute(self.params), *state, *args, **kwargs)
        if self._has_state:
            return casts.to_output(output[0]), *output[1:]
        return casts.to_output(output)


class FunctionAdapter:
    """Plain functions behind the trainer's view of a model.

    Args:
        model: The functions.
        casting: What is cast around calls of `apply_fn`; None for nothing.
    """

    library: Library = "functions"
    has_values = False

    def __init__(self, model: FunctionModel, casting: Casting | None = None):
        self.model = model
        self._casting = casting
        self.passes_state = model.has_state
        parameters = inspect.signature(model.apply_fn).parameters
        self._takes = {name for name in ("train", "rng") if name in parameters}
        self._init_takes_inputs = len(inspect.signature(model.init_fn).parameters) > 1

    def init(self, rngs: dict[str, Any], exmp_input: Any) -> dict[str, Any]:
        """Call the user's `init_fn`."""
        made = self.model.init_fn(rngs["params"], *((exmp_input,) if self._init_takes_inputs else ()))
        return {"params": made[0], STATE: made[1]} if self.model.has_state else {"params": made}

    def unbox(self, variables: Any) -> Any:
        """They are plain already."""
        return variables

    def partition_specs(self, variables: Any) -> Any:
        """Functions have no metadata for it."""
        return no_specs(variables)

    def bind(self, mutable_variables: Any, rngs: dict[str, Any] | None) -> Callable:
        """The user's `apply_fn`, to which `{"params": params}` is enough."""
        return bind_by_use(self, mutable_variables, rngs)

    def predict(self, apply_fn: Callable, params: Any, inputs: Any) -> Any:
        """The output as in evaluation."""
        return apply_fn({"params": params}, *(inputs if isinstance(inputs, tuple) else (inputs,)))

    def use(
        self, params: Any, mutable_variables: Any, rngs: dict[str, Any], train: bool, body: Body
    ) -> tuple[Any, dict[str, Any]]:
        """Use the apply function with its parameters, and the state."""
        given = {"train": train, "rng": rngs.get("dropout")}
        kwargs = {name: given[name] for name in self._takes}
        model = BoundFunctions(self.model.apply_fn, params, kwargs, self._casting, self.model.has_state)
        result, state = body(model, mutable_variables.get(STATE))
        if not self.model.has_state:
            return result, {}
        if state is None:
            raise state_is_missing()
        return result, {STATE: state}

    def call(self, model: Any, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The state follows the parameters, if the model has one."""
        return model(state, *args, **kwargs) if self.model.has_state else (model(*args, **kwargs), None)

    def rebuild(self, params: Any, mutable_variables: Any) -> Any:
        """The parameters; a pair of parameters and state if there is one."""
        return (params, mutable_variables[STATE]) if self.model.has_state else params
