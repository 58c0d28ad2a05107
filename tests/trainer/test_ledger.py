"""Where the time of a training went, as its totals, its rows and its warnings say.

That a delay is found in its part alone is in `test_injected_delays`.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.delay_clock import DELAY_S, NEVER_WAITS, DelayClock
from tests.trainer.tiny import MSETrainer, make_batch, make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig, ModelCheckpoint
from trackside.logger import LoggerConfig
from trackside.measured_run import step_meter
from trackside.profiling import timers
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.trainer import Batch

NUM_STEPS = 30
CLOCK = DelayClock()


class ClockedTrainer(MSETrainer):
    clock = CLOCK


class Slow(Callback):
    """Takes its time in a hook, or when its state is saved.

    Args:
        where: `step`, `validation` or `save`.
    """

    def __init__(self, where: str = ""):
        super().__init__(CallbackConfig())
        self._where = where

    def _delay_in(self, where: str) -> None:
        if where == self._where:
            CLOCK.delay()

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self._delay_in("step")

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        self._delay_in("validation")

    def state_dict(self) -> dict[str, Any]:
        self._delay_in("save")
        return {}


def train(tmp_path: Path | None = None, trainer_class: type[MSETrainer] = MSETrainer, **kwargs: Any) -> LedgerTotals:
    """Where the time of a training went; with a folder, a row of each step is logged to it."""
    trainer = make_trainer(
        trainer_class,
        logger=None if tmp_path is None else LoggerConfig(log_path=tmp_path, log_every_n_steps=1),
        max_inflight_steps=2 if trainer_class is MSETrainer else NEVER_WAITS,
    )
    trainer.fit(make_loader(NUM_STEPS), **kwargs)
    return trainer.ledger_totals


def test_parts_sum_to_the_wall() -> None:
    """Every moment counts for exactly one part."""
    totals = train(val_loader=make_loader(1), num_epochs=2)
    assert sum(totals.parts.values()) == pytest.approx(totals.wall_s)
    assert totals.num_steps == 2 * NUM_STEPS
    assert totals.num_samples == 2 * NUM_STEPS * 8
    assert min(totals.parts.values()) >= 0


class ScaledTrainer(MSETrainer):
    """Batches are dicts, whose first leaf is a number."""

    @staticmethod
    def batch_to_input(batch: Any) -> Any:
        return batch["x"]

    def loss_function(self, params: Any, apply_fn: Any, batch: Any, rng: Any, train: bool = True) -> Any:
        scaled = Batch(batch["x"], batch["y"] * batch["scale"])
        return super().loss_function(params, apply_fn, scaled, rng, train)


def test_samples_of_batches_that_begin_with_a_number() -> None:
    """Examples are counted where arrays have a length, whatever else is in a batch."""
    loader = [{"scale": np.float32(1), "x": batch.inputs, "y": batch.targets} for batch in make_loader(NUM_STEPS)]
    trainer = make_trainer(ScaledTrainer, batch=loader[0])
    trainer.fit(loader)
    assert trainer.ledger_totals.num_samples == NUM_STEPS * 8


class AnyTrainer(MSETrainer):
    """Takes its batches as dicts and as tuples."""

    @staticmethod
    def batch_to_input(batch: Any) -> Any:
        return batch["x"] if isinstance(batch, dict) else batch[0]

    def loss_function(self, params: Any, apply_fn: Any, batch: Any, rng: Any, train: bool = True) -> Any:
        inputs, targets = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        return super().loss_function(params, apply_fn, Batch(inputs, targets), rng, train)


@pytest.mark.parametrize("how", [{"steps_per_call": 1}, {"steps_per_call": 2}, {"debug": True}])
def test_samples_of_batches_of_several_forms(how: dict[str, Any]) -> None:
    """The examples of each batch are counted, whatever its size, and where nothing is compiled its structure."""
    batches = [make_batch(size, size) for size in (8, 5, 3, 2)]
    loader: list[Any] = [{"x": batch.inputs, "y": batch.targets} for batch in batches]
    if "debug" in how:
        loader[2:] = [(batch.inputs, batch.targets) for batch in batches[2:]]
    trainer = make_trainer(AnyTrainer, batch=loader[0], **how)
    trainer.fit(loader)
    assert trainer.ledger_totals.num_samples == 18


class SlowToTrace(ClockedTrainer):
    """Takes its time to trace the loss, which happens in the first call of the step."""

    def loss_function(self, *args: Any, **kwargs: Any) -> Any:
        CLOCK.delay()
        return super().loss_function(*args, **kwargs)


def test_compile_is_a_part_of_its_own() -> None:
    """Tracing counts as compiling, once for the form of the metrics and the step, and not as dispatch or set-up."""
    totals = train(trainer_class=SlowToTrace)
    assert totals.parts["compile"] == pytest.approx(DELAY_S)
    assert totals.parts["dispatch"] == pytest.approx(0.0)


def test_callback_inside_validation_counts_for_itself() -> None:
    """A hook that is called by validation is the callback's time, and no part of validation's."""
    totals = train(trainer_class=ClockedTrainer, val_loader=make_loader(1), callbacks=[Slow("validation")])
    assert totals.parts["callback/Slow"] == pytest.approx(DELAY_S)
    assert totals.parts["validation"] == pytest.approx(0.0)


def test_checkpoint_counts_as_checkpointing(tmp_path: Path) -> None:
    """What a checkpoint takes is no part of the callback that asks for it, nor of the one whose state is saved."""
    keeper = ModelCheckpoint(CheckpointConfig(dirpath=str(tmp_path / "checkpoints"), every_n_steps=NUM_STEPS // 2))
    totals = train(trainer_class=ClockedTrainer, callbacks=[keeper, Slow("save")])
    assert totals.parts["checkpointing"] == pytest.approx(2 * DELAY_S)
    assert totals.wall_s == pytest.approx(2 * DELAY_S)


def test_totals_and_rows_are_logged(tmp_path: Path) -> None:
    """The event file has the totals, and a row of the epoch's time for people, with throughput."""
    totals = train(tmp_path)
    row = rows_of(tmp_path, "ledger")[-1]
    assert LedgerTotals.from_dict({name: row[name] for name in totals.to_dict()}) == totals
    values = rows_of(tmp_path, mode="time")[-1]["values"]
    assert values["samples_per_second"] == pytest.approx(8 * values["steps_per_second"])
    parts = [value for name, value in values.items() if name.endswith("_ms")]
    assert sum(parts) == pytest.approx(1e3 / values["steps_per_second"])


