"""Several batches of an evaluation in one call: the same metrics as one by one, whatever the calls."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.test_fused_steps import Conv, Mixed, MixedTrainer
from tests.trainer.test_read_ahead import readers, wait_until
from tests.trainer.tiny import MSETrainer, make_batch, make_loader, make_trainer, rows_of
from trackside.errors import DataError
from trackside.logger import LoggerConfig
from trackside.trainer import Batch, ParallelConfig
from trackside.trainer.logged_evaluation import evaluate_loader

NUM_BATCHES = 11
SIZES = (2, 4, 32, "auto")
MODELS_AND_SIZES = [
    *(pytest.param({}, size, id=f"linear-{size}") for size in SIZES),
    pytest.param({"trainer_class": MixedTrainer, "model_class": Mixed}, "auto", id="mixed"),
    pytest.param({"model_class": Conv}, "auto", id="convolutions"),
]
ONE_BY_ONE = [
    pytest.param({"parallel": ParallelConfig(data_axis_size=2)}, id="several devices"),
    pytest.param({"debug": True}, id="debug"),
    pytest.param({"steps_per_call": 1}, id="single steps"),
]
"""Where calls are not fused."""


def evaluate(loader: Any, steps_per_call: Any, num_times: int = 1, **config: Any) -> tuple[bytes, Any]:
    """The metrics, bit by bit, and the trainer."""
    trainer = make_trainer(steps_per_call=steps_per_call, **config)
    for _ in range(num_times):
        metrics = evaluate_loader(trainer, loader() if callable(loader) else loader)
    return np.asarray(metrics.vector).tobytes(), trainer


def is_fused(trainer: Any) -> bool:
    return any(one is not None for one in trainer.evaluator._fused.values())


@pytest.mark.usefixtures("optimized")  # bits depend on what XLA optimizes, so this compiles as users do
@pytest.mark.parametrize(("model", "size"), MODELS_AND_SIZES)
def test_every_size_gives_the_same(model: dict[str, Any], size: Any) -> None:
    """The metrics are the same to the last bit, for every number of batches in a call, in every evaluation."""
    plain, _ = evaluate(make_loader(NUM_BATCHES), 1, **model)
    fused, trainer = evaluate(make_loader(NUM_BATCHES), size, num_times=3, **model)
    assert is_fused(trainer)
    assert fused == plain


class Reusing:
    """Refills one array for all batches."""

    def __iter__(self) -> Iterator[Batch]:
        inputs, targets = np.empty((8, 4), np.float32), np.empty((8, 1), np.float32)
        for batch in make_loader(NUM_BATCHES):
            inputs[:], targets[:] = batch.inputs, batch.targets
            yield Batch(inputs, targets)


def with_nan() -> list[Batch]:
    loader = make_loader(NUM_BATCHES)
    loader[3] = loader[3].replace(inputs=np.full((8, 4), np.nan, np.float32))
    return loader


LOADERS: dict[str, Callable[[], Any]] = {
    "reusing its memory": Reusing,
    "with a smaller last batch": lambda: [*make_loader(NUM_BATCHES), make_batch(5)],
    "of many sizes": lambda: [make_batch(2 + index % 3, index) for index in range(NUM_BATCHES)],
    "of more sizes than there are buffers for": lambda: [make_batch(2 + index % 6, index) for index in range(18)],
    "on the device": lambda: [jax.tree.map(jnp.asarray, batch) for batch in make_loader(NUM_BATCHES)],
    "in part on the device": lambda: [Batch(jnp.asarray(b.inputs), b.targets) for b in make_loader(NUM_BATCHES)],
    "in double precision": lambda: [
        Batch(b.inputs.astype(np.float64), b.targets.astype(np.float64)) for b in make_loader(NUM_BATCHES)
    ],
    "not finite": with_nan,
    "of one batch": lambda: make_loader(1),
    "generator": lambda: iter(make_loader(NUM_BATCHES)),
}


@pytest.mark.parametrize("num_ahead", [0, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_loaders(name: str, num_ahead: int) -> None:
    """Batches are evaluated in order, each once, whatever they are, wherever they lie, and however they are read."""
    plain, _ = evaluate(LOADERS[name], 1)
    fused, _ = evaluate(LOADERS[name], 4, num_times=2, prefetch_batches=num_ahead)
    one_by_one, _ = evaluate(LOADERS[name], 1, num_times=2, prefetch_batches=num_ahead)
    assert fused == one_by_one == plain
    wait_until(lambda: not readers())


@pytest.mark.parametrize("config", ONE_BY_ONE)
def test_where_batches_are_evaluated_one_by_one(config: dict[str, Any]) -> None:
    """By the rule for training steps: where a loop could change bits, or was not asked for."""
    _, trainer = evaluate(make_loader(2), **{"steps_per_call": 4, **config})
    assert not is_fused(trainer)


def test_a_remainder_does_not_compile(tmp_path: Path) -> None:
    """Calls of any number of batches are of one program, and a batch of another size is explained as before."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path), steps_per_call=4)
    trainer.train_model(make_loader(2), make_loader(NUM_BATCHES), num_epochs=2)
    compiled = [row for row in rows_of(tmp_path, "compile") if row["function"] == "eval_step"]
    assert len(compiled) == 1


