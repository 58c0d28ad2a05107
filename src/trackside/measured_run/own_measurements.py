"""What is known of the steps of a loop that is not ours: which functions they are, and what these were given."""

import functools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import jax
import numpy as np

from trackside.errors import ConfigError
from trackside.findings.facts import HOST
from trackside.fusing import FusedSteps
from trackside.logger import Logger
from trackside.measured_run.array_owners import owners_of
from trackside.measured_run.call_output import COMPLETE, CallOutput
from trackside.measured_run.step_measurements import StepMeasurements
from trackside.profiling.compiles import CompileEvent
from trackside.profiling.signature import jitted_name, named_arguments
from trackside.trace.flops import count_flops

LOGGER = logging.getLogger(__name__)

MIN_EAGER_KINDS = 6
"""A function around a compiled one may need a few kinds of operations of its own; fewer than these cost little."""
_NOT_IN_NAMES = re.compile(r"[^\w.-]")
"""What JAX and XLA have no place for in the name of a program, as in that of a lambda. Nor do they keep a last `_`."""


def check_step(function: Any, steps_per_call: Any, name: Any = "") -> None:
    """Check what a user wants to have measured.

    Raises:
        ConfigError: It is no function, does not make a number of steps, or cannot be called so.
    """
    if not callable(function):
        raise ConfigError(
            f"run.step: expected a function, got {function!r}; give the function itself, as in run.step(train_step)"
        )
    if not isinstance(steps_per_call, Integral) or isinstance(steps_per_call, bool) or steps_per_call < 0:
        raise ConfigError(f"steps_per_call: expected a number of steps, 0 or more; got {steps_per_call!r}")
    if isinstance(function, FusedSteps) and steps_per_call not in (0, 1, function.steps_per_call):
        raise ConfigError(
            f"steps_per_call={steps_per_call}: fuse_steps has made this function for up to {function.steps_per_call} "
            "steps, and how many a call makes is known; leave it out"
        )
    if not isinstance(name, str):
        raise ConfigError(f"run.step: name={name!r}: expected text, or leave it out for the name of the function")


@dataclass(eq=False)
class StepFunction:
    """A function whose calls are measured."""

    function: Callable[..., Any]
    name: str
    steps_per_call: int
    num_calls: int = 0
    """Calls that were recorded."""
    num_other_calls: int = 0
    """Calls that were not, such as those inside of others."""
    was_traced: bool = False
    """Whether JAX has traced it as a part of another function."""
    output: CallOutput = field(default_factory=CallOutput)
    _forms: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    _called_at: int | None = None
    _leads: bool = False
    _lengths: list[int] | None = None
    """Of what a call with a whole stack of batches has returned."""

    def count_stacked(self, num_read: int, batch_size: int, result: Any) -> tuple[int, int]:
        """How many steps a call made with batches in a stack, and with how many examples.

        The last stack of an epoch may have fewer batches. Then what has as many entries as steps, such as the losses,
        is as short.

        Args:
            num_read: The length of what was read for it: so many batches, if they are in a stack.
            batch_size: How many examples one of them has; 0 if that is not known.
            result: What it returned.
        """
        num_steps = self.steps_per_call
        if num_read == num_steps:
            self._lengths = _lengths(result) if self._lengths is None else self._lengths
        elif 0 < num_read < num_steps and (num_steps, num_read) in zip(
            self._lengths or (), _lengths(result), strict=False
        ):
            num_steps = num_read
        else:
            return num_steps, num_read
        return num_steps, num_read * (batch_size or 1)

    def leads(self, num_steps: int) -> bool:
        """Whether a call that makes no step is part of the next one, and not of the last.

        It is if the function was called before there was any step, and then for each step: an evaluation is not.

        Args:
            num_steps: Steps so far in this run.
        """
        before, self._called_at = self._called_at, num_steps
        self._leads = num_steps == 0 if before is None else self._leads and num_steps - before <= 1
        return self._leads

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember the forms of the arguments, not the arrays."""
        try:
            self._forms = jax.tree.map(_form, (args, kwargs))
        except Exception:  # containers of the user's own may raise anything, and the loop must go on
            LOGGER.debug("the arguments of %s could not be described", self.name, exc_info=True)

    def forms(self) -> dict[str, Any]:
        """The forms of its arguments by name."""
        return {} if self._forms is None else dict(named_arguments(*self._forms, self.function))

    def traced(self) -> Any:
        """As it was traced when it was compiled, which JAX remembers; None for what is not jitted."""
        trace = getattr(self.function, "trace", None)
        if trace is None or self._forms is None:
            return None
        args, kwargs = self._forms
        return trace(*args, **kwargs)

    @property
    def program(self) -> str | None:
        """The name under which JAX compiles it; None for what is not compiled as a whole."""
        is_fused = isinstance(self.function, FusedSteps)
        return self.function.__name__ if is_fused else jitted_name(self.function)

    @functools.cached_property
    def flops(self) -> float | None:
        """The model's own FLOPs of a call, of as many steps as it makes at most; None where they cannot be counted."""
        if isinstance(self.function, FusedSteps) and self.function.outline is not None:
            return count_flops(self.function.outline).model_flops * self.steps_per_call
        traced = self.traced()
        return None if traced is None else count_flops(traced).model_flops


