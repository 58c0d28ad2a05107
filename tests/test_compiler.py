"""How tests compile: by default where they ask for it, whatever the flags of this process say."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from tests import compiler
from tests.children import environment


def compiled_text() -> str:
    """The program that XLA makes of a step, without what the lines of the source add."""

    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ x) * 3.0 + jnp.exp(x.sum(0)))

    text = jax.jit(jax.grad(loss)).lower(jax.ShapeDtypeStruct((64, 64), jnp.float32)).compile().as_text()
    return re.sub(r", metadata=\{[^}]*\}", "", text[text.index("\n%") :])


def test_by_default_is_what_users_get(fresh_compiles: None) -> None:
    """The program is the one that a process without flags compiles."""
    code = "import tests.test_compiler as own; print(own.compiled_text())"
    variables = environment() | {"XLA_FLAGS": compiler.default_flags()}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=300)
    assert done.stdout.strip() == compiled_text().strip(), done.stderr


def test_elsewhere_it_is_quick() -> None:
    """Without asking, a test gets another program, with fewer fusions."""
    quick = compiled_text()
    with compiler.by_default():
        assert quick.count(" fusion(") < compiled_text().count(" fusion(")


@pytest.mark.parametrize("given", ["", "--xla_dump_to=/x", "--xla_backend_optimization_level=2"])
def test_flags_of_the_user_come_first(given: str) -> None:
    """What the shell has set is kept, and nothing is set twice."""
    flags = compiler.quick_flags(given).split()
    assert flags[: len(given.split())] == given.split()
    names = [flag.partition("=")[0] for flag in flags]
    assert len(names) == len(set(names)) == len(set(compiler.QUICK | compiler.PATIENCE)) + ("dump" in given)
