import math
import os
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from tests.fork_server import run
from trackside.errors import ConfigError
from trackside.trainer.init_state import init_carry
from trackside.trainer.models.linen import LinenAdapter
from trackside.trainer.sharding import ParallelConfig, build_mesh


class Plain(nn.Module):
    """Large and small parameters, batch statistics and something sown."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        self.sow("intermediates", "mean", x.mean())
        return nn.Dense(1)(x)


class Annotated(nn.Module):
    """Parameters that say how they are to be split, by mesh axes and by logical axes."""

    axes: Any = ("fsdp", "tp")

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        x = nn.Dense(6, kernel_init=nn.with_partitioning(init, self.axes), name="by_mesh", use_bias=False)(x)
        kernel_init = nn.with_logical_partitioning(init, ("embed", "mlp"))
        return nn.Dense(4, kernel_init=kernel_init, name="by_rule")(x)


INPUTS = np.ones((2, 8), np.float32)


def init(module, parallel, tx=None, exmp_input: Any = INPUTS):
    adapter = LinenAdapter(module, parallel.rules)

    def run_model_init(exmp_input, rng):
        return adapter.init({"params": rng, "dropout": rng}, exmp_input)

    first = init_carry(
        adapter,
        optax.adamw(1e-3) if tx is None else tx,
        run_model_init,
        exmp_input,
        seed=3,
        mesh=build_mesh(parallel),
        parallel=parallel,
        named=lambda function, name: function,
    )
    return first.make(), first.shardings


@pytest.fixture(scope="module")
def sharded():
    return init(Plain(), ParallelConfig(data_axis_size=1, fsdp_axis_size=8, fsdp_min_weight_size=100))


def test_sharded_parameters_equal_those_of_one_device(sharded):
    """Parameters, statistics and key that were created over eight devices are bit for bit those of one device."""
    single, _ = init(Plain(), ParallelConfig(data_axis_size=1))
    for part in ("params", "mutable_variables", "rng"):
        jax.tree.map(np.testing.assert_array_equal, getattr(sharded[0], part), getattr(single, part))


def test_no_device_holds_more_than_its_shard(sharded):
    """Of a large parameter and of its moments, each device holds an eighth; small ones are whole everywhere."""
    carry, _ = sharded
    moments = carry.opt_state[0]
    for tree in (carry.params, moments.mu, moments.nu):
        kernel, bias = tree["Dense_0"]["kernel"], tree["Dense_0"]["bias"]
        assert [shard.data.size for shard in kernel.addressable_shards] == [math.prod(kernel.shape) // 8] * 8
        assert [shard.data.size for shard in bias.addressable_shards] == [bias.size] * 8


def test_shardings_are_those_of_the_arrays(sharded):
    """The shardings that come with the state are the ones that its arrays have."""
    carry, shardings = sharded
    same = jax.tree.map(lambda leaf, sharding: leaf.sharding.is_equivalent_to(sharding, leaf.ndim), carry, shardings)
    assert all(jax.tree.leaves(same))


def test_state_has_its_parts(sharded):
    """The first state is at step 0, has parameters and statistics apart, and nothing that was only sown."""
    carry, _ = sharded
    assert (int(carry.step), carry.step.dtype) == (0, jnp.int32)
    assert set(carry.params) == {"Dense_0", "Dense_1", "BatchNorm_0"}
    assert set(carry.mutable_variables) == {"batch_stats"}
    assert carry.rng.dtype == jnp.uint32


def test_shapes_serve_as_example(sharded):
    """An example input of shapes only gives the same parameters as one of arrays."""
    parallel = ParallelConfig(data_axis_size=1, fsdp_axis_size=8, fsdp_min_weight_size=100)
    carry, _ = init(Plain(), parallel, exmp_input=jax.ShapeDtypeStruct(INPUTS.shape, INPUTS.dtype))
    jax.tree.map(np.testing.assert_array_equal, carry.params, sharded[0].params)


RULES: Any = {"embed": "fsdp", "mlp": "tp"}


def test_metadata_of_the_model_is_followed():
    """Specs by mesh axis and by logical axis rule decide how a parameter lies, and its optimizer state with it."""
    parallel = ParallelConfig(fsdp_axis_size=2, model_axis_size=2, logical_axis_rules=RULES)
    carry, _ = init(Annotated(), parallel, tx=optax.adafactor(1e-3))
    for tree in (carry.params, carry.opt_state[0].v):
        by_mesh, by_rule = tree["by_mesh"]["kernel"], tree["by_rule"]["kernel"]
        assert (by_mesh.sharding.spec, by_rule.sharding.spec) == (PartitionSpec("fsdp", "tp"),) * 2
        assert by_mesh.addressable_shards[0].data.shape == (4, 3)
        assert by_rule.addressable_shards[0].data.shape == (3, 2)


@pytest.mark.parametrize(
    ("axes", "rules", "message"),
    [
        (("width", None), RULES, "parameter by_mesh/kernel: .*axis 'width'"),
        ((None, "fsdp"), {"embed": "experts"}, "parameter by_rule/kernel: .*axis 'experts'"),
        ((None, ("fsdp", "tp")), RULES, "parameter by_mesh/kernel: dimension 6 .*4 devices"),
    ],
)
def test_metadata_that_does_not_fit_names_the_parameter(axes, rules, message):
    """An axis that the mesh lacks, or a dimension that does not divide, is an error with the parameter's path."""
    parallel = ParallelConfig(fsdp_axis_size=2, model_axis_size=2, logical_axis_rules=rules)
    with pytest.raises(ConfigError, match=message):
        init(Annotated(axes), parallel)


COMPARE = """
import jax
import numpy as np

from tests.trainer.test_init_state import AllKinds, ParallelConfig, init
from trackside.trainer import init_state

carry, _ = init(AllKinds(), ParallelConfig(data_axis_size=1))
init_state._runs_once = lambda mesh: None
expected, _ = init(AllKinds(), ParallelConfig(data_axis_size=1))
jax.tree.map(np.testing.assert_array_equal, carry, expected)
"""


class AllKinds(nn.Module):
    """A parameter by each of the usual initializers."""

    @nn.compact
    def __call__(self, x):
        kinds = nn.initializers
        for kind in (
            kinds.lecun_normal(),
            kinds.he_uniform(),
            kinds.glorot_normal(),
            kinds.truncated_normal(0.02),
            kinds.orthogonal(),
            kinds.normal(),
        ):
            x = nn.Dense(24, kernel_init=kind)(x)
        return x + nn.Embed(5, 24)(jnp.zeros((len(x),), jnp.int32))


@pytest.mark.parametrize("flags", ["", "--xla_backend_optimization_level=0"], ids=["default", "as the user wants"])
def test_fewer_passes_of_the_compiler_make_the_same_bits(flags):
    """The program that makes the state is compiled in less time, and makes what it would make otherwise."""
    command = [sys.executable, "-c", COMPARE]
    done = run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
