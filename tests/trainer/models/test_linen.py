import subprocess
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.trainer.models import ModelAdapter, ModelConfig, adapter_for, build_model
from trackside.trainer.models.linen import LinenAdapter
from trackside.trainer.sharding import ParallelConfig


def build_adapter(config: ModelConfig) -> ModelAdapter:
    return adapter_for(build_model(config), config)


@dataclass
class NetConfig(ConfigDict):
    width: int = 3


class Net(nn.Module):
    """Counts its training calls, and drops out units in them."""

    config: Any = None

    @nn.compact
    def __call__(self, x, train: bool = False):
        num_calls = self.variable("stats", "num_calls", lambda: jnp.zeros((), jnp.int32))
        if train:
            num_calls.value += 1
        x = nn.Dense(self.config.width, kernel_init=nn.initializers.ones)(x)
        return nn.Dropout(0.5, deterministic=not train)(x)


class WithoutTrain(nn.Module):
    config: Any = None

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2, kernel_init=nn.initializers.ones)(x)


X = np.ones((4, 16), np.float32)
KEYS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


@pytest.fixture(scope="module")
def adapter():
    return build_adapter(ModelConfig(model_class=Net, model_config=NetConfig()))


@pytest.fixture(scope="module")
def variables(adapter):
    return adapter.init(KEYS, X)


def test_model_is_built_from_its_own_config(adapter):
    """The class is called with the model's config."""
    assert isinstance(adapter.model, Net)
    assert adapter.model.config == NetConfig()


def test_model_without_a_config_gets_the_whole_one():
    """Without a config of its own, the model is built with the `ModelConfig`."""
    config = ModelConfig(model_class=WithoutTrain)
    assert build_adapter(config).model.config is config


def test_function_that_returns_a_module_is_a_model_class():
    """Any function from a config to a module will do."""
    adapter = build_adapter(ModelConfig(model_class=lambda config: Net(config), model_config=NetConfig(5)))
    assert adapter.model == Net(NetConfig(5))


def test_class_of_another_kind_is_refused_without_a_call(monkeypatch):
    """A class that is no module is refused before anything of it runs."""
    calls = []
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda self, *args: calls.append(args))
    with pytest.raises(ConfigError, match=r"model_class: expected a class of flax.linen.*subprocess.Popen"):
        build_adapter(ModelConfig(model_class=subprocess.Popen, model_config=["true"]))
    assert calls == []


@pytest.mark.parametrize(("model_class", "got"), [(None, "None"), (lambda config: 3, "3")])
def test_what_is_no_model_is_refused(model_class, got):
    """Neither nothing nor a function that returns something else is a model."""
    with pytest.raises(ConfigError, match=f"model.*: expected a class of flax.linen.*got {got}$"):
        build_adapter(ModelConfig(model_class=model_class))


def test_a_name_is_no_model():
    """In Python, a name stands for nothing."""
    with pytest.raises(ConfigError, match=r"model_class: expected a function or class, got 'Net'"):
        ModelConfig(model_class="Net")


def test_apply_completes_the_mutable_collections(adapter, variables):
    """Given `{"params": params}` alone, apply sees the bound collections and returns their new values."""
    apply_fn = adapter.bind({"stats": {"num_calls": jnp.asarray(4, jnp.int32)}}, KEYS)
    _, updates = apply_fn({"params": variables["params"]}, X, train=True, mutable=["stats"])
    assert int(updates["stats"]["num_calls"]) == 5


def test_collections_of_the_caller_come_first(adapter, variables):
    """A collection that the caller passes is used in place of the bound one."""
    apply_fn = adapter.bind({"stats": {"num_calls": jnp.asarray(4, jnp.int32)}}, KEYS)
    _, updates = apply_fn(
        {"params": variables["params"], "stats": variables["stats"]}, X, train=True, mutable=["stats"]
    )
    assert int(updates["stats"]["num_calls"]) == 1


def test_bound_keys_are_the_default(adapter, variables):
    """Dropout uses the bound key unless the caller passes keys."""
    apply_fn = adapter.bind({"stats": variables["stats"]}, KEYS)

    def dropped(**kwargs):
        output, _ = apply_fn({"params": variables["params"]}, X, train=True, mutable=["stats"], **kwargs)
        return np.asarray(output == 0)

    by_default, other = dropped(), dropped(rngs={"dropout": jax.random.key(9)})
    assert np.array_equal(by_default, dropped(rngs={"dropout": KEYS["dropout"]}))
    assert not np.array_equal(by_default, other)


def test_unbound_apply_is_the_modules_own(adapter, variables):
    """Bound to nothing, apply takes all variables as the module does."""
    np.testing.assert_array_equal(adapter.bind(None, None)(variables, X), np.full((4, 3), 16.0))


def test_predict_is_evaluation(adapter, variables):
    """A prediction runs without dropout and leaves the statistics alone."""
    apply_fn = adapter.bind({"stats": variables["stats"]}, KEYS)
    np.testing.assert_array_equal(adapter.predict(apply_fn, variables["params"], X), np.full((4, 3), 16.0))


def test_model_without_train_argument():
    """A model that does not take `train` is initialised and predicts without it."""
    adapter = build_adapter(ModelConfig(model_class=WithoutTrain))
    variables = adapter.init(KEYS, X)
    output = adapter.predict(adapter.bind({}, None), variables["params"], X)
    np.testing.assert_array_equal(output, np.full((4, 2), 16.0))


def test_metadata_becomes_specs_and_is_taken_off():
    """Partitioned variables give their specs, by rule where their axes are logical, and plain arrays after unboxing."""
    rules = ParallelConfig(logical_axis_rules={"embed": "fsdp", "mlp": ["dp", "tp"]}).rules
    adapter = LinenAdapter(WithoutTrain(), rules)
    kernel = jnp.ones((4, 2))
    boxed = {
        "by_mesh": nn.Partitioned(kernel, ("tp", None)),
        "by_rule": nn.LogicallyPartitioned(kernel, ("embed", "mlp")),
        "unmapped": nn.LogicallyPartitioned(kernel, ("heads", "embed")),
        "plain": kernel,
    }
    assert adapter.partition_specs(boxed) == {
        "by_mesh": PartitionSpec("tp", None),
        "by_rule": PartitionSpec("fsdp", ("dp", "tp")),
        "unmapped": PartitionSpec(None, "fsdp"),
        "plain": None,
    }
    assert all(leaf is kernel for leaf in adapter.unbox(boxed).values())
