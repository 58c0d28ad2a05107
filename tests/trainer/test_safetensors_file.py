"""Parameters from safetensors files that hold only a part of the model, or more than it."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.models.libraries import KITS, make_data
from tests.trainer.tiny import make_trainer
from trackside.errors import CheckpointError
from trackside.trainer import OptimizerConfig, ParallelConfig, Trainer, TrainerConfig
from trackside.trainer.safetensors_file import export_params, import_matching_params

MODEL = {"body": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}, "head": {"kernel": jnp.zeros((3, 4))}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The same body, a head of another size, and something else."""
    saved = {
        "body": {"kernel": jnp.ones((2, 3), jnp.bfloat16), "bias": jnp.full(3, 2.0)},
        "head": {"kernel": jnp.ones((3, 9))},
        "extra": jnp.ones(1),
    }
    export_params(saved, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_what_fits_is_loaded_and_the_rest_is_named(file: Path) -> None:
    """Parameters of the same path and shape are taken in the model's dtype; everything else is in the report."""
    params, report = import_matching_params(MODEL, file)
    np.testing.assert_array_equal(params["body"]["kernel"], np.ones((2, 3), np.float32))
    assert params["body"]["kernel"].dtype == jnp.float32
    np.testing.assert_array_equal(params["head"]["kernel"], MODEL["head"]["kernel"])
    assert set(report.loaded) == {"body/kernel", "body/bias"}
    assert report.missing == ()
    assert report.unexpected == ("extra",)
    assert report.misfits == ("head/kernel: (3, 9) in the file, (3, 4) in the model",)
    assert "2 of 3 parameters loaded; not in the model: extra; of another shape: head/kernel" in str(report)


def test_names_are_translated(tmp_path: Path) -> None:
    """Files of other programs have other names, and parameters that are not wanted."""
    export_params({"enc.w": jnp.ones((2, 3)), "enc.b": jnp.ones(3)}, tmp_path / "other.safetensors")
    names = {"enc.w": "body/kernel", "enc.b": None}
    params, report = import_matching_params(MODEL, tmp_path / "other.safetensors", names.get)
    np.testing.assert_array_equal(params["body"]["kernel"], np.ones((2, 3)))
    assert report.loaded == ("body/kernel",)
    assert set(report.missing) == {"body/bias", "head/kernel"}
    assert report.unexpected == ()


def test_file_of_another_model(tmp_path: Path) -> None:
    """A file of which nothing fits is an error, and not a model that was silently left alone."""
    export_params({"x": jnp.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"nothing in .* fits the model; 0 of 3 parameters loaded"):
        import_matching_params(MODEL, tmp_path / "other.safetensors")


def test_trainer_says_what_was_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without `strict`, the trainer takes what fits and logs the report."""
    trainer: Any = make_trainer()
    export_params({"Dense_0": {"kernel": jnp.full((4, 1), 7.0)}}, tmp_path / "part.safetensors")
    report = trainer.import_params(tmp_path / "part.safetensors", strict=False)
    assert report.missing == ("Dense_0/bias",)
    assert "1 of 2 parameters loaded; not in the file: Dense_0/bias" in caplog.text
    np.testing.assert_array_equal(trainer.state.params["Dense_0"]["kernel"], np.full((4, 1), 7.0))


DATA = make_data(2)


def make_stateful() -> Trainer:
    """A trainer of a model with a state that changes from step to step."""
    kit, config = KITS["functions"], TrainerConfig(enable_progress_bar=False)
    trainer = Trainer(kit.stateful(), kit.stateful_loss, OptimizerConfig(), config=config, parallel=ParallelConfig())
    trainer.build(DATA[0])
    return trainer


def test_state_of_the_model_is_exported_too(tmp_path: Path) -> None:
    """A model that needs statistics of its batches is the same after a round trip, strict or not."""
    trainer = make_stateful()
    trainer.fit(DATA)
    trainer.module.export_params(tmp_path / "model.safetensors")
    strict, partial = make_stateful(), make_stateful()
    strict.module.import_params(tmp_path / "model.safetensors")
    report = partial.module.import_params(tmp_path / "model.safetensors", strict=False)
    assert "state/mean" in report.loaded  # type: ignore[union-attr]
    for one in (strict, partial):
        np.testing.assert_array_equal(one.predict(DATA), trainer.predict(DATA))


def test_file_without_the_state_is_enough(tmp_path: Path) -> None:
    """Parameters alone fit as before, and the state stays as it is."""
    trainer = make_stateful()
    trainer.fit(DATA)
    trainer.module.export_params(tmp_path / "model.safetensors", with_state=False)
    other = make_stateful()
    other.module.import_params(tmp_path / "model.safetensors")
    state = other.module.progress.carry
    np.testing.assert_array_equal(state.mutable_variables["state"]["mean"], np.zeros(8))
    np.testing.assert_array_equal(
        state.params["first"]["kernel"], trainer.module.progress.carry.params["first"]["kernel"]
    )
