"""A training step and its loss, timed without a recompile and without changing the results.

To JAX, a wrapper made for each call is another function each time, and each call would compile again; and inside of a
jitted step, the time around a loss is the time of tracing it. So a jitted step is called with the user's own loss, even
if it is given a wrapped one, and the loss inside is sampled from captures of the step as it is.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax

from trackside.errors import ConfigError
from trackside.profiling.array_state import is_ready
from trackside.profiling.compiles import compile_counter
from trackside.profiling.timers.call_durations import Call, CallSeries, Waitable
from trackside.profiling.timers.device_outputs import OutputFinder, TracedOutputError, is_traced
from trackside.profiling.timers.durations import DurationSketch
from trackside.profiling.timers.step_sampler import StepSampler
from trackside.profiling.timers.timed_function import TimedCallable, timed_call, watch
from trackside.profiling.timers.training_profiler import DISPATCH, TrainingProfiler, get_profiler

LOSS_FN_COMPUTATION = "loss_fn_computation"
MODEL_UPDATE = "model_update"
MAKE_STEP_TOTAL = "make_step_total"

_wrapped: "weakref.WeakValueDictionary[tuple[Any, ...], TimedCallable]" = weakref.WeakValueDictionary()
"""What was wrapped before, so that wrapping it again returns the same object. A wrapper keeps its function alive, so an
id stands for the same function as long as there is an entry."""
_lock = threading.Lock()


def profile_jax_loss_fn(
    loss_fn: Callable[..., Any], operation_name: str = LOSS_FN_COMPUTATION, profiler: TrainingProfiler | None = None
) -> Callable[..., Any]:
    """Wrap a loss function, or its gradient, so that it is timed until its values are computed.

    Called inside of a function that JAX traces, it is just the function given. What it takes there comes from captures
    if the step around it is wrapped by `profile_make_step`, which then passes on the function given. To a step that is
    not wrapped it is one more function to compile for, once, even if it is wrapped again for each call.

    Args:
        loss_fn: The function.
        operation_name: What to call the operation.
        profiler: Measures it; None for the process's own.

    Raises:
        ConfigError: It is not a function.
    """
    timers = _check(loss_fn, "loss_fn", operation_name, profiler)
    loss_fn = _unwrap_loss(loss_fn)
    return _once(TimedTreeLoss if _is_tree(loss_fn) else TimedLoss, loss_fn, operation_name, timers)


def profile_make_step(
    make_step: Callable[..., Any], operation_name: str = MAKE_STEP_TOTAL, profiler: TrainingProfiler | None = None
) -> Callable[..., Any]:
    """Wrap a training step so that it is timed until its values are computed.

    The loss with its gradient is reported separately as `loss_fn_computation` (or under the name that was given to
    `profile_jax_loss_fn`) and the rest as `model_update`, once there are enough samples. A step that calls a wrapped
    loss outside of any jitted function has it measured there, and is not sampled.

    Args:
        make_step: The function, jitted or not.
        operation_name: What to call the operation.
        profiler: Measures it; None for the process's own.

    Raises:
        ConfigError: It is not a function.
    """
    timers = _check(make_step, "make_step", operation_name, profiler)
    timers.counts_steps_by(operation_name)
    return _once(TimedJittedStep if is_jitted(make_step) else TimedPlainStep, make_step, operation_name, timers)


class TimedLoss(TimedCallable):
    """A loss that is timed when it computes something. Wrappers of one function are equal to each other."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss."""
        output = super().__call__(*args, **kwargs)
        if self._profiler.enabled and not is_traced(output):
            self._profiler.num_loss_calls += 1
        return output

    @property
    def operation_name(self) -> str:
        """What the operation is called."""
        return self._name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimedLoss) and self.__wrapped__ == other.__wrapped__

    def __hash__(self) -> int:
        return hash(self.__wrapped__)


class _TimedStep(TimedCallable):
    """A step that is timed, and captured now and then."""

    program: str | None = None
    """What XLA calls the step; None when that is not known."""

    def __init__(self, function: Callable[..., Any], name: str, profiler: TrainingProfiler):
        super().__init__(function, name, profiler)
        self._now = profiler.clock.now
        self._operation = profiler.operation(name)
        self._dispatch_name = name + DISPATCH
        self._clean = DurationSketch()
        """Calls that compiled nothing: compiling is not part of a loss."""
        self._compiles = compile_counter()
        self._sampler = StepSampler(profiler, name, self.program, self._clean)

    def _record(self, seconds: float, num_calls: int) -> None:
        self._operation.add_many(seconds, num_calls)
        self._clean.add_many(seconds, num_calls)


