"""The training loop: its order, its indices, and what it leaves behind."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.delay_clock import DELAY_S, DelayClock
from tests.trainer.tiny import MSETrainer, make_batch, make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig
from trackside.errors import ConfigError, DataError
from trackside.logger import LoggerConfig
from trackside.trainer import Batch, ParallelConfig


class RecordingTrainer(MSETrainer):
    """Writes down its hooks."""

    def on_training_start(self) -> None:
        self.calls.append("training_start")

    def on_training_end(self) -> None:
        self.calls.append("training_end")

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.calls.append(f"epoch_start {epoch_idx}")

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        self.calls.append(f"epoch_end {epoch_idx}")
        train_metrics["from_hook"] = float(epoch_idx)

    def on_validation_epoch_start(self, epoch_idx: int, step_idx: int) -> None:
        self.calls.append(f"val_start {epoch_idx} {step_idx}")

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        self.calls.append(f"val_end {epoch_idx} {step_idx}")
        eval_metrics["from_hook"] = float(step_idx)

    def on_test_epoch_start(self, epoch_idx: int) -> None:
        self.calls.append(f"test_start {epoch_idx}")

    def on_test_epoch_end(self, test_metrics: dict[str, Any], epoch_idx: int) -> None:
        self.calls.append(f"test_end {epoch_idx}")
        test_metrics["from_hook"] = 7.0


def test_order_of_hooks() -> None:
    """Hooks come in the documented order, with indices from 1."""
    trainer = make_trainer(RecordingTrainer, check_val_every_n_steps=2)
    trainer.train_model(make_loader(3), make_loader(1), make_loader(1), num_epochs=2)
    assert trainer.calls == [
        "training_start",
        "epoch_start 1",
        "val_start 1 2",
        "val_end 1 2",
        "epoch_end 1",
        "val_start 1 3",
        "val_end 1 3",
        "epoch_start 2",
        "val_start 2 4",
        "val_end 2 4",
        "epoch_end 2",
        "val_start 2 6",
        "val_end 2 6",
        "training_end",
        "test_start 2",
        "test_end 2",
    ]


def test_results_by_epoch_and_step() -> None:
    """Each validation's metrics are returned under its epoch and its step; one at both serves for both."""
    trainer = make_trainer(check_val_every_n_steps=2)
    results = trainer.train_model(make_loader(2), make_loader(1), num_epochs=2)
    assert results.keys() == {"val_epoch_1", "val_step_2", "val_epoch_2", "val_step_4", "train", "val"}
    assert results["val_epoch_1"] == results["val_step_2"]


def test_metrics_added_by_hooks_are_logged(run_config: LoggerConfig) -> None:
    """What a hook adds to the metrics of an epoch is in that epoch's row."""
    trainer = make_trainer(RecordingTrainer, logger=run_config)
    results = trainer.train_model(make_loader(2), make_loader(1), make_loader(1), num_epochs=1)
    logged = {mode: rows_of(run_config.log_path, mode=mode)[0]["values"] for mode in ("train_epoch", "val", "test")}
    assert {mode: values["from_hook"] for mode, values in logged.items()} == {
        "train_epoch": 1.0,
        "val": 2.0,
        "test": 7.0,
    }
    assert results["val"]["from_hook"] == 2.0


def test_training_learns() -> None:
    """Gradient descent on a linear problem finds the solution."""
    trainer = make_trainer()
    results = trainer.train_model(make_loader(50), make_loader(2, seed=100), num_epochs=2)
    assert results["val"]["loss"] < 1e-3
    assert trainer.global_step == 100
    assert int(trainer.state.step) == 100


def test_rows_hold_the_mean_since_the_last_row(tmp_path: Path) -> None:
    """Logging every 4 steps gives the mean of the rows that logging every step gives."""
    rows = {}
    for every in (1, 4):
        log_path = tmp_path / str(every)
        trainer = make_trainer(logger=LoggerConfig(log_path=log_path, log_every_n_steps=every))
        trainer.train_model(make_loader(8), num_epochs=1)
        rows[every] = rows_of(log_path, mode="train")
    assert [row["step"] for row in rows[1]] == list(range(1, 9))
    assert [row["step"] for row in rows[4]] == [4, 8]
    losses = [row["values"]["loss_mean"] for row in rows[1]]
    assert rows[4][0]["values"]["loss_mean"] == pytest.approx(np.mean(losses[:4]), rel=1e-6)
    assert rows[4][1]["values"]["loss_mean"] == pytest.approx(np.mean(losses[4:]), rel=1e-6)


