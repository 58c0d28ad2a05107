"""Layers that compute their intermediate results again: the same numbers, with less memory."""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import compiler
from tests.trainer.models.libraries import apply_fn, init_fn, mse
from trackside.errors import ConfigError
from trackside.trace.scopes import parse_op_name
from trackside.trainer import OptimizerConfig, ParallelConfig, SchedulerConfig, Trainer, TrainerConfig
from trackside.trainer.models.remat import Remat

WIDTH, SIZE = 8, 64
RNG = np.random.default_rng(0)
DATA = [{name: RNG.standard_normal((SIZE, WIDTH), np.float32) for name in ("x", "y")} for _ in range(2)]
SGD = OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=0.01))
KEEPS_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander,optimization_barrier_expander,cse"}
"""On CPU, XLA takes out the barriers that keep a recomputed value from being the first one; accelerators keep them."""


class LinenBlock(nn.Module):
    rate: float

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        hidden = jnp.sin(jnp.tanh(nn.Dense(4 * WIDTH)(x)))
        self.sow("intermediates", "mean", hidden.mean())
        count = self.variable("stats", "count", lambda: jnp.zeros(()))
        if train:  # a flag, which must not be traced
            count.value += 1.0
        return x + nn.Dense(WIDTH)(nn.Dropout(self.rate, deterministic=not train)(hidden))


class LinenStack(nn.Module):
    depth: int
    rate: float

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        for index in range(self.depth):
            x = LinenBlock(self.rate, name=f"blocks_{index}")(x, train=train)
        return nn.Dense(WIDTH, name="head")(x)


class Count(nnx.Variable):
    """A number of calls."""


class NnxBlock(nnx.Module):
    def __init__(self, rate: float, rngs: nnx.Rngs):
        self.wide = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.count = Count(jnp.zeros(()))

    def __call__(self, x: Any, adds: bool = False) -> Any:
        hidden = jnp.sin(jnp.tanh(self.wide(x)))
        self.sow(nnx.Intermediate, "mean", hidden.mean())
        self.count[...] += 1.0
        return x + self.narrow(self.drop(hidden)) if adds else x


class NnxStack(nnx.Module):
    def __init__(self, depth: int, rate: float):
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([NnxBlock(rate, rngs) for _ in range(depth)])
        self.head = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x, adds=True)
        return self.head(x)


class EquinoxBlock(eqx.Module):
    wide: eqx.nn.Linear
    drop: eqx.nn.Dropout
    narrow: eqx.nn.Linear

    def __init__(self, rate: float, key: Any):
        self.wide = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=key)
        self.drop = eqx.nn.Dropout(rate)
        self.narrow = eqx.nn.Linear(4 * WIDTH, WIDTH, key=jax.random.fold_in(key, 1))

    def __call__(self, x: Any, adds: bool = False, *, key: Any) -> Any:
        hidden = self.drop(jnp.sin(jnp.tanh(self.wide(x))), key=key)
        return x + self.narrow(hidden) if adds else x


class EquinoxStack(eqx.Module):
    blocks: list[EquinoxBlock]
    head: eqx.nn.Linear

    def __init__(self, depth: int, rate: float):
        self.blocks = [EquinoxBlock(rate, key) for key in jax.random.split(jax.random.key(0), depth)]
        self.head = eqx.nn.Linear(WIDTH, WIDTH, key=jax.random.key(0))

    def __call__(self, x: Any, key: Any) -> Any:
        for index, block in enumerate(self.blocks):
            x = block(x, adds=True, key=jax.random.fold_in(key, index))
        return self.head(x)


def mse_of_examples(model: Any, batch: Any, rng: Any) -> Any:
    keys = jax.random.split(rng, len(batch["x"]))
    return ((jax.vmap(model)(batch["x"], keys) - batch["y"]) ** 2).mean()


STACKS: dict[str, tuple[Callable[[int, float], Any], Callable]] = {
    "linen": (LinenStack, mse),
    "nnx": (NnxStack, mse),
    "equinox": (EquinoxStack, mse_of_examples),
}

every_library = pytest.mark.parametrize("library", STACKS)


