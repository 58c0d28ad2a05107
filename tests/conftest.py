"""Set-up of the whole suite: eight CPU devices, a JAX that is hostile to mistakes, and one compile per program."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

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
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="module")
def no_compile_cache() -> Iterator[None]:
    """For tests of what only a fresh compile tells: a cached program has the names of the first that was like it."""
    directory = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()


@pytest.fixture
def default_signals() -> Iterator[None]:
    """What signals do by default, in children too, also where the suite was started with SIGINT ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
