"""What a call of `train_model` sees before the first step, and how it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.tiny import Linear, MSETrainer, make_batch, make_loader, make_trainer
from trackside.callbacks import (
    Callback,
    CallbackConfig,
    CheckpointConfig,
    EarlyStopping,
    EarlyStoppingConfig,
    ModelCheckpoint,
    ProfilingConfig,
)
from trackside.errors import ConfigError, DataError, NonFiniteError
from trackside.logger import LoggerConfig
from trackside.runs import open_run
from trackside.trainer import ModelConfig

VAL = make_loader(1, seed=50)
POISONED = [make_batch(8), make_batch(8).replace(targets=np.full((8, 1), np.nan, np.float32))]


class PerplexityTrainer(MSETrainer):
    """Adds a metric by post-processing."""

    def get_metric_postprocess_fn(self) -> Callable[[dict[str, float]], dict[str, float]]:
        return lambda row: {**row, "perplexity": 2.0}


class HookedTrainer(MSETrainer):
    """Adds a metric in a hook."""

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        eval_metrics["rmse"] = eval_metrics["loss"] ** 0.5


class TrainHookedTrainer(MSETrainer):
    """Adds a metric of training in a hook."""

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        train_metrics["rmse"] = 1.0


class Adding(Callback):
    """Adds a metric in a hook."""

    def on_filtered_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        eval_metrics["rmse"] = 1.0


# --- monitors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [EarlyStoppingConfig(monitor="val_acc"), CheckpointConfig(monitor="val_acc")])
def test_unknown_monitor_is_an_error_before_the_first_step(tmp_path: Path, config: CallbackConfig) -> None:
    """A monitor that no validation has is an error before anything is trained, with the names that there are."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"), callbacks=[config])
    with pytest.raises(ConfigError, match=r"val_acc.*available in val: .*loss"):
        trainer.train_model(make_loader(2), VAL, num_epochs=1)
    assert trainer.global_step == 0


@pytest.mark.parametrize("monitor", ["train_acc", "train/acc", "acc"])
def test_unknown_monitor_of_training_is_an_error_before_the_first_step(monitor: str) -> None:
    """A monitor that training will not have is an error before anything is trained; profilers in the list add none."""
    callbacks = [ProfilingConfig(), EarlyStoppingConfig(monitor=monitor)]
    trainer = make_trainer(callbacks=callbacks)
    with pytest.raises(ConfigError, match=r"acc.*available in train: .*loss_mean"):
        trainer.train_model(make_loader(2), num_epochs=1)
    assert trainer.global_step == 0


@pytest.mark.parametrize(
    ("trainer_class", "monitor"),
    [
        (MSETrainer, "train_loss"),
        (MSETrainer, "train_epoch_time"),
        (MSETrainer, "train/train_time"),
        (MSETrainer, "train_grad_norm"),
        (TrainHookedTrainer, "train_rmse"),
        (PerplexityTrainer, "train_perplexity"),
    ],
)
def test_monitor_of_training(trainer_class: type, monitor: str) -> None:
    """Whatever the row of an epoch of training has may be monitored, whoever put it there."""
    trainer = make_trainer(trainer_class, callbacks=[EarlyStoppingConfig(monitor=monitor, stopping_threshold=1e9)])
    trainer.train_model(make_loader(2), VAL, num_epochs=3)
    assert trainer.epoch == 1


@pytest.mark.parametrize(
    ("trainer_class", "monitor", "callbacks"),
    [
        (PerplexityTrainer, "perplexity", []),
        (MSETrainer, "val_epoch_time", []),
        (HookedTrainer, "val_rmse", []),
        (MSETrainer, "val_rmse", [Adding(CallbackConfig())]),
    ],
    ids=["post-processing", "of the logger", "trainer's hook", "callback's hook"],
)
def test_monitor_of_an_added_metric(trainer_class: type, monitor: str, callbacks: list[Callback]) -> None:
    """What post-processing, the logger and hooks add may be monitored."""
    stopper = EarlyStoppingConfig(monitor=monitor, stopping_threshold=1e9)
    trainer = make_trainer(trainer_class, callbacks=[*callbacks, stopper])
    trainer.train_model(make_loader(2), VAL, num_epochs=3)
    assert trainer.epoch == 1


