"""The state before the first step is compiled on another thread, while the training step is traced."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from tests.trainer.tiny import MSETrainer, make_batch, make_loader, make_trainer, rows_of
from trackside.callbacks import CheckpointConfig
from trackside.logger import LoggerConfig
from trackside.trainer.background_program import THREAD_NAME
from trackside.trainer.init_state import FirstState


def build(run: Path | None = None, **config: Any) -> Any:
    return make_trainer(MSETrainer, logger=None if run is None else LoggerConfig(log_path=run), **config)


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No program is compiled on another thread until this is set."""
    may_compile, compile_now = threading.Event(), jax.stages.Lowered.compile

    def wait(lowered: Any, *args: Any) -> Any:
        if threading.current_thread().name == THREAD_NAME:
            assert may_compile.wait(60)
        return compile_now(lowered, *args)

    monkeypatch.setattr(jax.stages.Lowered, "compile", wait)
    yield may_compile
    may_compile.set()


def test_what_asks_for_shapes_does_not_wait(held_back: threading.Event) -> None:
    """The metrics of the step, the number of parameters and their table are known before the state is compiled."""
    trainer = build()
    assert set(trainer.init_train_metrics()) > {"loss"}
    assert trainer.get_num_params() > 0
    assert "float32" in trainer.tabulate_params()
    assert not held_back.is_set()
    held_back.set()
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(trainer.state.params))


def test_form_is_that_of_the_state() -> None:
    """Shapes, types and places are the same before and after it is made."""
    trainer = build()
    form, state = trainer.progress.form, trainer.progress.carry
    assert jax.tree.structure(form) == jax.tree.structure(state)
    for expected, leaf in zip(jax.tree.leaves(form), jax.tree.leaves(state), strict=True):
        assert (expected.shape, expected.dtype) == (leaf.shape, leaf.dtype)
        assert expected.sharding.is_equivalent_to(leaf.sharding, leaf.ndim)


def test_one_compile_of_that_thread(tmp_path: Path) -> None:
    """Its row has its name and what tracing took, and nothing is compiled twice."""
    trainer = build(tmp_path, steps_per_call=1)
    trainer.train_model(make_loader(3), num_epochs=1)
    rows = [row for row in rows_of(tmp_path, "compile") if not row["is_operation"]]
    (row,) = [row for row in rows if row["function"] == "initial state"]
    assert row["thread"] == THREAD_NAME
    assert row["lower_s"] > 0
    assert sorted(row["function"] for row in rows) == ["initial state", "train_step"]


def test_a_state_that_is_never_made_is_no_loss() -> None:
    """A state of the user's own takes its place, also while it is being compiled."""
    trainer, other = build(), build(seed=5)
    trainer.state = other.state
    trainer.train_model(make_loader(2), num_epochs=1)
    assert trainer.global_step == 2


def test_a_resumed_training_needs_no_initial_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved takes its place before it is made, so that there are never two states in the memory."""
    config = {"callbacks": [CheckpointConfig(monitor=None)], "resume": "auto"}
    first = build(tmp_path, **config)
    first.train_model(make_loader(2), num_epochs=1)

    def fail(state: FirstState) -> Any:
        raise AssertionError("nobody needs it")

    monkeypatch.setattr(FirstState, "make", fail)
    second = build(tmp_path, **config)
    second.train_model(make_loader(2), num_epochs=1)
    assert second.global_step == 2
    jax.tree.map(np.testing.assert_array_equal, second.state.params, first.state.params)


def test_what_fails_in_the_background_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is the same, made by a call that compiles."""
    expected = jax.tree.map(np.asarray, build().state.params)

    def fail(lowered: Any, *args: Any) -> Any:
        raise RuntimeError("no memory for the compiler")

    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    jax.tree.map(np.testing.assert_array_equal, build().state.params, expected)


