"""What the user's own function adds to metrics, and `epoch_time`: in rows, hooks, monitors and what is returned."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import MSETrainer, make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CheckpointConfig, EarlyStopping, EarlyStoppingConfig, ModelCheckpoint
from trackside.logger import LoggerConfig

VAL = make_loader(1, seed=50)


class WithPerplexity(MSETrainer):
    """Adds a metric to each row of training and evaluation, and knows no other rows."""

    def get_metric_postprocess_fn(self) -> Any:
        def add_perplexity(metrics: dict[str, float]) -> dict[str, float]:
            loss = metrics["loss_mean"] if "loss_mean" in metrics else metrics["loss"]
            return {**metrics, "perplexity": math.exp(min(loss, 10.0))}

        return add_perplexity


class Listener(Callback):
    """Remembers which metrics its hooks were given."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, set[str]] = {}

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        self.heard["train"] = set(train_metrics)

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        self.heard["val"] = set(eval_metrics)

    def on_test_epoch_end(self, test_metrics: dict[str, Any], epoch_idx: int) -> None:
        self.heard["test"] = set(test_metrics)


def test_added_metrics_are_everywhere(run_config: LoggerConfig) -> None:
    """Hooks, results and rows of training, validation and test have what was added, and the epoch's time."""
    trainer, listener = make_trainer(WithPerplexity, logger=run_config), Listener()
    results = trainer.fit(make_loader(2), VAL, VAL, callbacks=[listener])
    added = {"perplexity", "epoch_time"}
    assert all(added <= heard for heard in listener.heard.values())
    assert set(listener.heard) == {"train", "val", "test"}
    assert all(added <= set(results[name]) for name in ("train", "val", "val_epoch_1", "test"))
    for mode in ("train_epoch", "val", "test"):
        assert added <= set(rows_of(run_config.log_path, mode=mode)[0]["values"]), mode


@pytest.mark.parametrize("mode", ["val", "test", "eval", "ood"])
def test_any_mode_is_evaluated(run_config: LoggerConfig, mode: str) -> None:
    """`eval_model` takes any name as its mode, logs under it, and returns what was added."""
    trainer = make_trainer(WithPerplexity, logger=run_config)
    metrics = trainer.eval_model(VAL, mode, 3)
    assert metrics["perplexity"] == pytest.approx(math.exp(min(metrics["loss"], 10.0)))
    (row,) = rows_of(run_config.log_path, mode=mode)
    assert row["values"] == metrics
    assert row["epoch"] == 3


def test_rows_that_are_not_the_users_are_left_alone(tmp_path: Path) -> None:
    """A function that knows rows of training and evaluation only is never given rows of time, memory or profiles."""
    config = LoggerConfig(log_path=tmp_path / "run", log_every_n_steps=1)
    trainer = make_trainer(WithPerplexity, logger=config)
    trainer.train_model(make_loader(12), VAL, num_epochs=1)
    assert trainer.status == "success"
    assert rows_of(config.log_path, mode="time")


@pytest.mark.parametrize("monitor", ["perplexity", "val_perplexity", "train_perplexity"])
def test_added_metric_can_be_monitored(tmp_path: Path, monitor: str) -> None:
    """Stopping and keeping find a metric that the user's function has added."""
    trainer = make_trainer(WithPerplexity, lr=0.0)
    stopper = EarlyStopping(EarlyStoppingConfig(monitor=monitor, patience=2))
    keeper = ModelCheckpoint(CheckpointConfig(str(tmp_path), monitor))
    trainer.fit(make_loader(1), VAL, num_epochs=9, callbacks=[stopper, keeper])
    assert trainer.epoch == 3
    assert trainer.checkpoints.store(tmp_path).steps() == [1, 3]