def test_rows_reach_over_epochs(tmp_path: Path) -> None:
    """A log interval that an epoch's end cuts is logged whole, and the epoch's own row has its steps only."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path, log_every_n_steps=4), lr=0.0)
    loader = make_loader(3)
    trainer.train_model(loader, num_epochs=2)
    losses = [float(np.mean((batch.targets - trainer.predict([batch])) ** 2)) for batch in loader]
    (row,) = rows_of(tmp_path, mode="train")
    assert row["step"] == 4
    assert row["values"]["loss_mean"] == pytest.approx(np.mean([*losses, losses[0]]), rel=1e-5)
    epochs = rows_of(tmp_path, mode="train_epoch")
    assert [epoch["values"]["loss_mean"] for epoch in epochs] == pytest.approx([np.mean(losses)] * 2, rel=1e-5)


def test_log_rows_carry_epoch_and_step_time(run_config: LoggerConfig) -> None:
    """Each row has the epoch and the seconds per step, of which there are as many as the loader takes."""
    clock = DelayClock()

    class SlowLoader(list[Batch]):
        def __iter__(self) -> Iterator[Batch]:
            for batch in super().__iter__():
                clock.delay()
                yield batch

    trainer = make_trainer(type("ClockedTrainer", (MSETrainer,), {"clock": clock}), logger=run_config)
    trainer.train_model(SlowLoader(make_loader(4)), num_epochs=2)
    rows = rows_of(run_config.log_path, mode="train")
    assert [row["values"]["epoch"] for row in rows] == [1] * 4 + [2] * 4
    assert sum(row["values"]["step_time"] for row in rows) == pytest.approx(8 * DELAY_S)


def test_step_compiles_once(run_config: LoggerConfig) -> None:
    """Logging, resetting metrics, validating and calling again do not compile the step a second time."""
    trainer = make_trainer(logger=run_config)
    trainer.train_model(make_loader(4), make_loader(1), num_epochs=2)
    trainer.train_model(make_loader(4), make_loader(1), num_epochs=4)
    assert [row["function"] for row in rows_of(run_config.log_path, "compile")].count("train_step") == 1


@pytest.mark.parametrize("has_length", [True, False])
def test_leg_tells_how_far_it_goes(tmp_path: Path, has_length: bool) -> None:
    """Whoever reads the run while it goes on knows how much there is to come, if anybody does."""

    class WithoutLength:
        def __iter__(self) -> Iterator[Batch]:
            return iter(make_loader(3))

    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path))
    trainer.train_model(make_loader(3) if has_length else WithoutLength(), num_epochs=2)
    assert [row["goal"] for row in rows_of(tmp_path, "leg")] == [6 if has_length else None]


def test_totals_count_from_step_zero() -> None:
    """The same call does nothing once its goal is reached, and a larger goal goes on from there."""
    trainer = make_trainer(RecordingTrainer)
    loader = make_loader(3)
    trainer.train_model(loader, num_epochs=2)
    trainer.train_model(loader, num_epochs=2)
    assert trainer.global_step == 6
    trainer.train_model(loader, num_epochs=3)
    assert trainer.global_step == 9
    assert [call for call in trainer.calls if call.startswith("epoch_start")] == [
        "epoch_start 1",
        "epoch_start 2",
        "epoch_start 3",
    ]


def test_going_on_inside_an_epoch_is_the_same_as_not_stopping() -> None:
    """Training in two calls gives bit-identical parameters to training in one."""
    loader = make_loader(4)
    whole, halves = make_trainer(), make_trainer()
    whole.train_model(loader, num_train_steps=6)
    halves.train_model(loader, num_train_steps=3)
    halves.train_model(loader, num_train_steps=6)
    jax.tree.map(np.testing.assert_array_equal, whole.state.params, halves.state.params)
    assert halves.epoch == 2


def test_steps_per_epoch_goes_through_the_loader_as_a_stream() -> None:
    """With steps_per_epoch, epochs go on where the last one stopped, and start again where the loader ends."""
    seen: list[int] = []

    class Numbered:
        def __iter__(self) -> Iterator[Batch]:
            for number in range(3):
                seen.append(number)
                yield make_batch(8, seed=number)

    trainer = make_trainer(RecordingTrainer)
    trainer.train_model(Numbered(), num_epochs=2, steps_per_epoch=2)
    assert seen == [0, 1, 2, 0]
    assert "epoch_end 2" in trainer.calls


def test_steps_per_epoch_may_be_the_loaders_length() -> None:
    """An epoch that ends with the loader is followed by one that starts it again."""
    trainer = make_trainer()
    trainer.train_model(make_loader(3), num_epochs=3, steps_per_epoch=3)
    assert trainer.global_step == 9


def test_loader_without_length_ends_the_epoch() -> None:
    """An epoch over a loader of unknown length is one pass over it."""

    class Unsized:
        def __iter__(self) -> Iterator[Batch]:
            return iter(make_loader(3))

    trainer = make_trainer()
    trainer.train_model(Unsized(), num_epochs=2)
    assert trainer.global_step == 6


def test_loader_position_is_the_trainers() -> None:
    """A loader is never read ahead of the steps that were made."""

    class Counting:
        taken = 0

        def __iter__(self) -> Iterator[Batch]:
            for batch in make_loader(10):
                Counting.taken += 1
                yield batch

    trainer = make_trainer()
    trainer.train_model(Counting(), num_train_steps=4)
    assert Counting.taken == 4


@pytest.mark.parametrize("num_buffers", [1, 2, 3])
def test_loader_that_reuses_its_buffers(num_buffers: int) -> None:
    """Training on a loader that refills its arrays gives the result of training on fresh arrays."""
    fresh = make_loader(20, size=64)

    class Reusing:
        def __iter__(self) -> Iterator[Batch]:
            buffers = [make_batch(64) for _ in range(num_buffers)]
            for index, batch in enumerate(fresh):
                buffer = buffers[index % num_buffers]
                buffer.inputs[:], buffer.targets[:] = batch.inputs, batch.targets
                yield buffer

    expected, got = make_trainer(batch=fresh[0]), make_trainer(batch=fresh[0])
    expected.train_model(fresh, num_epochs=1)
    got.train_model(Reusing(), num_epochs=1)
    jax.tree.map(np.testing.assert_array_equal, expected.state.params, got.state.params)


def test_jax_arrays_as_batches() -> None:
    """Batches of jax arrays train as numpy batches do."""
    loader = make_loader(3)
    on_device = [jax.tree.map(jax.numpy.asarray, batch) for batch in loader]
    expected, got = make_trainer(), make_trainer()
    expected.train_model(loader, num_epochs=1)
    got.train_model(on_device, num_epochs=1)
    jax.tree.map(np.testing.assert_array_equal, expected.state.params, got.state.params)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_non_finite_step_is_named(poison: float, run_config: LoggerConfig, caplog: pytest.LogCaptureFixture) -> None:
    """Training stops at a step whose loss is NaN or Inf, names exactly that step, and the run has status nan."""
    loader = make_loader(10)
    loader[6].inputs[0, 0] = poison
    trainer = make_trainer(RecordingTrainer, logger=run_config)
    with caplog.at_level(logging.ERROR):
        trainer.train_model(loader, make_loader(1), make_loader(1), num_epochs=3)
    assert "step 7" in caplog.text
    assert [row["step"] for row in rows_of(run_config.log_path, "non_finite")] == [7]
    assert rows_of(run_config.log_path, "status")[-1]["status"] == "nan"
    assert trainer.global_step < 10
    assert trainer.calls[-1] == "training_end"
    assert trainer.logger.found_nans


def test_non_finite_gradient_with_finite_loss_is_found(run_config: LoggerConfig) -> None:
    """A step with a clean loss and poisoned gradients stops training too."""

    class PoisonedGradient(MSETrainer):
        def loss_function(self, params: Any, apply_fn: Any, batch: Any, rng: Any, train: bool = True) -> Any:
            loss, aux = super().loss_function(params, apply_fn, batch, rng, train)
            # The square root's slope at 0 is infinite, and 0 * inf is NaN.
            return loss + 0 * jax.numpy.sqrt(params["Dense_0"]["bias"] * 0).sum(), aux

    trainer = make_trainer(PoisonedGradient, logger=run_config)
    trainer.train_model(make_loader(5), num_epochs=1)
    assert [row["step"] for row in rows_of(run_config.log_path, "non_finite")] == [1]


def test_non_finite_steps_are_let_through_on_request(run_config: LoggerConfig) -> None:
    """With check_for_nan=False training goes on."""
    loader = make_loader(3)
    loader[0].inputs[:] = np.nan
    trainer = make_trainer(logger=run_config, check_for_nan=False)
    trainer.train_model(loader, num_epochs=1)
    assert trainer.global_step == 3
    assert rows_of(run_config.log_path, "status")[-1]["status"] == "success"


def test_bad_batches_can_be_skipped(run_config: LoggerConfig) -> None:
    """A batch that is not finite is left out as if it had not been there, and counted."""
    loader = make_loader(5)
    good = [batch for index, batch in enumerate(loader) if index != 2]
    expected = make_trainer()
    expected.train_model(good, num_epochs=1)
    loader[2].inputs[:] = np.nan
    trainer = make_trainer(logger=run_config, skip_bad_batches=True)
    results = trainer.train_model(loader, num_epochs=1)
    jax.tree.map(np.testing.assert_array_equal, expected.state.params, trainer.state.params)
    assert trainer.status == "success"
    assert trainer.global_step == 5
    assert np.isfinite(results["train"]["loss_mean"])
    assert [row["num_batches"] for row in rows_of(run_config.log_path, "skipped")] == [1]


@dataclass
class FailingConfig(CallbackConfig):
    """A callback that fails at the end of epoch 1."""

    def create(self, trainer: Any, data_module: Any = None) -> "Failing":
        return Failing(self, trainer, data_module)


class Failing(Callback):
    error: BaseException = RuntimeError("broken")
    closed_with = ""

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        raise self.error

    def finalize(self, status: str) -> None:
        type(self).closed_with = status


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("broken"), "error"), (KeyboardInterrupt(), "interrupted")])
def test_everything_is_closed_with_a_truthful_status(
    error: BaseException, status: str, run_config: LoggerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in the loop, Ctrl-C included, closes logger and callbacks before it goes on, and loses no row."""
    monkeypatch.setattr(Failing, "error", error)
    handlers = list(logging.getLogger("trackside").handlers)
    trainer = make_trainer(logger=run_config, callbacks=[FailingConfig()])
    with pytest.raises(type(error)):
        trainer.train_model(make_loader(3), num_epochs=2)
    assert rows_of(run_config.log_path, "status")[-1]["status"] == status
    assert Failing.closed_with == status
    assert [row["step"] for row in rows_of(run_config.log_path, mode="train")] == [1, 2, 3]
    assert logging.getLogger("trackside").handlers == handlers


