"""The callback for Keras in the documentation does what the page says."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trackside
from trackside.measured_run import MeasuredRun

PAGE = Path(__file__).parents[2] / "docs" / "your-own-loop.md"
X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


@pytest.fixture
def keras() -> Any:
    """Keras on JAX. Importing it takes longer than its tests, so it is not for every worker that collects them."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    imported: Any = pytest.importorskip("keras", reason="Keras is not installed; it is in the group dev")
    if imported.backend.backend() != "jax":
        pytest.skip("Keras runs on another backend than JAX")
    return imported


def build_callback(run: MeasuredRun) -> Any:
    """The callback that the page shows."""
    (block,) = re.findall(r"```text\n(import itertools.*?)\n\n\nwith ", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # the subject: what users copy
    return names["Measured"](run)


def fit(keras: Any, steps_per_execution: int, callbacks: list[Any]) -> Any:
    """Train a small model for two epochs of eight batches."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, validation_data=(X, Y), shuffle=False, callbacks=callbacks)
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in Keras itself
@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_fit_is_measured_and_unchanged(keras: Any, tmp_path: Path, steps_per_execution: int) -> None:
    """Steps, examples, epochs, losses and validation are in the run, and the weights are those of the bare fit."""
    bare = fit(keras, steps_per_execution, [])
    with trackside.run(tmp_path / "run") as run:
        measured = fit(keras, steps_per_execution, [build_callback(run)])
    read = trackside.open_run(tmp_path / "run")
    assert (run.num_steps, run.ledger_totals.num_samples) == (16, 128)
    assert run.ledger_totals.parts["data_wait"] > 0
    assert read.metrics["train"]["loss"].size == 16 // steps_per_execution
    assert read.metrics["val"]["loss"].size == 2
    assert rows_equal(measured.get_weights(), bare.get_weights())


def rows_equal(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(left, right, strict=True))