def make_trainer(library: str, remat: list[str] | None, depth: int = 2, rate: float = 0.0, **config: Any) -> Trainer:
    model, loss = STACKS[library]
    config = TrainerConfig(enable_progress_bar=False, log_intermediates=library != "equinox", **config)
    return Trainer(model(depth, rate), loss, SGD, config=config, parallel=ParallelConfig(data_axis_size=1), remat=remat)


def lowered(trainer: Trainer) -> Any:
    """The training step, before it is compiled."""
    engine, carry = trainer.build(DATA[0]).engine, trainer.module.progress.carry
    layout = engine.train_layout(carry, DATA[0])
    return engine.train_call(layout).lower(carry, engine.fresh_vector(layout), DATA[0])


@every_library
def test_results_are_the_same(library: str) -> None:
    """With dropout, counters, sown values and flags among the arguments, a training ends where it does without."""
    ends = []
    for remat in (None, ["blocks"]):
        trainer = make_trainer(library, remat, rate=0.2)
        trainer.fit(DATA, num_epochs=1)
        ends.append(jax.device_get(trainer.module.progress.carry[1:3]))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), *ends)


@every_library
def test_less_memory_is_needed(library: str) -> None:
    """What the blocks compute on the way is not kept, and is computed again under the names of the layers."""
    with compiler.by_default():
        plain, saving = (
            lowered(make_trainer(library, remat, depth=6)).compile(compiler_options=KEEPS_BARRIERS)
            for remat in (None, ["blocks"])
        )
    sizes = [one.memory_analysis().temp_size_in_bytes for one in (plain, saving)]
    assert sizes[1] < 0.7 * sizes[0]
    assert "rematted_computation" not in plain.as_text()
    names = {parse_op_name(name) for name in re.findall(r'op_name="([^"]*)"', saving.as_text())}
    again = {"/".join(name.scope) for name in names if name.phase == "recompute"}
    block, layer = ("LinenStack/blocks_0", "Dense_0") if library == "linen" else ("blocks.0", "wide")
    assert any(scope.startswith(f"loss/{block}/{layer}") for scope in again)


def test_policy_says_what_is_kept() -> None:
    """With products kept, fewer are computed again."""
    policies = (None, "dots_saveable")
    counts = [
        lowered(make_trainer("nnx", ["blocks"], remat_policy=policy)).as_text().count("dot_general")
        for policy in policies
    ]
    assert counts[1] < counts[0]


def test_outermost_layers_are_chosen() -> None:
    """A pattern that matches a block and its parts means the block; one for a part means the part."""
    paths = [(), ("blocks", "0"), ("blocks", "0", "attn"), ("blocks", "1"), ("blocks", "1", "attn"), ("head",)]
    assert Remat(["blocks.*"]).choose(paths) == {("blocks", "0"), ("blocks", "1")}
    assert Remat(["attn$"]).choose(paths) == {("blocks", "0", "attn"), ("blocks", "1", "attn")}
    assert Remat([".*"]).choose(paths) == {("blocks", "0"), ("blocks", "1"), ("head",)}


@every_library
def test_pattern_that_matches_nothing(library: str) -> None:
    """The error names the layers, and the one that was meant."""
    with pytest.raises(
        ConfigError, match=r"remat: 'haed' matches no layer.*Did you mean 'head'\? The layers are block"
    ):
        make_trainer(library, ["haed"]).build(DATA[0])


def test_plain_functions_have_no_layers() -> None:
    """The error says what to use instead."""
    with pytest.raises(ConfigError, match=r"wrap the parts of apply_fn in jax\.checkpoint"):
        Trainer((init_fn, apply_fn), mse, SGD, remat=["first"]).build(DATA[0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"remat": "blocks"}, "remat: expected a list of regular expressions"),
        (
            {"remat": ["x"], "remat_policy": "dots_savable"},
            r"remat_policy: expected one of.*Did you mean 'dots_saveable'",
        ),
    ],
)
def test_bad_settings_are_named(fields: dict[str, Any], message: str) -> None:
    """Errors come when the config is made."""
    with pytest.raises(ConfigError, match=message):
        TrainerConfig(**fields)


def test_policy_without_layers() -> None:
    """A policy alone would do nothing."""
    with pytest.raises(ConfigError, match="without remat"):
        make_trainer("nnx", None, remat_policy="dots_saveable").build(DATA[0])