def test_rows_in_flight_survive_a_failing_loader(run_config: LoggerConfig) -> None:
    """Steps that were made before the loader failed are logged."""

    def failing() -> Iterator[Batch]:
        yield from make_loader(5)
        raise OSError("disk gone")

    trainer = make_trainer(logger=run_config)
    with pytest.raises(OSError, match="disk gone"):
        trainer.train_model(failing(), num_epochs=1)
    assert [row["step"] for row in rows_of(run_config.log_path, mode="train")] == [1, 2, 3, 4, 5]


def test_rows_in_flight_survive_a_failing_call(run_config: LoggerConfig) -> None:
    """Steps that were made before a call failed are logged, also the one that had just completed."""
    trainer = make_trainer(logger=run_config)
    with pytest.raises(Exception, match="kernel"):
        trainer.train_model(
            [*make_loader(5), Batch(np.ones((8, 3), np.float32), np.ones((8, 1), np.float32))], num_epochs=1
        )
    assert [row["step"] for row in rows_of(run_config.log_path, mode="train")] == [1, 2, 3, 4, 5]


def test_no_validation_of_a_state_that_is_not_finite() -> None:
    """A step that is not finite, found at a validation, ends the training without that validation."""
    loader = make_loader(4)
    loader[1].inputs[:] = np.nan
    trainer = make_trainer(RecordingTrainer, check_val_every_n_steps=2)
    trainer.train_model(loader, make_loader(1), num_epochs=1)
    assert not [call for call in trainer.calls if call.startswith("val_")]