def test_monitor_among_several_loaders() -> None:
    """With a dict of loaders, the metrics of each may be monitored, and no others."""
    loaders = {"easy": VAL, "hard": VAL}
    stopper = EarlyStoppingConfig(monitor="hard_loss", stopping_threshold=1e9)
    make_trainer(callbacks=[stopper]).train_model(make_loader(1), loaders, num_epochs=1)
    trainer = make_trainer(callbacks=[EarlyStoppingConfig(monitor="soft_loss")])
    with pytest.raises(ConfigError, match=r"soft_loss.*easy_loss, epoch_time, hard_loss"):
        trainer.train_model(make_loader(1), loaders, num_epochs=1)


def test_checkpoints_without_a_folder_are_an_error_before_the_first_step() -> None:
    """Checkpoints that have nowhere to go are an error before anything is trained, which names both settings."""
    trainer = make_trainer(callbacks=[CheckpointConfig()])
    with pytest.raises(ConfigError, match=r"CheckpointConfig.dirpath.*LoggerConfig.log_path"):
        trainer.train_model(make_loader(2), num_epochs=1)
    assert trainer.global_step == 0


def test_empty_validation_loader_is_named() -> None:
    """A validation loader without a batch is an error with its name, before anything is trained."""
    trainer = make_trainer()
    with pytest.raises(DataError, match="val_loader"):
        trainer.train_model(make_loader(2), [], num_epochs=1)
    assert trainer.global_step == 0


# --- values that are not finite ---------------------------------------------------------------------------------------


