"""Set-up of the whole suite: eight CPU devices, a JAX that is hostile to mistakes, and one compile per program."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import jax
import pytest

from tests import compile_cache, compiler

# Children inherit them.
os.environ["XLA_FLAGS"] = compiler.quick_flags(os.environ.get("XLA_FLAGS", ""))

jax.config.update("jax_num_cpu_devices", 8)
# Strict promotion is JAX's own guard against silent casts. Where third-party code cannot live with it, the test that
# runs that code lifts it with `jax.numpy_dtype_promotion("standard")`.
jax.config.update("jax_numpy_dtype_promotion", "strict")

CACHE = "TRACKSIDE_TEST_COMPILE_CACHE"


def pytest_configure(config: pytest.Config) -> None:
    """Let all workers of a test run share what they compile, which takes half of the time.

    Set here and not by JAX's own variables, so that processes which tests start, and kill, do not write to it.
    """
    if CACHE not in os.environ:
        os.environ[CACHE] = tempfile.mkdtemp(prefix="trackside-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(CACHE), ignore_errors=True))
    compile_cache.write_whole_entries()
    compile_cache.load_programs_once(os.environ[CACHE])
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with modules that have slow tests, so that at the end no worker waits for one of them."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Set all that was imported apart, which is much, and which collecting garbage need not go over again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def frozen_garbage() -> Iterator[None]:
    """Set what other modules have left apart, so that collecting garbage in a test takes no time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_garbage(frozen_garbage: None) -> None:
    """Arrays that other tests have left behind are gone before this one counts any."""
    gc.collect()


@pytest.fixture(scope="module")
def no_compile_cache() -> Iterator[None]:
    """For tests of what only a fresh compile tells: a cached program has the names of the first that was like it."""
    with compile_cache.switched_off(), compiler.by_default():
        yield


@pytest.fixture
def fresh_compiles() -> Iterator[None]:
    """The same for one test of a module whose others compile quickly, and share what they compile."""
    with compile_cache.switched_off(), compiler.by_default():
        yield


@pytest.fixture(scope="module")
def names_in_compile_cache() -> Iterator[None]:
    """For tests of names in traces, where a cached program will do if it has the same names."""
    with compile_cache.with_names(), compiler.by_default():
        yield


@pytest.fixture(scope="module")
def default_compiler() -> Iterator[None]:
    """For tests of what XLA makes of a program, such as its memory; elsewhere it does not optimize."""
    with compiler.by_default():
        yield


@pytest.fixture
def optimized() -> Iterator[None]:
    """The same for one test of a module whose others compile quickly."""
    with compiler.by_default():
        yield


@pytest.fixture
def default_signals() -> Iterator[None]:
    """What signals do by default, in children too, also where the suite was started with SIGINT ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