class TimedJittedStep(_TimedStep):
    """A step that is one jitted function: each call is one execution."""

    def __init__(self, function: Callable[..., Any], name: str, profiler: TrainingProfiler):
        self.program = program_name(function)
        super().__init__(function, name, profiler)
        self._outputs = OutputFinder()
        self._series = CallSeries(on_lost=self._outputs.on_lost)
        self._last: Waitable | None = None
        """Shows whether the last call is complete; None if it is too large to keep."""
        self._sampler.expect(LOSS_FN_COMPUTATION, MODEL_UPDATE)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step."""
        profiler, function, sampler, compiles = self._profiler, self.__wrapped__, self._sampler, self._compiles
        if not _LOSS_KINDS.isdisjoint(map(type, args)) or kwargs:
            args, kwargs = self._without_wrappers(args, kwargs)
        if not profiler.enabled:
            return function(*args, **kwargs)
        num_events = compiles.num_events
        start = profiler.start_timer(self._name)
        is_after_pause = self._is_complete()
        try:
            marker = sampler.mark_call()
            if marker is None:
                output = function(*args, **kwargs)
            else:
                with marker:
                    output = function(*args, **kwargs)
        except BaseException:
            profiler.end_timer(self._name, start)
            raise
        returned = self._now()
        has_compiled = compiles.num_events != num_events
        if has_compiled:
            sampler.warm_up()
        try:
            arrays = self._outputs.find(output)
        except TracedOutputError:
            profiler.cancel_timer(start)
            return output
        if not arrays:  # nothing on a device
            profiler.end_timer_at(self._name, start, returned)
            return output
        self._last = arrays[0] if self._outputs.is_light else None  # or its memory would be kept
        call = Call(start, returned, arrays, self._record, self._series, is_after_pause)
        if has_compiled:
            call.record, call.series = self._operation.add_many, None
        if marker is not None:
            call.on_seen = sampler.on_marked_seen
        profiler.end_timer(self._dispatch_name, start)
        watch(profiler, call)
        return output

    def _without_wrappers(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with losses as the user wrote them: JAX sees the step that it would see without a profiler."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, TimedLoss):
                self._sampler.expect(value.operation_name, MODEL_UPDATE)
                args = tuple(_unwrap_loss(value) for value in args)
                return args, {name: _unwrap_loss(value) for name, value in kwargs.items()}
        return args, kwargs

    def _is_complete(self) -> bool:
        """Whether the device is done with the last call; False if that is not known, as when its array was donated."""
        try:
            return self._last is not None and is_ready(self._last)
        except Exception:
            return False


class TimedPlainStep(_TimedStep):
    """A step that is a plain function, which may call several jitted ones."""

    def __init__(self, function: Callable[..., Any], name: str, profiler: TrainingProfiler):
        super().__init__(function, name, profiler)
        self._is_decided = False
        """Whether it is known if the loss has to be sampled."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make a step."""
        profiler, sampler = self._profiler, self._sampler
        if not profiler.enabled:
            return self.__wrapped__(*args, **kwargs)
        num_events, num_loss_calls = self._compiles.num_events, profiler.num_loss_calls
        marker = sampler.mark_call()

        def on_arrays(call: Call) -> None:
            if self._compiles.num_events != num_events:
                sampler.warm_up()
                call.record = self._operation.add_many
            if marker is not None:
                call.on_seen = sampler.on_marked_seen
            if not self._is_decided:
                self._is_decided = True
                if profiler.num_loss_calls == num_loss_calls:  # or it is measured where it is called
                    sampler.expect(_loss_name(args, kwargs), MODEL_UPDATE)

        with contextlib.nullcontext() if marker is None else marker:
            return timed_call(profiler, self._name, self.__wrapped__, args, kwargs, self._record, on_arrays)


def _loss_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What the loss among the arguments of a step is called."""
    names = (value.operation_name for value in (*args, *kwargs.values()) if isinstance(value, TimedLoss))
    return next(names, LOSS_FN_COMPUTATION)


def program_name(function: Callable[..., Any]) -> str | None:
    """What XLA calls a jitted function; None when that is not known."""
    name = getattr(function, "__name__", None)
    return f"jit_{name}" if isinstance(name, str) and name.isidentifier() else None


def is_jitted(function: Callable[..., Any]) -> bool:
    """Whether a call is one execution: a result of `jax.jit` or `equinox.filter_jit`, or compiled ahead of time."""
    return hasattr(function, "lower") or hasattr(function, "cost_analysis")


def _check(function: Any, argument: str, name: Any, profiler: TrainingProfiler | None) -> TrainingProfiler:
    if not callable(function):
        raise ConfigError(f"{argument}: expected a function; got {function!r}")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"operation_name: expected a name such as 'forward'; got {name!r}")
    return get_profiler() if profiler is None else profiler


def _once(kind: type[TimedCallable], function: Callable[..., Any], name: str, profiler: TrainingProfiler) -> Any:
    """The wrapper of a function, the same each time."""
    key = (kind, id(function), name, id(profiler))
    with _lock:
        wrapper = _wrapped.get(key)
        if wrapper is None:
            wrapper = _wrapped[key] = kind(function, name, profiler)
        return wrapper


def _unwrap_loss(value: Any) -> Any:
    return value.__wrapped__ if isinstance(value, TimedLoss) else value


def _is_tree(function: Callable[..., Any]) -> bool:
    """Whether JAX sees a callable as a tree of arrays and other values, like an Equinox module."""
    return not jax.tree_util.treedef_is_leaf(jax.tree.structure(function))


@jax.tree_util.register_pytree_node_class
class TimedTreeLoss(TimedLoss):
    """A loss that JAX sees as a tree of values, and still does."""

    def tree_flatten(self) -> tuple[tuple[Any], tuple[str, TrainingProfiler]]:
        """The function, and what JAX must not trace."""
        return (self.__wrapped__,), (self._name, self._profiler)

    @classmethod
    def tree_unflatten(cls, rest: tuple[str, TrainingProfiler], children: tuple[Any]) -> "TimedTreeLoss":
        """The same wrapper around another function, which may be a placeholder of JAX."""
        loss = object.__new__(cls)
        (loss.__wrapped__,), (loss._name, loss._profiler) = children, rest
        return loss


_LOSS_KINDS = {TimedLoss, TimedTreeLoss}
"""Looking up the type of each argument takes a tenth of the time of `isinstance`."""
