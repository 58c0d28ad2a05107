"""The private API that trackside depends on, all of it: six parts of JAX and one of Python.

Each function says why no public call will do and what happens when the private one is missing, and
`tests/test_jax_internals.py` holds it to that. Look here first when a new version of JAX breaks something.
"""

import contextlib
import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax

try:
    from jaxlib import _profiler  # type: ignore[attr-defined]
except ImportError:
    _profiler = None
try:
    from jax._src.profiler import _profile_state  # type: ignore[attr-defined]
except ImportError:
    _profile_state = None
try:
    from jax._src import compilation_cache as _compilation_cache
    from jax._src import config as _config
    from jax._src.lib.mlir import ir as _ir  # pyright: ignore[reportPrivateImportUsage]
except ImportError:
    _compilation_cache = _config = _ir = None


class StaticArguments(NamedTuple):
    """Which arguments of a jitted function are static."""

    numbers: frozenset[int]
    names: frozenset[str]


def profiler_session_type() -> type[Any] | None:
    """The class of JAX's profiler sessions: made with options to start a trace, with `stop()` to get it as bytes.

    `jax.profiler.start_trace` names directories by the second, hands out no trace, and cannot be started again after a
    stop has failed.

    Returns:
        The class; None when this version of JAX has none, so that no capture can be taken.
    """
    return getattr(_profiler, "ProfilerSession", None)


def is_profile_running() -> bool:
    """Whether the user takes a profile with `jax.profiler.start_trace` or `trace`. There is no public call to ask.

    Without the private state no profile seems to run: a capture started meanwhile then fails when it is stopped.
    """
    return getattr(_profile_state, "profile_session", None) is not None


@contextlib.contextmanager
def before_profile_starts(function: Callable[[], object]) -> Iterator[None]:
    """For the length of a block, have a function called when the user is about to start or stop a profile.

    JAX takes one profile at a time, and `jax.profiler.start_trace` fails if another one is running, even a short one
    in the background that could be ended early. It begins by taking a lock; the lock is what asks here. Without the
    private state the function is never called, and the user's profile fails with JAX's own error.
    """
    state: Any = _profile_state
    lock = getattr(state, "lock", None)
    if lock is None:
        yield
        return
    state.lock = _AskingLock(lock, function)
    try:
        yield
    finally:
        state.lock = lock


class _AskingLock:
    """A lock that calls a function before it is taken."""

    def __init__(self, lock: Any, function: Callable[[], object]):
        self._lock = lock
        self._function = function

    def __enter__(self) -> Any:
        self._function()
        return self._lock.__enter__()

    def __exit__(self, *exception: Any) -> Any:
        return self._lock.__exit__(*exception)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def is_jit_function(function: Callable[..., Any] | None) -> bool:
    """Whether `jax.jit` made a function. There is no public type to test for.

    Without the private attribute no function seems jitted: compiles are then attributed by call instead of by name.
    """
    return _jit_info(function) is not None


def static_arguments(function: Callable[..., Any] | None) -> StaticArguments | None:
    """Which arguments of a jitted function are static. JAX shows it nowhere else.

    Returns:
        Their positions and names; None when they are not known, so that any value may be static.
    """
    info = _jit_info(function)
    numbers, names = getattr(info, "static_argnums", None), getattr(info, "static_argnames", None)
    return None if numbers is None or names is None else StaticArguments(frozenset(numbers), frozenset(names))


def _jit_info(function: Callable[..., Any] | None) -> Any:
    return getattr(function, "_jit_info", None)


def is_compiling_own_operation() -> bool:
    """Whether the function being compiled on this thread is part of JAX, such as `jnp.ones` outside of any jit.

    Monitoring events do not say, and names prove nothing: a user's function may be called `add`. The frame of jit's
    slow path knows the function. Without such a frame (a compile ahead of time, another version of JAX) the function is
    taken to be the user's.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "cache_miss" and frame.f_code.co_filename.endswith("pjit.py"):
            module = getattr(frame.f_locals.get("fun"), "__module__", None)
            return isinstance(module, str) and module.partition(".")[0] == "jax"
        frame = frame.f_back
    return False


def config_value(name: str) -> Any:
    """The value of a JAX option, such as `jax_compilation_cache_dir`.

    Options are documented to be set by name; reading them is not documented for all of them.

    Returns:
        The value; None when this version of JAX has no such option.
    """
    return getattr(jax.config, name, None)


class ProgramStore(Protocol):
    """Where compiled programs are kept, by a key that is a file's name. Neither method may raise."""

    def get(self, key: str) -> bytes | None:
        """A program, as `put` was given it; None if there is none."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keep a program."""
        ...