Call = tuple[StepFunction, tuple[Any, ...], dict[str, Any], Any]
"""A function, what it was given, and what it returned."""


class OwnMeasurements(StepMeasurements):
    """What callbacks may ask about the steps of a loop of the user's own.

    Args:
        logger: Whose `step_time` leaves out steps that a capture disturbs.
        read_step: Gives the steps so far.
    """

    def __init__(self, logger: Logger, read_step: Callable[[], int]):
        super().__init__(logger)
        self.functions: list[StepFunction] = []
        """What is measured."""
        self.call: Call | None = None
        """The call that was just made, for as long as something is done between it and the next."""
        self._read_step = read_step
        self._device_kind = ""
        self._num_devices = 1
        self._eager_steps: dict[str, dict[str, int]] = {}

    @property
    def current_step(self) -> int:
        """Steps so far."""
        return self._read_step()

    @property
    def device_kind(self) -> str:
        """What the device is called by its maker; empty before the first step of JAX."""
        return self._device_kind

    @property
    def is_on_host(self) -> bool:
        """Whether all functions so far were over when they returned, so that the process itself is the device."""
        return self._device_kind == HOST

    @property
    def num_devices(self) -> int:
        """How many devices the first step ran on."""
        return self._num_devices

    def learn_device(self, report: Any) -> None:
        """Learn from what a call returned where it runs, and write that down.

        A loop may also call functions that compute on the host, such as an environment, before those of JAX.
        """
        if self._device_kind and not (self.is_on_host and isinstance(report, jax.Array)):
            return
        if isinstance(report, jax.Array):
            devices = report.sharding.device_set
            self._device_kind, self._num_devices = next(iter(devices)).device_kind, len(devices)
            self._logger.log_environment(
                {"devices": [str(device) for device in jax.devices()], "backend": jax.default_backend()}
            )
        elif report is COMPLETE:
            self._device_kind = HOST
            self._logger.log_environment({"devices": [HOST], "backend": "cpu"})

    def learn_eager(self, made: StepFunction, events: Sequence[CompileEvent]) -> None:
        """Write down that a function is not compiled, or only a part of it, if that is what its first call shows.

        Args:
            made: The function.
            events: What that call has compiled.
        """
        operations = [event.function for event in events if event.is_operation]
        if made.program is None and len(set(operations)) >= MIN_EAGER_KINDS:
            compiled = {"num_operations": len(operations), "num_programs": len(events) - len(operations)}
            self._eager_steps[made.name] = compiled
            self._logger.log_environment({"eager_steps": dict(self._eager_steps)})

    def exclude_span(self, began_s: float, until_s: float) -> None:
        """Leave a time out of the logged step times."""
        self._logger.exclude_span(began_s, until_s)

    @property
    def _called(self) -> list[StepFunction]:
        return [made for made in self.functions if made.num_calls]

    @property
    def program(self) -> str | None:
        """The compiled program, if the step is one jitted function."""
        called = self._called
        name = called[0].program if len(called) == 1 else None
        return None if name is None else _NOT_IN_NAMES.sub("_", f"jit_{name}").rstrip("_")

    def memory_owners(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Whose the arrays are, by the names of arguments: those of the last call, and of other functions by form."""
        owners: dict[str, Any] = {}
        if self.call is not None:
            made, args, kwargs, result = self.call
            owners = owners_of(dict(named_arguments(args, kwargs, made.function)), result)
        forms: dict[str, Any] = {}
        for made in self._called:
            if self.call is None or made is not self.call[0]:
                forms |= {name: form for name, form in made.forms().items() if name not in (*forms, *owners)}
        return owners, forms

    def traced_step(self) -> Any:
        """The step as JAX has traced it, if it is one jitted function."""
        called = self._called
        try:
            return called[0].traced() if len(called) == 1 else None
        except Exception:  # arguments that cannot be described: the capture goes without its FLOPs
            return None

    def flops_per_step(self) -> float | None:
        """The FLOPs of all calls so far, by step; None where those of a function are not known."""
        called, num_steps = self._called, sum(made.num_calls * made.steps_per_call for made in self._called)
        flops = [made.flops for made in called]
        if not num_steps or not all(flops):
            return None
        return sum(made.num_calls * (one or 0.0) for made, one in zip(called, flops, strict=True)) / num_steps


def _form(leaf: Any) -> Any:
    """What JAX has to know of an array to find what it has traced; anything else as it is."""
    if isinstance(leaf, jax.Array):
        is_weak = getattr(leaf, "weak_type", False)  # typed keys have none
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=is_weak)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, np.ndarray) else leaf


def _lengths(result: Any) -> list[int]:
    return [(*np.shape(leaf), 0)[0] for leaf in jax.tree.leaves(result)]