class Wrong(nn.Module):
    """A model that fails."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        raise ValueError("no such layer")


def test_error_of_the_model_comes_from_the_constructor() -> None:
    """What is wrong with a model is known when the trainer is built."""
    with pytest.raises(ValueError, match="no such layer"):
        make_trainer(MSETrainer, Wrong)


class Centered(nn.Module):
    """A model whose first parameters depend on the example batch."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(x - self.param("mean", lambda _: x.mean(axis=0)))


def test_an_example_that_is_overwritten_later() -> None:
    """The state is that of the example as it was when the trainer was built."""
    example = make_batch(8)
    expected = example.inputs.mean(axis=0)
    trainer = make_trainer(MSETrainer, Centered, batch=example)
    example.inputs[:] = 7.0
    np.testing.assert_allclose(trainer.state.params["mean"], expected, rtol=1e-6)


def test_an_example_that_is_given_up_later() -> None:
    """An example on the device may be donated once the trainer is built."""
    example = jax.tree.map(jax.numpy.asarray, make_batch(8))
    expected = np.asarray(example.inputs).mean(axis=0)
    trainer = make_trainer(MSETrainer, Centered, batch=example)
    example.inputs.delete()
    np.testing.assert_allclose(trainer.state.params["mean"], expected, rtol=1e-6)


def test_an_error_while_the_state_is_made_comes_once() -> None:
    """An initializer that fails is not run again."""
    runs: list[int] = []

    def fail() -> Any:
        runs.append(1)
        raise LookupError("no file with weights")

    class Loading(nn.Module):
        config: Any = None

        @nn.compact
        def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
            form = jax.ShapeDtypeStruct((1,), np.float32)
            return nn.Dense(1)(x) + self.param("loaded", lambda _: jax.pure_callback(fail, form))

    trainer = make_trainer(MSETrainer, Loading)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no file with weights"):
        jax.block_until_ready(trainer.state.params)
    assert len(runs) == 1


def test_a_state_that_is_asked_for_where_nothing_is_compiled() -> None:
    """It has the same bits."""
    expected = jax.tree.map(np.asarray, build().state.params)
    trainer = build()
    with jax.disable_jit():
        found = trainer.state.params
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_numbers_of_python_in_the_optimizer(tmp_path: Path) -> None:
    """A state that an optimizer makes of them keeps a type that gives way, so that the step compiles once."""

    def init(params: Any) -> Any:
        return {"decay": 0.9, "trace": jax.tree.map(jax.numpy.zeros_like, params)}

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        trace = jax.tree.map(lambda old, grad: old * state["decay"] + grad, state["trace"], grads)
        return jax.tree.map(lambda leaf: -0.05 * leaf, trace), {**state, "trace": trace}

    class Decaying(MSETrainer):
        def init_optimizer(self, optimizer_config: Any) -> None:
            super().init_optimizer(optimizer_config)
            self.tx = optax.GradientTransformation(init, update)

    trainer = make_trainer(Decaying, logger=LoggerConfig(log_path=tmp_path), steps_per_call=2)
    trainer.train_model(make_loader(4), num_epochs=1)
    assert trainer.global_step == 4
    assert [row["function"] for row in rows_of(tmp_path, "compile")].count("train_step") == 1


def test_nothing_is_compiled_ahead_in_debug_mode(held_back: threading.Event) -> None:
    """There is a state at once, since no other thread has anything to do."""
    trainer = build(debug=True)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(trainer.progress.form))


def test_another_context_of_jax() -> None:
    """A trainer that was built with 64 bits gives its state outside of that, with the types that it was built with."""
    with jax.enable_x64(), jax.numpy_dtype_promotion("standard"):
        trainer = build(batch=jax.tree.map(lambda leaf: leaf.astype(np.float64), make_batch(8)))
        types = [leaf.dtype for leaf in jax.tree.leaves(trainer.progress.form)]
    assert [leaf.dtype for leaf in jax.tree.leaves(trainer.progress.carry)] == types
