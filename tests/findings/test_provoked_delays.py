"""Findings of trainings in which one part takes its time, on a clock that only these delays move."""

import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.findings.provoked import Delayed, found, train
from tests.trainer.delay_clock import DELAY_S, NEVER_WAITS, DelayClock
from tests.trainer.tiny import MSETrainer, make_loader
from trackside.callbacks import Callback, CallbackConfig
from trackside.clock import SYSTEM_CLOCK, ManualClock
from trackside.events import read_events
from trackside.findings import Finding, RunFacts, compile_rules
from trackside.logger import LoggerTool, LoggerToolsConfig
from trackside.profiling import TrainingProfiler
from trackside.run_layout import event_file_name
from trackside.trainer import Batch

NUM_STEPS = 24
"""With the delay, more than the second that a verdict takes."""


CLOCK = DelayClock()


class ClockedTrainer(MSETrainer):
    clock = CLOCK


def findings_of(run: Path, *args: Any, **kwargs: Any) -> dict[str, Finding]:
    """What is found in a training on the clock, whose loop never waits for the device."""
    return found(train(run, *args, **kwargs, trainer_class=ClockedTrainer, max_inflight_steps=NEVER_WAITS))


class Slow(Callback):
    """Takes its time after each step."""

    def __init__(self) -> None:
        super().__init__(CallbackConfig(every_n_steps=1))

    def on_filtered_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        CLOCK.delay()


class Saver(Callback):
    """Saves after each epoch, with a state that takes its time to gather."""

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        self.trainer.save_checkpoint()

    def state_dict(self) -> dict[str, Any]:
        CLOCK.delay()
        return {}


def test_slow_callback_dominates(tmp_path: Path) -> None:
    """A callback that takes its time is named, and the loader is not blamed."""
    findings = findings_of(tmp_path, make_loader(NUM_STEPS), callbacks=[Slow()])
    assert findings["callback_dominates"].subject == "Slow"
    assert "input_bound" not in findings


class Stalling(Callback):
    """Takes long, once."""

    def __init__(self) -> None:
        super().__init__(CallbackConfig(every_n_steps=1))

    def on_filtered_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == 50:
            CLOCK.advance(2.2)


def test_a_callback_that_stalls_now_and_then_is_named(tmp_path: Path) -> None:
    """By its class, with how long the training stood still."""
    loader = Delayed(make_loader(10) * 30, CLOCK.delay)
    finding = findings_of(tmp_path, loader, callbacks=[Stalling()])["callback_stalls"]
    assert finding.subject == "Stalling"
    assert finding.evidence["longest_stall_s"] == pytest.approx(2.2)


