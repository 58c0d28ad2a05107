"""The compile cache that all workers of a test run share."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache as internals
from jax._src import lru_cache
from jax.experimental.compilation_cache import compilation_cache

MAX_LOADED_PROGRAMS = 500


def load_programs_once(directory: str) -> None:
    """Load a program of this cache once in a process. JAX loads it again for each function that it is compiled for."""
    load, loaded = internals.get_executable_and_time, dict[str, Any]()

    def load_once(key: str, options: Any, backend: Any, devices: Any) -> Any:
        cache = internals._get_cache(backend)
        if not isinstance(cache, lru_cache.LRUCache) or str(cache.path) != directory:
            return load(key, options, backend, devices)
        found = loaded.get(key) or load(key, options, backend, devices)
        if found[0] is not None:
            loaded[key] = found
            if len(loaded) > MAX_LOADED_PROGRAMS:
                del loaded[next(iter(loaded))]
        return found

    internals.get_executable_and_time = load_once


def write_whole_entries() -> None:
    """Let an entry appear all at once. JAX writes it in place, and another worker would read half of it."""

    def put(cache: lru_cache.LRUCache, key: str, value: bytes) -> None:
        path = Path(str(cache.path)) / f"{key}{lru_cache._CACHE_SUFFIX}"
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        temporary.write_bytes(value)
        temporary.replace(path)

    lru_cache.LRUCache.put = put


@contextmanager
def switched_off() -> Iterator[None]:
    """Compile everything again."""
    directory = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", directory)
    compilation_cache.reset_cache()


@contextmanager
def with_names() -> Iterator[None]:
    """Take a program from the cache only where its operations have the same names.

    Names have the line of an operation with them. Without a limit they would have the lines of all callers too, up to
    the test's own, and no test would find the program of another.
    """
    limit = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    jax.config.update("jax_traceback_in_locations_limit", 1)
    yield
    jax.config.update("jax_compilation_cache_include_metadata_in_key", False)
    jax.config.update("jax_traceback_in_locations_limit", limit)
