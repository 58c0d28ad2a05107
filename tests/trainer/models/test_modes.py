"""Layers that the user has put into evaluation mode stay there while the others train."""

from typing import Any

import equinox as eqx
import jax
import pytest
from flax import nnx

from trackside.trainer.models.equinox import EquinoxAdapter
from trackside.trainer.models.nnx import NnxAdapter


class NnxPair(nnx.Module):
    def __init__(self) -> None:
        self.body = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))


class EquinoxPair(eqx.Module):
    layer: eqx.nn.Linear
    first: eqx.nn.Dropout
    second: eqx.nn.Dropout

    def __init__(self) -> None:
        self.layer = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        self.first, self.second = eqx.nn.Dropout(0.5), eqx.nn.Dropout(0.5)


def modes_in(adapter: Any, train: bool, flags: Any) -> Any:
    variables = adapter.init({"params": jax.random.key(0)}, None)
    params = variables.pop("params")
    return adapter.use(params, variables, {"dropout": jax.random.key(1)}, train, lambda model, _: (flags(model), None))[
        0
    ]


def nnx_flags(model: Any) -> tuple[bool, bool]:
    return model.body.layers[1].use_running_average, model.drop.deterministic


def equinox_flags(model: Any) -> tuple[bool, bool]:
    return model.first.inference, model.second.inference


@pytest.mark.parametrize(
    ("set_up", "in_training"), [("none", (False, False)), ("part", (True, False)), ("all", (False, False))]
)
def test_nnx(set_up: str, in_training: tuple[bool, bool]) -> None:
    """A part that was set to `eval()` stays so; a whole model that was is trained; evaluation sets all of it."""
    model = NnxPair()
    if set_up == "part":
        model.body.eval()
    if set_up == "all":
        model.eval()
    adapter = NnxAdapter(model)
    assert modes_in(adapter, True, nnx_flags) == in_training
    assert modes_in(adapter, False, nnx_flags) == (True, True)


@pytest.mark.parametrize(
    ("set_up", "in_training"), [("none", (False, False)), ("part", (True, False)), ("all", (False, False))]
)
def test_equinox(set_up: str, in_training: tuple[bool, bool]) -> None:
    """The same with `inference`."""
    model = EquinoxPair()
    if set_up == "part":
        model = eqx.tree_at(lambda one: one.first, model, eqx.nn.Dropout(0.5, inference=True))
    if set_up == "all":
        model = eqx.nn.inference_mode(model)
    adapter = EquinoxAdapter(model)
    assert modes_in(adapter, True, equinox_flags) == in_training
    assert modes_in(adapter, False, equinox_flags) == (True, True)
