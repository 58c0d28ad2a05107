"""The norms of the step: over many arrays, of any type, in a program that stays small."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.trainer import step_functions
from trackside.trainer.step_functions import LEAVES_PER_JOIN, MAX_JOINED_SIZE


def norm_of(tree: dict[str, jax.Array]) -> float:
    return float(jax.jit(step_functions._global_norm)(tree))


def expected_norm(tree: dict[str, jax.Array]) -> float:
    return float(np.sqrt(sum((np.abs(np.asarray(leaf, np.complex128)) ** 2).sum() for leaf in tree.values())))


@pytest.mark.parametrize("num_small", [0, 1, 2, LEAVES_PER_JOIN, LEAVES_PER_JOIN + 1, 3 * LEAVES_PER_JOIN])
def test_norm_is_over_small_and_large_arrays(num_small: int) -> None:
    """Every number counts once, however many arrays there are and however they are joined."""
    keys = iter(jax.random.split(jax.random.key(0), num_small + 1))
    tree = {f"small_{index}": jax.random.normal(next(keys), (index % 3, 2)) for index in range(num_small)}
    tree["large"] = jax.random.normal(next(keys), (MAX_JOINED_SIZE + 1,))
    assert norm_of(tree) == pytest.approx(expected_norm(tree), rel=1e-6)


def test_norm_of_arrays_of_several_types() -> None:
    """Numbers of few bits are summed in float32, complex ones by their magnitudes; a single number counts, too."""
    tree = {
        "half": jnp.full((7,), 300.0, jnp.float16),  # its squares are too large for its own type
        "brain": jnp.full((3, 2), 1.0, jnp.bfloat16),
        "complex": jnp.full((2,), 3.0 + 4.0j, jnp.complex64),
        "single": jnp.float32(2.0),
    }
    assert norm_of(tree) == pytest.approx(expected_norm(tree), rel=1e-6)


def test_norm_of_nothing() -> None:
    """A model without parameters has a norm of zero."""
    assert norm_of({}) == 0.0


@pytest.mark.parametrize(("is_spread", "num_sums"), [(False, 5), (True, 401)])
def test_program_stays_small(is_spread: bool, num_sums: int) -> None:
    """Many small arrays take few sums, since XLA takes long to compile each. On several devices they stay in place."""
    tree = {f"small_{index}": jnp.ones(2) for index in range(400)} | {"large": jnp.ones(MAX_JOINED_SIZE + 1)}
    num_devices = 2 if is_spread else 1
    mesh = jax.sharding.AbstractMesh((num_devices,), ("dp",))
    with jax.sharding.use_abstract_mesh(mesh):
        program = str(jax.make_jaxpr(step_functions._global_norm)(tree))
    assert program.count("reduce_sum[") == num_sums
