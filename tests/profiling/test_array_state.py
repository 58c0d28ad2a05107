"""Whether an array is computed can be asked of any array, also of one that is gone."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from trackside.profiling.array_state import is_ready


def test_array_that_is_computed() -> None:
    """It is ready once somebody has waited for it."""
    assert is_ready(jax.block_until_ready(jnp.ones(2) + 1))


def test_array_that_was_deleted() -> None:
    """Asked directly, JAX would end the process."""
    array = jax.block_until_ready(jnp.ones(2) + 1)
    array.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        is_ready(array)


def test_array_that_was_donated() -> None:
    """That raises, too."""
    array = jax.block_until_ready(jnp.ones(2) + 1)
    partial(jax.jit, donate_argnums=0)(lambda x: x + 1)(array)
    with pytest.raises(RuntimeError):
        is_ready(array)


class Work:
    """What is no array and cannot be deleted."""

    def is_ready(self) -> bool:
        return False


def test_work_that_is_no_array() -> None:
    """It is asked as it is."""
    assert not is_ready(Work())
