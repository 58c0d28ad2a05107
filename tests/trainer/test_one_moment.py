"""A checkpoint shows one moment: state, callbacks, loaders and metrics are those of its own step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.tiny import MSETrainer, make_batch, make_loader, make_trainer
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig
from trackside.errors import CheckpointError
from trackside.trainer import Batch
from trackside.trainer.checkpoint_store import CheckpointStore
from trackside.trainer.loaders import decode_position

NUM_STEPS, NUM_EPOCHS = 5, 2


class LiveState(Callback):
    """Hands out the very dict that it changes at every step, as callbacks do."""

    def __init__(self) -> None:
        super().__init__(CallbackConfig())
        self.state: dict[str, Any] = {"step": 0, "seen": []}

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.state["step"] = step_idx
        self.state["seen"].append(step_idx)

    def state_dict(self) -> dict[str, Any]:
        return self.state


class LiveLoader:
    """Hands out the very dict that it changes with every batch, as loaders do."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"num_given": 0, "history": {"given": []}}

    def __len__(self) -> int:
        return NUM_STEPS

    def __iter__(self) -> Iterator[Batch]:
        for index in range(NUM_STEPS):
            self.state["num_given"] += 1
            self.state["history"]["given"].append(index)
            yield make_batch(8, seed=index)

    def get_state(self) -> dict[str, Any]:
        return self.state

    def set_state(self, state: dict[str, Any]) -> None:
        self.state = state


class Counting(MSETrainer):
    """Its validation says at which step it was."""

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        eval_metrics["at_step"] = float(step_idx)


def test_everything_is_of_the_same_step(tmp_path: Path) -> None:
    """Saved after every step, each checkpoint holds what was there after its own step, whatever changed later."""
    loader = LiveLoader()
    trainer = make_trainer(Counting, check_val_every_n_steps=1)
    config = CheckpointConfig(dirpath=str(tmp_path), every_n_steps=1, every_n_epochs=-1, save_top_k=-1)
    trainer.fit(loader, make_loader(1), num_epochs=NUM_EPOCHS, callbacks=[LiveState(), config])
    store = CheckpointStore(tmp_path)
    assert store.steps() == list(range(1, NUM_STEPS * NUM_EPOCHS + 1))
    progress = {"progress": {"step": jnp.zeros((), jnp.int32), "rng": trainer.progress.carry.rng}}
    for step in store.steps():
        record = store.verify(step)
        assert record["callbacks"]["LiveState-0"] == {"step": step, "seen": list(range(1, step + 1))}
        position = decode_position(record["loaders"]["train"])
        assert position["num_given"] == step
        assert position["history"]["given"] == [at % NUM_STEPS for at in range(step)]
        assert record["stages"]["val"]["at_step"] == step
        assert int(np.asarray(store.load(step, progress)["progress"]["step"])) == step


def test_damaged_step_does_not_spoil_a_finished_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a damaged step in the folder, the same command still ends in success, with the best of the others tested."""
    config = CheckpointConfig(dirpath=str(tmp_path), monitor="val_loss", save_top_k=-1)

    def run() -> Any:
        trainer = make_trainer(callbacks=[config], resume="auto", lr=0.01)
        results = trainer.train_model(make_loader(2), make_loader(1), make_loader(1, seed=9), num_epochs=3)
        assert trainer.status == "success"
        return results["test"]["loss"]

    best = run()
    store = CheckpointStore(tmp_path)
    (tmp_path / "2" / "manifest.json").write_bytes(b"damaged")
    assert run() == best
    assert "manifest.json is damaged" in caplog.text
    next((tmp_path / "6" / "state" / "d").iterdir()).write_bytes(b"damaged")  # the latest, which is the best too
    assert run() == best
    with pytest.raises(CheckpointError):
        store.verify(2)


def test_nan_before_the_first_validation(tmp_path: Path) -> None:
    """A training that turns NaN before the monitored metric was ever measured ends as `nan`, and raises nothing."""
    loader = make_loader(4)
    loader[1].inputs[:] = np.nan
    trainer = make_trainer(callbacks=[CheckpointConfig(dirpath=str(tmp_path), monitor="val_loss")])
    trainer.train_model(loader, make_loader(1), num_epochs=2)
    assert trainer.status == "nan"