def test_a_batch_of_another_size_is_explained(tmp_path: Path) -> None:
    """The shape that a recompile names is that of the loader's batch, not of the stack."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path), steps_per_call=4)
    trainer.train_model(make_loader(2), [*make_loader(3), make_batch(5)], num_epochs=1)
    rows = [row for row in rows_of(tmp_path, "compile") if row["function"] == "eval_step"]
    assert len(rows) == 2
    assert "(8, 4)" in str(rows[1]["changes"])
    assert "(5, 4)" in str(rows[1]["changes"])


@pytest.mark.parametrize("num_ahead", [0, 2])
def test_a_loader_without_batches(num_ahead: int) -> None:
    """It is an error that says so, with several batches in a call and read ahead, too."""
    with pytest.raises(DataError, match="gave no batch to evaluate"):
        evaluate(lambda: iter([]), 4, prefetch_batches=num_ahead)


def test_a_loader_that_fails_is_not_read_on() -> None:
    """Its error ends the evaluation, and the thread with it."""

    def failing() -> Iterator[Batch]:
        yield from make_loader(3)
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        evaluate(failing, 4, prefetch_batches=2)
    wait_until(lambda: not readers())


BAD: dict[str, tuple[Any, str]] = {
    "bytes in the other order": (
        Batch(make_batch(8).inputs.astype(">f4"), make_batch(8).targets),
        r"^batch: inputs is an array of >f4, .*newbyteorder",
    ),
    "strings": (Batch(make_batch(8).inputs.astype(str), make_batch(8).targets), "^batch: inputs is an array of <U"),
    "another structure": ({"x": make_batch(8).inputs}, "differ in structure from the example batch"),
}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name", BAD)
def test_a_batch_that_cannot_work_is_named(name: str, size: int) -> None:
    """Wherever it is among the others, the error says what is wrong with it."""
    bad, message = BAD[name]
    num_before = 0 if size == 1 and name == "bytes in the other order" else 3  # JAX does not notice it later
    loader = [*make_loader(num_before), bad, *make_loader(2)]
    with pytest.raises(DataError, match=message):
        evaluate(loader, size)
    with pytest.raises(DataError, match=message):
        make_trainer(steps_per_call=size).predict(loader)


def test_an_error_of_the_model_is_its_own() -> None:
    """A batch with which nothing is wrong is not blamed."""

    class Picky(MSETrainer):
        def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
            if len(batch.inputs) == 5:
                raise RuntimeError("no fives")
            return super().loss_function(params, apply_fn, batch, rng, train)

    with pytest.raises(RuntimeError, match="no fives"):
        evaluate([*make_loader(3), make_batch(5)], 4, trainer_class=Picky)


def test_predictions_of_batches_that_are_read_ahead() -> None:
    """They are those of batches that are not."""
    outputs = [make_trainer(prefetch_batches=num_ahead).predict(Reusing()) for num_ahead in (0, 2)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