class StepRecorder(Callback):
    """Notes the steps it hears of."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.steps: list[tuple[int, int, float]] = []

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.steps.append((epoch_idx, step_idx, step_metrics["loss"]))


@dataclass
class StepRecorderConfig(CallbackConfig):
    """Builds a StepRecorder."""

    def create(self, trainer: Any, data_module: Any = None) -> StepRecorder:
        return StepRecorder(self, trainer, data_module)


def test_callbacks_hear_of_each_step(run_config: LoggerConfig) -> None:
    """A step hook is called once per step, in order, with that step's own metrics."""
    trainer = make_trainer(logger=run_config, callbacks=[StepRecorderConfig()])
    trainer.train_model(make_loader(3), num_epochs=2)
    steps = trainer.callbacks[0].steps
    assert [(epoch, step) for epoch, step, _ in steps] == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]
    logged = [row["values"]["loss_mean"] for row in rows_of(run_config.log_path, mode="train")]
    assert [loss for *_, loss in steps] == pytest.approx(logged, rel=1e-6)


@pytest.mark.parametrize("arguments", [{}, {"num_epochs": 1, "num_train_steps": 1}])
def test_one_of_epochs_and_steps(arguments: dict[str, int]) -> None:
    """Both or neither of num_epochs and num_train_steps is an error that names them."""
    with pytest.raises(ConfigError, match=r"num_epochs=.*num_train_steps="):
        make_trainer().train_model(make_loader(1), **arguments)