class Interrupted(Callback):
    """Somebody presses Ctrl-C in the middle of the epoch."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == NUM_STEPS // 2:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("default_signals")
def test_interrupted_training_logs_the_time_of_its_last_steps(tmp_path: Path) -> None:
    """A training that ends within an epoch has a row of where the time went, up to its last step."""
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[Interrupted(CallbackConfig())])
    (row,) = rows_of(tmp_path, "leg_end")
    assert rows_of(tmp_path, mode="time")[-1]["step"] == row["step"] < NUM_STEPS


class InterruptedAtTheEnd(list[Batch]):
    """Somebody presses Ctrl-C while the last batch of an epoch is read."""

    def __iter__(self) -> Iterator[Batch]:
        yield from self[:-1]
        signal.raise_signal(signal.SIGINT)
        yield self[-1]


@pytest.mark.usefixtures("default_signals")
def test_first_step_of_a_leg_that_begins_with_the_end_of_an_epoch(tmp_path: Path) -> None:
    """An epoch whose steps were all made by the leg before ends first, and the first step of this leg has its time."""
    config = {"logger": LoggerConfig(log_path=tmp_path), "callbacks": [CheckpointConfig()], "resume": "auto"}
    with pytest.raises(KeyboardInterrupt):
        make_trainer(**config).fit(InterruptedAtTheEnd(make_loader(3)), num_epochs=2)
    make_trainer(**config).fit(make_loader(3), num_epochs=2)
    assert [row["step"] for row in rows_of(tmp_path, "first_step")] == [1, 4]
    assert len(rows_of(tmp_path, mode="train_epoch")) == 2


def test_timers_of_the_users_code_are_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process's own profiler logs during a training is in its event file, and not after it."""
    monkeypatch.setattr("trackside.profiling.timers.training_profiler._global", None)

    class Timed(Slow):
        def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
            with timers.get_profiler().time("augmentation"):
                pass
            timers.get_profiler().log_metrics(self.trainer.global_step)

    train(tmp_path, callbacks=[Timed()])
    (row,) = rows_of(tmp_path, "profiling")
    assert row["operations"]["augmentation"]["count"] == 1
    assert timers.get_profiler().events is None


def test_what_is_severe_is_reported_once_during_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While there is time to do something about it, and not again each time that it is looked at."""
    monkeypatch.setattr(step_meter, "SAVE_EVERY_S", 0.0)
    train(tmp_path, trainer_class=ClockedTrainer, callbacks=[Slow("step")])
    assert len(rows_of(tmp_path, "ledger")) > NUM_STEPS // 2
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len([record for record in warnings if "the callback Slow" in record.getMessage()]) == 1
