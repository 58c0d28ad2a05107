"""The user's code of a training step is traced once, and the program of the first call is made from that trace."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.tiny import MSETrainer, make_loader, make_trainer, rows_of
from trackside.logger import LoggerConfig


class Counting(MSETrainer):
    """Counts how often its code is traced for training, and has a factor that the code depends on."""

    num_traces = 0
    factor = 1.0

    def loss_function(self, params, apply_fn, batch, rng, train=True):
        self.num_traces += train
        loss, rest = super().loss_function(params, apply_fn, batch, rng, train=train)
        return loss * self.factor, rest


class Changing(Counting):
    """Changes what its code does before the first step."""

    def on_training_start(self) -> None:
        self.factor = 0.0


class Reading(MSETrainer):
    """Has a step of its own that logs how many steps came before in the row."""

    def create_training_step_function(self) -> Any:
        step = super().create_training_step_function()

        def own_step(state: Any, batch: Any, metrics: Any) -> Any:
            num_before = metrics.num_steps
            loss = jnp.mean((state.apply_fn({"params": state.params}, batch.inputs) - batch.targets) ** 2)
            state, _ = step(state, batch, _Ignored())
            return state, metrics.update({"loss": loss, "before": {"value": num_before, "log_modes": ["single"]}})

        return own_step


class _Ignored:
    """Metrics that nobody wants."""

    def update(self, *args: Any, **kwargs: Any) -> "_Ignored":
        return self


class Scaling(MSETrainer):
    """Has a step of its own that looks at the number of steps after its own was counted."""

    def create_training_step_function(self) -> Any:
        step = super().create_training_step_function()

        def own_step(state: Any, batch: Any, metrics: Any) -> Any:
            state, metrics = step(state, batch, metrics)
            scale = 1 / (1 + jnp.asarray(metrics.num_steps, jnp.float32))
            return state.replace(params=jax.tree.map(lambda leaf: leaf * scale, state.params)), metrics

        return own_step


class Discarding(MSETrainer):
    """Has a step of its own whose metrics are those of before."""

    def create_training_step_function(self) -> Any:
        step = super().create_training_step_function()
        return lambda state, batch, metrics: (step(state, batch, metrics)[0], metrics)


def weights(trainer: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state.params)]


def logged(run: Path, kind: type, steps_per_call: int) -> list[dict[str, float]]:
    """The rows of a training of eight steps, one for four steps."""
    logger = LoggerConfig(log_path=run, log_every_n_steps=4)
    trainer = make_trainer(kind, logger=logger, steps_per_call=steps_per_call)
    trainer.train_model(make_loader(8), num_epochs=1)
    return [row["values"] for row in rows_of(run, "metrics") if row["mode"] == "train"]


@pytest.mark.parametrize("steps_per_call", [1, 2, "auto"])
def test_code_of_the_user_is_traced_once(steps_per_call: Any) -> None:
    """To learn the metrics, and not once more for the program."""
    trainer = make_trainer(Counting, steps_per_call=steps_per_call)
    trainer.train_model(make_loader(4), make_loader(2), num_epochs=2)
    assert trainer.num_traces == 1


@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_what_hooks_change_is_traced(steps_per_call: int) -> None:
    """A hook before the first step decides what the step computes, although the metrics were learned before it."""
    trainer = make_trainer(Changing, steps_per_call=steps_per_call)
    before = weights(trainer)
    trainer.train_model(make_loader(4), num_epochs=1)
    assert trainer.num_traces == 2
    for old, new in zip(before, weights(trainer), strict=True):
        np.testing.assert_array_equal(new, old)


def test_what_changed_since_the_metrics_were_learned_is_traced() -> None:
    """Metrics that were asked for before training say nothing about what the code does in training."""
    trainer = make_trainer(Counting, steps_per_call=1)
    before = weights(trainer)
    trainer.init_train_metrics()
    trainer.factor = 0.0
    trainer.train_model(make_loader(4), num_epochs=1)
    for old, new in zip(before, weights(trainer), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_steps_before_are_counted_for_a_step_that_reads_them(tmp_path: Path, steps_per_call: int) -> None:
    """They are those of the row, and not those that were known when it was traced."""
    rows = logged(tmp_path, Reading, steps_per_call)
    assert [values["before_single"] for values in rows if "before_single" in values] == [3.0, 3.0]


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_a_step_is_counted_when_it_has_reported(steps_per_call: int) -> None:
    """After `metrics.update`, the step itself is one of those that a step of the user's sees, however it was traced."""
    with_hook = type("WithHook", (Scaling,), {"on_training_start": lambda self: None})
    found = []
    for kind in (Scaling, with_hook):  # with a hook before the first step, the step is traced once more
        trainer = make_trainer(kind, steps_per_call=steps_per_call)
        trainer.train_model(make_loader(4), num_epochs=1)
        found.append(weights(trainer))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_metrics_that_are_thrown_away_are_not_logged(tmp_path: Path, steps_per_call: int) -> None:
    """What counts is what the step gives back."""
    assert any("loss_mean" in values for values in logged(tmp_path / "kept", MSETrainer, steps_per_call))
    assert not any("loss_mean" in values for values in logged(tmp_path / "thrown", Discarding, steps_per_call))


@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_nothing_of_a_trace_is_kept(steps_per_call: int) -> None:
    """JAX's own check for values that outlive their trace finds none."""
    with jax.checking_leaks():
        trainer = make_trainer(MSETrainer, steps_per_call=steps_per_call)
        trainer.train_model(make_loader(3), num_epochs=1)
    assert trainer.global_step == 3
