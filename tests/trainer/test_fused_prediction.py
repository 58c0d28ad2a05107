"""Predictions for several batches in one call: the same as one by one, whatever the calls."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.trainer.test_fused_evaluation import LOADERS, MODELS_AND_SIZES, NUM_BATCHES, ONE_BY_ONE
from tests.trainer.tiny import make_batch, make_loader, make_trainer, rows_of
from trackside.errors import DataError
from trackside.logger import LoggerConfig
from trackside.trainer import Batch, ParallelConfig, Trainer
from trackside.trainer.steps_per_call import AUTO_STACK_BYTES


def is_fused(trainer: Any) -> bool:
    return any(one is not None for one in trainer.evaluator._fused_predictions.values())


@pytest.mark.usefixtures("optimized")  # bits depend on what XLA optimizes, so this compiles as users do
@pytest.mark.parametrize(("model", "size"), MODELS_AND_SIZES)
def test_every_size_gives_the_same(model: dict[str, Any], size: Any) -> None:
    """The outputs are the same to the last bit, for every number of batches in a call, in every prediction."""
    loader = [*make_loader(NUM_BATCHES), make_batch(5)]
    plain = make_trainer(steps_per_call=1, **model).predict(loader)
    trainer = make_trainer(steps_per_call=size, **model)
    for _ in range(3):
        np.testing.assert_array_equal(trainer.predict(loader), plain)
    assert is_fused(trainer)
    assert plain.shape == (8 * NUM_BATCHES + 5, 1)


@pytest.mark.parametrize("num_ahead", [0, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_loaders(name: str, num_ahead: int) -> None:
    """Outputs are in the order of batches, whatever these are, wherever they lie, and however they are read."""
    plain = make_trainer(steps_per_call=1).predict(LOADERS[name]())
    fused = make_trainer(steps_per_call=4, prefetch_batches=num_ahead).predict(LOADERS[name]())
    np.testing.assert_array_equal(fused, plain)


def predict_by(predict_fn: Any, steps_per_call: int, loader: Any) -> Any:
    trainer = Trainer(
        (lambda key, inputs: {"w": jax.numpy.ones((4, 1))}, lambda params, inputs: inputs @ params["w"]),
        lambda model, batch, rng: (model(batch.inputs) ** 2).mean(),
        optax.sgd(0.1),
        predict_fn=predict_fn,
        steps_per_call=steps_per_call,
        parallel=ParallelConfig(data_axis_size=1),
    )
    return trainer.predict(loader)


OUTPUTS: dict[str, Any] = {
    "a tree": lambda model, batch, rng: {"of": model(batch.inputs), "twice": (model(batch.inputs) * 2, None)},
    "one number": lambda model, batch, rng: model(batch.inputs).mean(),
    "a number of Python's": lambda model, batch, rng: 3.0,
    "random": lambda model, batch, rng: jax.random.normal(rng, (2,)),
    "nothing": lambda model, batch, rng: (model(batch.inputs), model(batch.inputs)[:, :0]),
    "integers": lambda model, batch, rng: model(batch.inputs).argmax(-1),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_whatever_is_predicted(name: str) -> None:
    """Trees, single numbers and integers come out as they do one by one, with their types."""
    loader = [*make_loader(5), make_batch(3), jax.tree.map(jax.numpy.asarray, make_batch(8))]
    plain, fused = (predict_by(OUTPUTS[name], size, loader) for size in (1, 3))
    assert jax.tree.structure(fused) == jax.tree.structure(plain)
    for ours, others in zip(jax.tree.leaves(fused), jax.tree.leaves(plain), strict=True):
        assert ours.dtype == others.dtype
        np.testing.assert_array_equal(ours, others)


@pytest.mark.parametrize("config", ONE_BY_ONE)
def test_where_it_is_done_one_by_one(config: dict[str, Any]) -> None:
    """By the rule for evaluation."""
    trainer = make_trainer(**config)
    trainer.predict(make_loader(2))
    assert not is_fused(trainer)


def test_large_outputs_are_bounded() -> None:
    """Where nobody says how many, the outputs of a call count as its batches do."""
    wide = AUTO_STACK_BYTES // 4 // 16 // 8  # a sixteenth of the bound for a batch of eight examples
    trainer = Trainer(
        (lambda key, inputs: {"w": jax.numpy.ones((4, 1))}, lambda params, inputs: inputs @ params["w"]),
        lambda model, batch, rng: (model(batch.inputs) ** 2).mean(),
        optax.sgd(0.1),
        predict_fn=lambda model, batch, rng: jax.numpy.broadcast_to(model(batch.inputs), (8, wide)),
        parallel=ParallelConfig(data_axis_size=1),
    )
    assert trainer.predict(make_loader(3)).shape == (24, wide)
    assert not is_fused(trainer.module)


def test_a_remainder_does_not_compile(tmp_path: Any) -> None:
    """Calls of any number of batches are of one program."""
    trainer = make_trainer(steps_per_call=4, logger=LoggerConfig(log_path=tmp_path))
    trainer.train_model(make_loader(2), num_epochs=1)
    for number in (4, 7, 1):
        trainer.predict(make_loader(number))
    trainer.sentinel.flush()
    assert trainer.sentinel.num_recompiles.get("predict_step", 0) == 0
    assert len([row for row in rows_of(tmp_path, "compile") if row["function"] == "predict_step"]) <= 1


def test_a_loader_without_batches() -> None:
    """It is an error that says so."""
    with pytest.raises(DataError, match="gave no batch"):
        make_trainer(steps_per_call=4).predict(iter(()))


def test_batches_may_be_refilled_at_the_end_of_a_pass() -> None:
    """A loader that clears its arrays after the last batch does not change what was predicted."""

    def clearing() -> Any:
        buffers = [np.empty((8, 4), np.float32) for _ in range(6)]
        for index, batch in enumerate(make_loader(NUM_BATCHES)):
            inputs = buffers[index % 6]
            inputs[:] = batch.inputs
            yield Batch(inputs, batch.targets)
        for inputs in buffers:
            inputs[:] = np.nan

    plain = make_trainer(steps_per_call=1).predict(make_loader(NUM_BATCHES))
    np.testing.assert_array_equal(make_trainer(steps_per_call=4).predict(clearing()), plain)
