"""Functions that are timed whenever they are called.

A function that returns arrays of a device is timed until they are computed. While JAX is tracing a function it computes
nothing, so it is not timed.
"""

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar

from trackside.errors import ConfigError
from trackside.profiling.timers.call_durations import Call
from trackside.profiling.timers.device_outputs import TracedOutputError, find_arrays
from trackside.profiling.timers.training_profiler import DISPATCH, TrainingProfiler, get_profiler

Function = TypeVar("Function", bound=Callable[..., Any])


def profile_operation(operation_name: str, profiler: TrainingProfiler | None = None) -> Callable[[Function], Function]:
    """A decorator that times each call of a function.

    Plain and async functions count once per call. Generators, plain or async, count once per item, without what the
    consumer does in between. Methods, class methods and static methods work too.

    Args:
        operation_name: What to call the operation.
        profiler: Measures it; None for the process's own.

    Raises:
        ConfigError: The name is not a string, or what is decorated is not a function.
    """
    if not isinstance(operation_name, str) or not operation_name:
        raise ConfigError(
            f"operation_name: expected a name such as 'forward'; got {operation_name!r}. Use it as "
            "@profile_operation('forward'), with the name in brackets."
        )
    timers = get_profiler() if profiler is None else profiler

    def decorate(function: Any) -> Any:
        if isinstance(function, staticmethod | classmethod):
            return type(function)(decorate(function.__func__))
        if not callable(function):
            raise ConfigError(f"profile_operation({operation_name!r}): {function!r} is not a function")
        return _wrap(function, operation_name, timers)

    return decorate


def _wrap(function: Callable[..., Any], name: str, profiler: TrainingProfiler) -> Callable[..., Any]:
    if not (inspect.isfunction(function) or inspect.ismethod(function) or inspect.isbuiltin(function)):
        return TimedCallable(function, name, profiler)

    def call(*args: Any, **kwargs: Any) -> Any:
        return timed_call(profiler, name, function, args, kwargs)

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with _AsyncSpan(profiler, name):
            return await function(*args, **kwargs)

    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from time_items(function(*args, **kwargs), name, profiler))

    async def generate_async(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async for item in _time_async_items(function(*args, **kwargs), name, profiler):
            yield item

    kinds: list[tuple[Callable[[Any], bool], Callable[..., Any]]] = [
        (inspect.isgeneratorfunction, generate),
        (inspect.isasyncgenfunction, generate_async),
        (inspect.iscoroutinefunction, call_async),
    ]
    chosen = next((wrapper for is_of_kind, wrapper in kinds if is_of_kind(function)), call)
    return functools.wraps(function)(chosen)


class TimedCallable:
    """A callable object, such as a jitted function, that is timed; everything else about it is unchanged.

    Args:
        function: The object.
        name: What the operation is called.
        profiler: Measures it.
    """

    def __init__(self, function: Callable[..., Any], name: str, profiler: TrainingProfiler):
        functools.update_wrapper(self, function, updated=())
        self.__wrapped__ = function
        self._name = name
        self._profiler = profiler

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object."""
        return timed_call(self._profiler, self._name, self.__wrapped__, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "__wrapped__":  # not set yet, as while being copied
            raise AttributeError(attribute)
        return getattr(self.__wrapped__, attribute)

    def __repr__(self) -> str:
        return f"<{self._name}: {self.__wrapped__!r}, profiled>"


def timed_call(
    profiler: TrainingProfiler,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    record: Callable[[float, int], object] | None = None,
    on_arrays: Callable[[Call], object] | None = None,
) -> Any:
    """Call a function and time it until it returns, or until the arrays that it returned are computed.

    Args:
        profiler: Measures it.
        name: What the operation is called.
        function: The function.
        args: Its arguments.
        kwargs: Its keyword arguments.
        record: Receives what calls that returned arrays took, and how many they are; the operation itself if None.
        on_arrays: Called with each call that returned arrays, before it is watched.
    """
    if not profiler.enabled:
        return function(*args, **kwargs)
    start = profiler.start_timer(name)
    try:
        output = function(*args, **kwargs)
    except BaseException:
        profiler.end_timer(name, start)
        raise
    returned = profiler.clock.now()
    try:
        arrays = find_arrays(output)
    except TracedOutputError:
        profiler.cancel_timer(start)
        return output
    if arrays:
        profiler.end_timer_at(name + DISPATCH, start, returned)  # what the host did
        call = Call(start, returned, arrays, record or profiler.operation(name).add_many)
        if on_arrays is not None:
            on_arrays(call)
        watch(profiler, call)
    else:
        profiler.end_timer_at(name, start, returned)
    return output


def watch(profiler: TrainingProfiler, call: Call) -> None:
    """Count a call when its arrays are computed; wait for that only if the profiler is synchronous."""
    if profiler.sync:
        profiler.completions.wait_for(call)
    else:
        profiler.completions.watch(call)


def time_items(generator: Generator[Any, Any, Any], name: str, profiler: TrainingProfiler) -> Generator[Any, Any, Any]:
    """Iterate over a generator and time each item. What comes after the last one does not count."""
    resume: Callable[[], Any] = functools.partial(next, generator)
    while True:
        start = profiler.start_timer(name)
        try:
            item = resume()
        except StopIteration as end:
            profiler.cancel_timer(start)
            return end.value
        except BaseException:
            profiler.end_timer(name, start)
            raise
        profiler.end_timer(name, start)
        try:
            sent = yield item
        except GeneratorExit:
            generator.close()
            raise
        except BaseException as error:
            resume = functools.partial(generator.throw, error)
        else:
            resume = functools.partial(generator.send, sent)


async def _time_async_items(
    generator: AsyncGenerator[Any, Any], name: str, profiler: TrainingProfiler
) -> AsyncGenerator[Any, Any]:
    try:
        while True:
            span = _AsyncSpan(profiler, name)
            with span:
                try:
                    item = await anext(generator)
                except StopAsyncIteration:
                    span.cancel()
                    return
            yield item
    finally:
        await generator.aclose()


class _AsyncSpan:
    """Times a block in which other tasks may run: it is not nested in other operations, nor they in it."""

    def __init__(self, profiler: TrainingProfiler, name: str):
        self._profiler = profiler
        self._name = name

    def __enter__(self) -> None:
        self._start_s: float | None = self._profiler.clock.now()

    def __exit__(self, *_: object) -> None:
        if self._start_s is not None and self._profiler.enabled:
            self._profiler.operation(self._name).add(self._profiler.clock.now() - self._start_s)

    def cancel(self) -> None:
        """Do not count it."""
        self._start_s = None