def test_training_that_met_a_nan_can_raise(tmp_path: Path) -> None:
    """On demand, a training that stopped at a NaN raises, after everything was closed with the status `nan`."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"), raise_on_nan=True)
    with pytest.raises(NonFiniteError, match="step 2"):
        trainer.train_model(POISONED, num_epochs=1)
    assert not trainer.logger.is_open
    assert open_run(tmp_path / "run").status == trainer.status == "nan"


def test_training_that_met_a_nan_returns_by_default() -> None:
    """By default, a training that stopped at a NaN returns, and the trainer has the status."""
    trainer = make_trainer()
    trainer.train_model(POISONED, num_epochs=1)
    assert trainer.status == "nan"


# --- a mean that is given as a sum ------------------------------------------------------------------------------------


def mean_of(batch: Any, apply_fn: Callable, params: Any) -> jax.Array:
    return ((apply_fn({"params": params}, batch.inputs, train=True) - batch.targets) ** 2).mean()


@pytest.mark.parametrize(
    ("metric", "num_warnings"),
    [
        (lambda loss, again: {"loss": {"value": loss, "count": 8}}, 1),
        (lambda loss, again: {"loss": {"value": loss, "count": jnp.asarray(8)}}, 1),
        (lambda loss, again: {"loss": {"value": again, "count": 8}}, 1),
        (lambda loss, again: {"loss": {"value": loss * 8, "count": 8}}, 0),
        (lambda loss, again: {"loss": {"value": loss, "count": 1}}, 0),
        (lambda loss, again: {"loss": again}, 0),
        (lambda loss, again: {"other": {"value": loss, "count": 8}}, 0),
        (lambda loss, again: {}, 0),
    ],
)
def test_mean_that_is_given_as_a_sum_is_reported_once(
    caplog: pytest.LogCaptureFixture, metric: Callable, num_warnings: int
) -> None:
    """The value of the returned loss as a sum over several items is logged too small; a warning has the fix."""

    class Mean(MSETrainer):
        def loss_function(self, params: Any, apply_fn: Callable, batch: Any, rng: Any, train: bool = True) -> Any:
            loss = mean_of(batch, apply_fn, params)
            return loss, (metric(loss, mean_of(batch, apply_fn, params)), None)

    make_trainer(Mean).train_model(make_loader(3), num_epochs=2)
    assert caplog.text.count("A `value` is a sum over `count` items") == num_warnings


# --- what users may pass ----------------------------------------------------------------------------------------------


def test_callbacks_as_objects_or_configs_in_both_places() -> None:
    """The config and `fit` both take callbacks and configs of callbacks."""
    config = EarlyStoppingConfig(monitor="train_loss", stopping_threshold=1e9)
    for one in (config, EarlyStopping(config)):
        by_config, by_fit = make_trainer(callbacks=[one]), make_trainer()
        by_config.train_model(make_loader(1), num_epochs=3)
        by_fit.fit(make_loader(1), num_epochs=3, callbacks=[one])
        assert (by_config.epoch, by_fit.epoch) == (1, 1)
    make_trainer().fit(make_loader(1), callbacks=None)


def test_callback_that_is_appended() -> None:
    """`trainer.callbacks.append` adds a bound callback to the next training."""
    trainer = make_trainer()
    trainer.callbacks.append(EarlyStoppingConfig(monitor="train_loss", stopping_threshold=1e9).create(trainer))
    trainer.train_model(make_loader(1), num_epochs=3)
    assert trainer.epoch == 1


@pytest.mark.parametrize("calls_super", [True, False])
def test_build_model_that_sets_the_model(calls_super: bool) -> None:
    """A trainer may set `self.model` itself, instead of what the config says or without any."""

    class Wide(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
            return nn.Dense(1)(nn.Dense(7)(x))

    class OwnModelTrainer(MSETrainer):
        def build_model(self, model_config: ModelConfig) -> None:
            if calls_super:
                super().build_model(model_config)
            self.model = Wide()

    trainer = make_trainer(OwnModelTrainer, model_class=Linear if calls_super else None)  # pyright: ignore
    trainer.train_model(make_loader(1), num_epochs=1)
    assert trainer.get_num_params() == 4 * 7 + 7 + 7 + 1


class TwoInputs(nn.Module):
    """A model that needs two inputs."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, scale: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(x) * scale


class OnePair(nn.Module):
    """A model whose one input is a tuple."""

    config: Any = None

    @nn.compact
    def __call__(self, pair: tuple[jax.Array, jax.Array], mask: Any = None, train: bool = False) -> jax.Array:
        return nn.Dense(1)(pair[0]) * pair[1]


@pytest.mark.parametrize("model_class", [TwoInputs, OnePair])
def test_tuple_of_inputs(model_class: type) -> None:
    """A tuple is several arguments to a model that needs several, and one to others; predictions get the same."""

    class TupleTrainer(MSETrainer):
        @staticmethod
        def batch_to_input(batch: Any) -> Any:
            return batch.inputs, batch.targets

        def loss_function(self, params: Any, apply_fn: Callable, batch: Any, rng: Any, train: bool = True) -> Any:
            inputs = self.batch_to_input(batch)
            pred = apply_fn({"params": params}, *(inputs if model_class is TwoInputs else (inputs,)), train=train)
            return ((pred - batch.targets) ** 2).mean(), ({}, None)

    trainer = make_trainer(TupleTrainer, model_class=model_class)
    trainer.train_model(make_loader(1), num_epochs=1)
    assert trainer.predict(make_loader(2)).shape == (16, 1)


def test_model_checkpoint_needs_no_monitor(tmp_path: Path) -> None:
    """Checkpoints without a monitor are kept whatever the metrics are called."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path / "run"))
    trainer.fit(make_loader(1), VAL, callbacks=[ModelCheckpoint(CheckpointConfig())])
    assert (tmp_path / "run/checkpoints/1").is_dir()