class LateTool(LoggerTool):
    """Begins to write when it is asked to close, and takes its time for each row."""

    def __init__(self) -> None:
        self._may_write = threading.Event()

    @property
    def finalize_timeout_s(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._may_write.set()
        return 300.0

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        self._may_write.wait(300.0)
        CLOCK.delay()


@dataclass
class LateToolConfig(LoggerToolsConfig):
    def create(self, logger: Any) -> LoggerTool:
        return LateTool()


def test_a_tool_that_the_end_waits_for_is_named(tmp_path: Path) -> None:
    """A logging tool on its own thread that has most rows still to write when the training ends."""
    loader = Delayed(make_loader(NUM_STEPS), CLOCK.delay)
    finding = findings_of(tmp_path, loader, log_every_n_steps=1, tools=[LateToolConfig()])["slow_logging_tool"]
    assert finding.subject == "LateTool"
    assert finding.evidence["num_waiting_at_end"] >= NUM_STEPS - 1
    assert finding.evidence["closing_s"] > NUM_STEPS * DELAY_S / 2
    live = [row for row in read_events(tmp_path / event_file_name(0)) if row["kind"] == "finding"]
    assert [row["subject"] for row in live if row["id"] == "slow_logging_tool"] == ["LateTool"]


def test_slow_validation_dominates(tmp_path: Path) -> None:
    """A validation that takes longer than the training is reported."""
    validation = Delayed(make_loader(2), CLOCK.delay)
    findings = findings_of(tmp_path, make_loader(3), validation, num_epochs=NUM_STEPS // 3)
    assert "validation_dominates" in findings


def test_slow_saves_dominate(tmp_path: Path) -> None:
    """Checkpoints after every few steps are reported, and not as the callback that asks for them."""
    findings = findings_of(tmp_path, make_loader(2), num_epochs=2 * NUM_STEPS, callbacks=[Saver(CallbackConfig())])
    assert findings["checkpointing_dominates"].severity == "info"  # a few seconds in all
    assert "callback_dominates" not in findings


def test_expensive_log_rows_are_too_many(tmp_path: Path) -> None:
    """Rows of every step that take long to log are reported, with how often they are written."""

    def postprocess(metrics: dict[str, float]) -> dict[str, float]:
        CLOCK.delay()
        return metrics

    findings = findings_of(tmp_path, make_loader(NUM_STEPS), log_every_n_steps=1, postprocess=postprocess)
    assert findings["logging_too_often"].evidence["log_every_n_steps"] == 1


def test_garbage_collection_is_reported(tmp_path: Path) -> None:
    """A loader that collects garbage at each batch, which takes its time, is reported as that."""

    def take_time(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            CLOCK.delay()

    gc.callbacks.append(take_time)
    try:
        findings = findings_of(tmp_path, Delayed(make_loader(NUM_STEPS), lambda: gc.collect(0)))
    finally:
        gc.callbacks.remove(take_time)
    assert "garbage_collection" in findings


def test_loader_that_is_slow_to_start_idles_after_each_epoch(tmp_path: Path) -> None:
    """A loader that takes long to its first batch is found in the pauses between epochs."""

    class SlowToStart(Delayed):
        def __iter__(self) -> Iterator[Batch]:
            CLOCK.advance(10 * DELAY_S)
            return super().__iter__()

    loader = SlowToStart(make_loader(5), CLOCK.delay)
    finding = findings_of(tmp_path, loader, num_epochs=5)["idle_after_epoch"]
    assert finding.evidence["num_epochs"] == 4
    assert finding.evidence["idle_after_epoch_s"] == pytest.approx(10 * DELAY_S, rel=0.1)
    assert finding.evidence["host_is_in"] == "waiting for data"
    assert "SlowToStart" in finding.advice


class ShiftedClock:
    """The machine's clock, which delays move forward without taking any time."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def now(self) -> float:
        return SYSTEM_CLOCK.now() + self.shift_s

    def timestamp(self) -> float:
        return SYSTEM_CLOCK.timestamp() + self.shift_s


@pytest.mark.usefixtures("fresh_compiles")
def test_a_compile_that_is_a_small_part_of_the_run_is_not_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the limit may be, as long as the run is much longer than its compiles."""
    monkeypatch.setattr(compile_rules, "MIN_COMPILE_S", 0.0)
    clock = ShiftedClock()
    trainer_class = type("ShiftedTrainer", (MSETrainer,), {"clock": clock})

    def take_an_hour() -> None:
        clock.shift_s += 3600.0

    facts = train(tmp_path, Delayed(make_loader(NUM_STEPS), take_an_hour), trainer_class=trainer_class)
    assert facts.ledger is not None
    assert facts.ledger.parts["compile"] > 0
    assert "slow_compile" not in found(facts)


def timed_loop(data_s: float, loss_s: float, rest_s: float) -> set[str]:
    """What is found in a hand-written loop, with timers, whose parts take their time."""
    clock = ManualClock()
    profiler = TrainingProfiler(log_to_wandb=False, clock=clock)
    for _ in range(20):
        with profiler.time("data_batch_production"):
            clock.advance(data_s)
        with profiler.time("make_step_total"):
            with profiler.time("loss_fn_computation"):
                clock.advance(loss_s)
            clock.advance(rest_s)
    return set(found(RunFacts(timers=profiler.get_summary())))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"data_s": 0.02, "loss_s": 0.004, "rest_s": 0.001}, {"high_data_batch_production"}),
        ({"data_s": 0.001, "loss_s": 0.02, "rest_s": 0.001}, {"high_loss_fn_computation"}),
        ({"data_s": 0.001, "loss_s": 0.002, "rest_s": 0.02}, {"high_make_step_total"}),
        ({"data_s": 0.01, "loss_s": 0.02, "rest_s": 0.012}, set()),
    ],
    ids=["data", "loss", "step", "none"],
)
def test_timers_of_a_loop_show_what_takes_long(parts: dict[str, float], expected: set[str]) -> None:
    """The three of the guide, each where it is so, and none where nothing stands out."""
    assert timed_loop(**parts) == expected
