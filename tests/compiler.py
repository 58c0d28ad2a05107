"""How XLA compiles in tests: quickly, or as it does by default where a test looks at what it made."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax._src import compiler

# A tiny model runs a few steps, and its compile takes far longer than they do. Without optimizations, and with the
# emitters that need no MLIR, it takes a tenth of the CPU time. Fusions differ, and so may the last bits of a result.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# `tests/test_compiler.py` holds them against a process without flags.
DEFAULT = {
    "xla_backend_optimization_level": 3,
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": 32,
}
# On a busy machine it takes a while until the threads of all eight devices have had their turn. After 40 s, XLA would
# end the process.
PATIENCE = {"xla_cpu_collective_call_terminate_timeout_seconds": 600}


def quick_flags(flags: str) -> str:
    """`XLA_FLAGS` of this process and its children; what `flags` has already is kept."""
    given = {flag.lstrip("-").partition("=")[0] for flag in flags.split()}
    added = [f"--{name}={str(value).lower()}" for name, value in (QUICK | PATIENCE).items() if name not in given]
    return " ".join([flags, *added]).strip()


def default_flags() -> str:
    """`XLA_FLAGS` of a child that compiles as XLA does by default."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(flag for flag in flags if flag.lstrip("-").partition("=")[0] not in QUICK)


@contextmanager
def by_default() -> Iterator[None]:
    """Compile as XLA does by default, for tests of kernels, fusions, memory, or shares of a step's time."""
    original = compiler.get_compile_options

    def with_defaults(*args: Any, env_options_overrides: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        return original(*args, env_options_overrides=DEFAULT | (env_options_overrides or {}), **kwargs)

    compiler.get_compile_options = with_defaults
    try:
        yield
    finally:
        compiler.get_compile_options = original