class _Threads(threading.local):
    """Where each thread keeps what it compiles."""

    store: ProgramStore | None = None
    machine: str = ""


_threads = _Threads()
_patches: list[tuple[str, Any, Any]] = []
_num_open = 0
_patch_lock = threading.Lock()


@contextlib.contextmanager
def programs_kept_in(store: ProgramStore, machine: str, min_compile_s: float) -> Iterator[None]:
    """For the length of a block, keep what this thread compiles in a store, and take from there what it has.

    JAX has one directory for the whole process, whatever thread compiles for whom. It writes files in place, so that a
    killed process leaves half of one, which is never replaced. And its keys leave out names, or else have every line
    number with them. So the store takes the place of JAX's own, on this thread only, and the names of the operations
    become part of the key, without their lines. Without the private API everything is compiled.

    Args:
        store: Where programs are kept.
        machine: What a program for the CPU depends on, as part of its key.
        min_compile_s: Programs that compile in less are not kept.
    """
    if not can_keep_programs():
        yield
        return
    options: Any = _config
    before = _threads.store, _threads.machine
    _patch(+1)
    _threads.store, _threads.machine = store, machine
    try:
        with options.persistent_cache_min_compile_time_secs(min_compile_s):
            yield
    finally:
        _threads.store, _threads.machine = before
        _patch(-1)


def can_keep_programs() -> bool:
    """Whether this version of JAX has what `programs_kept_in` needs."""
    named = ("_get_cache", "get_cache_key")
    return (
        all(callable(getattr(_compilation_cache, name, None)) for name in named)
        and hasattr(_config, "persistent_cache_min_compile_time_secs")
        and hasattr(getattr(_ir, "NameLoc", None), "name_str")
    )


def keeps_programs() -> bool:
    """Whether this thread is in a block of `programs_kept_in`."""
    return _threads.store is not None


def _patch(number: int) -> None:
    """Count the open blocks of all threads. JAX's functions are replaced with the first and restored with the last."""
    global _num_open
    cache: Any = _compilation_cache
    with _patch_lock:
        _num_open += number
        if number > 0 and _num_open == 1:
            for name, around in (("_get_cache", _own_cache), ("get_cache_key", _own_key)):
                original = getattr(cache, name)
                replaced = around(original)
                _patches.append((name, original, replaced))
                setattr(cache, name, replaced)
        elif _num_open == 0:
            for name, original, replaced in _patches:
                if getattr(cache, name) is replaced:  # else somebody else has replaced it since
                    setattr(cache, name, original)
            _patches.clear()


def _own_cache(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_cache(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if _threads.store is None else _threads.store

    return get_cache


def _own_key(original: Callable[..., str]) -> Callable[..., str]:
    def get_cache_key(module: Any, *args: Any, **kwargs: Any) -> str:
        key = original(module, *args, **kwargs)
        if _threads.store is None:
            return key
        name, _, plain = key.rpartition("-")
        digest = hashlib.sha256(f"{plain} {_threads.machine}".encode())
        for one in _names_in(module):
            digest.update(one.encode() + b"\0")
        return f"{name[:100]}-{digest.hexdigest()}"

    return get_cache_key


def _names_in(module: Any) -> Iterator[str]:
    """The names of all operations and arguments of a lowered program, in order."""
    named: Any = _ir
    locations: list[Any] = []

    def visit(operation: Any) -> Any:
        locations.append(operation.location)
        for region in operation.regions:
            for block in region:
                locations.extend(argument.location for argument in block.arguments)
        return named.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)
        for location in locations:
            yield location.name_str if isinstance(location, named.NameLoc) else ""


def run_before_threads_end(function: Callable[[], object]) -> None:
    """Run a function when the interpreter begins to shut down, while thread pools still take work.

    Python shuts down the pools of `concurrent.futures` before it joins other threads, and `atexit` runs later still. A
    checkpoint that Orbax is writing on such a pool would then hang for minutes and be lost. The pools themselves use
    this private hook. Without it the function runs at exit, which is too late for work that needs a pool.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is None:
        import atexit

        register = atexit.register
    register(function)
