"""The average of parameters, and evaluation on it."""

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks import EMA, CheckpointConfig, EMAConfig, ModelCheckpoint
from trackside.callbacks.ema import find_average
from trackside.errors import CheckpointError, ConfigError
from trackside.trainer import ParallelConfig


def test_average_follows_the_parameters() -> None:
    """After each step the average is decay times itself plus the rest of the new parameters."""
    trainer = make_trainer()
    trainer.fit(make_loader(1), callbacks=[EMA(EMAConfig(decay=0.5))], num_train_steps=1)
    first = np.asarray(make_trainer().state.params["Dense_0"]["kernel"])
    second = np.asarray(trainer.state.params["Dense_0"]["kernel"])
    average = find_average(trainer.state.opt_state)["Dense_0"]["kernel"]
    np.testing.assert_allclose(average, 0.5 * first + 0.5 * second, rtol=1e-6)


def test_training_itself_is_untouched() -> None:
    """With and without the average, the parameters are bit-identical."""
    plain, averaged = make_trainer(), make_trainer(callbacks=[EMAConfig()])
    for trainer in (plain, averaged):
        trainer.train_model(make_loader(3), num_epochs=1)
    jax.tree.map(np.testing.assert_array_equal, plain.state.params, averaged.state.params)


def test_evaluation_uses_the_average() -> None:
    """Predictions come from the average while the callback is there, and from the parameters if told so."""
    batch = make_loader(1)[0]
    for evaluate in (True, False):
        trainer = make_trainer(callbacks=[EMAConfig(decay=0.9, evaluate=evaluate)])
        trainer.train_model(make_loader(3), num_epochs=1)
        state = trainer.state
        used = (find_average(state.opt_state) if evaluate else state.params)["Dense_0"]
        expected = batch.inputs @ np.asarray(used["kernel"]) + np.asarray(used["bias"])
        np.testing.assert_allclose(trainer.predict([batch]), expected, rtol=1e-5)


def test_parameters_of_evaluation_are_at_hand() -> None:
    """`evaluation_params` gives the average where there is one, and else the parameters that are trained."""
    plain, averaged = make_trainer(), make_trainer(callbacks=[EMAConfig(decay=0.5)])
    for trainer in (plain, averaged):
        trainer.train_model(make_loader(3), num_epochs=1)
    jax.tree.map(np.testing.assert_array_equal, plain.evaluation_params(), plain.state.params)
    jax.tree.map(np.testing.assert_array_equal, averaged.evaluation_params(), find_average(averaged.state.opt_state))


def test_average_lies_as_its_parameter() -> None:
    """On a mesh the average is split as the parameter is."""
    trainer = make_trainer(callbacks=[EMAConfig()], parallel=ParallelConfig(fsdp_axis_size=4, fsdp_min_weight_size=1))
    average = find_average(trainer.state.opt_state)["Dense_0"]["kernel"]
    assert average.sharding == trainer.state.params["Dense_0"]["kernel"].sharding


def test_average_is_saved_and_restored(tmp_path: Path) -> None:
    """A resumed training has the average that it had."""
    config = {"callbacks": [EMAConfig(decay=0.9), CheckpointConfig(dirpath=str(tmp_path))], "resume": "auto"}
    first, second = make_trainer(**config), make_trainer(seed=4, **config)
    for trainer, num_epochs in ((first, 1), (second, 1)):
        trainer.train_model(make_loader(3), num_epochs=num_epochs)
    jax.tree.map(
        np.testing.assert_array_equal, find_average(first.state.opt_state), find_average(second.state.opt_state)
    )
    assert isinstance(second.callbacks[1], ModelCheckpoint)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_decay_out_of_range(decay: float) -> None:
    """A decay that cannot work is named."""
    with pytest.raises(ConfigError, match="decay"):
        EMAConfig(decay=decay)


def test_parameters_travel_by_safetensors(tmp_path: Path) -> None:
    """Exported parameters come back bit by bit; a file that is none is named."""
    source, target = make_trainer(), make_trainer(seed=7)
    source.export_params(tmp_path / "model.safetensors")
    target.import_params(tmp_path / "model.safetensors")
    jax.tree.map(np.testing.assert_array_equal, source.state.params, target.state.params)
    (tmp_path / "bad.safetensors").write_bytes(b"not a file of tensors")
    with pytest.raises(CheckpointError, match=r"bad\.safetensors"):
        target.import_params(tmp_path / "bad.safetensors")