@pytest.mark.parametrize("arguments", [{"num_epochs": 0}, {"num_train_steps": -3}, {"num_epochs": 1.5}])
def test_length_is_positive(arguments: dict[str, Any]) -> None:
    """A length that is not a positive whole number is an error that names the argument and the value."""
    ((name, value),) = arguments.items()
    with pytest.raises(ConfigError, match=f"{name}.*{value}"):
        make_trainer().train_model(make_loader(1), **arguments)


def test_empty_loader() -> None:
    """A loader without batches is an error before training starts."""
    trainer = make_trainer(RecordingTrainer)
    with pytest.raises(DataError, match="train_loader"):
        trainer.train_model([], num_epochs=1)
    assert trainer.calls == []


def test_exhausted_iterator() -> None:
    """A second epoch over an iterator that has ended is an error that says so."""
    trainer = make_trainer()
    with pytest.raises(DataError, match="only once"):
        trainer.train_model(iter(make_loader(2)), num_epochs=2)
    assert trainer.global_step == 2


def test_indivisible_batch_on_a_mesh() -> None:
    """A batch that the mesh cannot split is an error with both numbers, before any step is made."""
    trainer = make_trainer(parallel=ParallelConfig())
    with pytest.raises(DataError, match=r"12 examples.*8 devices"):
        trainer.train_model(make_loader(1, size=12), num_epochs=1)
    assert trainer.global_step == 0


def test_ragged_last_batch_on_a_mesh_is_named() -> None:
    """So is a smaller last batch, later on."""
    trainer = make_trainer(parallel=ParallelConfig())
    with pytest.raises(DataError, match=r"4 examples.*8 devices"):
        trainer.train_model([*make_loader(2), make_batch(4)], num_epochs=1)


def test_batches_of_another_structure() -> None:
    """Batches that differ in structure from the example batch are named before the first step."""
    with pytest.raises(DataError, match="structure"):
        make_trainer().train_model([(1, 2)], num_epochs=1)
