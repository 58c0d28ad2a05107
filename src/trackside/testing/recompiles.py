"""An assertion that nothing compiles more often than it has to."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from trackside.errors import ConfigError
from trackside.events import NullEventWriter
from trackside.profiling.compiles import MAX_EVENTS, CompileEvent, compile_counter
from trackside.profiling.sentinel import RecompileSentinel
from trackside.profiling.signature import jitted_name
from trackside.text import count, seconds

_HINT = (
    "to have the changed argument named, write `with assert_no_recompiles(step) as step:` and call that step in the "
    "block with the usual arguments first"
)


@contextlib.contextmanager
def assert_no_recompiles(*functions: Callable, allow: int = 0, after_warm_up: bool = False) -> Iterator[Any]:
    """Fail where a function is compiled more than once inside the block, by any thread.

    ```python
    def test_an_epoch_compiles_once(state, loader):
        with assert_no_recompiles():
            for batch in loader:
                state, loss = step(state, batch)
    ```

    Functions are told apart by the names that JAX knows them by, so one that is jitted again for each call is found
    too. Operations of JAX itself that run outside of jitted functions (`jnp.ones`, `x + 1`) do not count: each new
    shape compiles them, and cheaply.

    Pass functions to look at these only, and to have the argument named that changed. For the latter, call what the
    block gives, which is the function, or a tuple of them where there are several:

    ```python
        with assert_no_recompiles(step) as step:
            ...
    ```

    Args:
        *functions: The functions to look at; all by default. Needed where different functions share a name.
        allow: How many recompiles of each function are fine.
        after_warm_up: Whether all functions have run before the block, so that even a first compile is one too many.

    Raises:
        AssertionError: A function was compiled too often. It names the function, how often, and what changed.
        ConfigError: A function has no name, or `allow` is negative.
    """
    if allow < 0:
        raise ConfigError(f"allow: expected how many recompiles are fine, 0 or more; got {allow}")
    names = {_compiled_name(function) for function in functions}
    counter = compile_counter()
    sentinel = RecompileSentinel(NullEventWriter())
    watched = tuple(sentinel.watch(function) for function in functions)
    first_number = counter.num_compiles
    yield watched[0] if len(watched) == 1 else watched
    num_compiles = counter.num_compiles - first_number
    if num_compiles > MAX_EVENTS:
        raise AssertionError(f"{num_compiles} compiles inside the block, more than can be told apart")
    failures = _failures(counter.events_after(first_number), names, allow + (not after_warm_up))
    if failures:
        raise AssertionError("\n".join(failures))


def _compiled_name(function: Callable) -> str:
    name = jitted_name(function) or getattr(function, "__name__", None)
    if name is None:
        raise ConfigError(f"functions: {function!r} has no name to know its compiles by; pass the jitted function")
    return name


def _failures(events: list[CompileEvent], names: set[str], num_allowed: int) -> list[str]:
    """One text for each function that was compiled too often."""
    by_function: dict[str, list[CompileEvent]] = {}
    for event in events:
        if event.function in names or not (names or event.is_operation):
            by_function.setdefault(event.function, []).append(event)
    return [
        _describe(function, compiles, num_allowed)
        for function, compiles in by_function.items()
        if len(compiles) > num_allowed
    ]


def _describe(function: str, events: list[CompileEvent], num_allowed: int) -> str:
    cost_s, times = sum(event.total_s for event in events), count(len(events), "time")
    reasons = dict.fromkeys(event.explanation for event in events if event.explanation)
    lines = [f"{function} was compiled {times} in {seconds(cost_s)}, {num_allowed} expected:", *(reasons or [_HINT])]
    return "\n  ".join(lines)
