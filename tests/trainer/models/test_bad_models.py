"""Models that cannot be trained as they are: each is an error that says what to write instead."""

import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.trainer.models.libraries import (
    KITS,
    EquinoxNet,
    LinenNet,
    NnxNet,
    apply_fn,
    init_fn,
    make_data,
    mse,
    mse_of_examples,
)
from trackside.errors import ConfigError, MetricError, MissingExtraError
from trackside.trainer import ModelConfig, OptimizerConfig, ParallelConfig, SchedulerConfig, Trainer, TrainerConfig
from trackside.trainer.models import adapter_for

DATA = make_data(2)
SGD = OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=0.01))


def fit(model: Any, loss: Callable = mse) -> Trainer:
    config = TrainerConfig(enable_progress_bar=False)
    trainer = Trainer(model, loss, SGD, config=config, parallel=ParallelConfig(data_axis_size=1))
    trainer.fit(DATA)
    return trainer


# --- what is given for a model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (init_fn, r"this one takes \(key, inputs\); of plain functions, pass both"),
        ([init_fn, apply_fn], r"plain functions as a FunctionModel or a pair \(init_fn, apply_fn\); got \["),
        ((apply_fn, init_fn), "the first takes parameters; swap them"),
        (lambda: NnxNet(rngs=nnx.Rngs(0)), r"a function of `rngs` \(NNX\) or `key` \(Equinox\) that builds a model"),
        (
            lambda rngs: EquinoxNet(key=jax.random.key(0)),
            "got EquinoxNet; one that builds an Equinox model takes `key`",
        ),
        (lambda key: NnxNet(rngs=nnx.Rngs(0)), "expected an equinox.Module(.|\n)*builds an NNX model takes `rngs`"),
        ((EquinoxNet, None), "expected an equinox.Module that is built, got <class"),
    ],
)
def test_what_is_no_model_or_only_a_part_of_one(model: Any, message: str) -> None:
    """The error says in which form it is expected."""
    with pytest.raises(ConfigError, match=message):
        fit(model)


def test_equinox_model_without_its_state() -> None:
    """Layers with a state need it."""
    model, _ = KITS["equinox"].stateful()
    with pytest.raises(ConfigError, match="EquinoxNormNet has layers with a state; pass the pair"):
        fit(model)


@pytest.mark.parametrize("library", ["nnx", "equinox", "functions"])
def test_library_that_the_model_is_not_of(library: str) -> None:
    """A library that is named has to be the model's own."""
    with pytest.raises(ConfigError, match=f"library: got '{library}' for a model of linen"):
        adapter_for(LinenNet(), ModelConfig(model_class=LinenNet, library=library))


def test_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command that installs it."""
    monkeypatch.setitem(sys.modules, "equinox", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trackside\[equinox\]'"):
        adapter_for(lambda key: None, ModelConfig(library="equinox"))


# --- a state that changes its form ------------------------------------------------------------------------------------


class GrowingLinen(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        seen = self.variable("stats", "seen", lambda: jnp.zeros(1))
        if train:
            seen.value = jnp.concatenate([seen.value, jnp.zeros(1)])
        return nn.Dense(1)(x)


class GrowingNnx(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
        self.seen = nnx.BatchStat(jnp.zeros(1))

    def __call__(self, x: Any) -> Any:
        self.seen.set_value(jnp.concatenate([self.seen[...], jnp.zeros(1)]))
        return self.layer(x)


def lossy(model: Any, batch: Any, rng: Any, state: Any) -> Any:
    output, state = model(state, batch["x"])
    return ((output - batch["y"]) ** 2).mean(), {}, {"mean": state["mean"][:1]}


@pytest.mark.parametrize(
    ("model", "loss"),
    [(GrowingLinen, mse), (GrowingNnx, mse), (KITS["functions"].stateful, lossy)],
    ids=["linen", "nnx", "functions"],
)
def test_state_that_changes_its_form(model: Callable[[], Any], loss: Callable) -> None:
    """Both forms are named."""
    with pytest.raises(MetricError, match=r"a step must keep their form; they were .* and became "):
        fit(model(), loss)


def other_state(model: Any, batch: Any, rng: Any, state: Any) -> Any:
    loss, _ = KITS["equinox"].stateful_loss(model, batch, rng, state)
    return loss, {}, {"mean": jnp.zeros(3)}


def test_equinox_state_that_is_something_else() -> None:
    """What comes last is the `eqx.nn.State` that the model gives."""
    with pytest.raises(MetricError, match="the model has a state, and none was returned"):
        fit(KITS["equinox"].stateful(), other_state)


class LateLinen(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        if train:
            self.variable("stats", "seen", lambda: jnp.zeros(1))
        return nn.Dense(1)(x)


def test_linen_variable_that_is_made_in_training() -> None:
    """It is not there when the model is initialised, and the error says so."""
    with pytest.raises(MetricError, match=r'"seen" from collection "stats".*when it is initialized'):
        fit(LateLinen())


class Numbered(eqx.Module):
    """Another number each time that it is built."""

    layer: eqx.nn.Linear
    number: int

    num_built = 0

    def __init__(self, key: Any):
        Numbered.num_built += 1
        self.layer = eqx.nn.Linear(4, 1, key=key)
        self.number = Numbered.num_built

    def __call__(self, x: Any, key: Any = None) -> Any:
        return self.layer(x) * self.number


def test_equinox_leaf_that_is_no_array_and_changes() -> None:
    """It would be part of a program that was compiled for another value."""
    with pytest.raises(ConfigError, match=r"number was \d+ when the model was built first, and is \d+ now"):
        fit(lambda key: Numbered(key), mse_of_examples)


# --- parameters that have no gradient ---------------------------------------------------------------------------------


class Permuted(nnx.Module):
    """Has a parameter of integers."""

    def __init__(self) -> None:
        self.layer = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
        self.order = nnx.Param(jnp.array([3, 1, 2, 0]))

    def __call__(self, x: Any) -> Any:
        return self.layer(x[:, self.order[...]])


def test_nnx_parameter_of_integers_is_kept() -> None:
    """It is part of the model and of what is saved, but not trained."""
    trainer = fit(Permuted())
    assert trainer.module.get_num_params() == 5
    assert trainer.model.order[...].tolist() == [3, 1, 2, 0]


def test_other_parameters_of_integers_are_named() -> None:
    """The error says where to keep them."""
    model = (lambda key: {"w": jnp.ones((4, 1)), "order": jnp.arange(4)}, lambda params, x: x @ params["w"])
    with pytest.raises(ConfigError, match=r"params: order is int32.*keep it in"):
        fit(model)
