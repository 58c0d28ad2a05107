"""What the ledger costs, and whether what it says is true, which `benchmarks.ledger_truth` measures.

The trainer with its ledger, and with a loop that measures nothing: long trainings less short ones, in turn. Without the
ledger, the loop reads the clock twice per step and not five times, for what is no part of the ledger (what
compilation takes, and the progress bar); it does not ask whether the device is idle, keeps no account of its calls, and
samples no completions. The status is 1 where the ledger is not true.
"""

import contextlib
import dataclasses
import io
import logging
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.idle_callbacks import LONG_STEPS, SHORT_STEPS
from benchmarks.interleaved import race
from benchmarks.ledger_truth import measure_truth
from benchmarks.loop_overhead import MLP, MSETrainer, WideMLP, make_batches, make_trainer
from trackside.measured_run.interrupts import Interrupts, StopRequest
from trackside.measured_run.step_meter import StepMeter
from trackside.profiling.call_record import CallRecord
from trackside.profiling.ledger import Ledger
from trackside.trainer import Batch
from trackside.trainer.goal import Goal
from trackside.trainer.hot_loop import HotLoop
from trackside.trainer.inflight_window import AUTO_INFLIGHT
from trackside.trainer.loop import TrainLoop
from trackside.trainer.loop_plan import Instruments
from trackside.trainer.training import Training

NUM_ROUNDS = 15


class NoMeter(StepMeter):
    """Takes the place of a meter, and logs nothing."""

    def log_if_due(self, step: int) -> None:
        pass

    def log(self, step: int) -> None:
        pass


class HotLoopWithoutLedger(HotLoop):
    """The hot loop as it would be if nothing measured where the time goes."""

    def run_until(self, boundary: float) -> bool:
        progress, cursor, window, now = self._progress, self._progress.cursor, self._window, self._clock.now
        self._feed.open(is_traced=False)
        take, place, guard, call = self._feed.take, self._feed.place, self._feed.guard, self._call
        max_inflight, stop = self._inflight.limit, self._stop
        next_log_step = self._log_plan.next_boundary(cursor.step)
        while cursor.step < boundary and not stop.status:
            try:
                batch = take(cursor.step, boundary - cursor.step)
            except StopIteration:
                return False
            if self._is_first_call:
                self._check_first(batch)
            batch = place(batch)
            if len(window) >= max_inflight:
                np.asarray(window[0].report)
            carry, vector = progress.held, self._vector
            num_compiles, ready_s = self._compiles.num_events, now()
            try:
                progress.held, self._vector = call(carry, vector, batch)
            except Exception:
                self._placement.check_train_batch(batch)
                raise
            times_s = (ready_s, ready_s, ready_s, ready_s, now())
            record = CallRecord(cursor.step + 1, 1, 0, cursor.epoch, *times_s, False, False, self._vector, batch)
            cursor.step += 1
            window.append(record)
            if cursor.step == next_log_step:
                record.is_logged = True
                self._vector = self._fresh_vector
                next_log_step = self._log_plan.next_boundary(cursor.step)
            if self._compiles.num_events != num_compiles:
                self._account_compile(record, (carry, vector, batch), num_compiles)
            if len(window) > max_inflight:
                self._completed.retire(window.popleft(), window)
            if guard.on_probation:
                self.retire_all()
        return True


class TrainingWithoutLedger(Training):
    """A training with that loop, whose ledger is stopped."""

    def _build_instruments(self, stop: StopRequest, interrupts: Interrupts) -> Instruments:
        instruments = super()._build_instruments(stop, interrupts)
        trainer = self._trainer
        trainer.ledger.stop()
        meter = NoMeter(Ledger(), trainer.logger, trainer.measurements, trainer.progress.time, AUTO_INFLIGHT)
        return dataclasses.replace(instruments, meter=meter)

    def _build_loop(self, instruments: Instruments) -> TrainLoop:
        loop = super()._build_loop(instruments)
        loop._hot_loop.__class__ = HotLoopWithoutLedger
        return loop


class OtherTraining(MSETrainer):
    """A trainer whose calls of `train_model` are others than usual."""

    training_class: type[Training]

    def train_model(self, train_loader: Any, *, num_train_steps: int) -> Any:
        goal = Goal.of(None, num_train_steps, None, len(train_loader))
        return self.training_class(self, goal, train_loader, None, None).run()


class WithoutLedger(OtherTraining):
    training_class = TrainingWithoutLedger


def answer_instantly(loop: TrainLoop) -> TrainLoop:
    """Let a loop make its first step only; those after it return what it returned. What is left is the loop itself."""
    made: list[Any] = []
    hot_loop = loop._hot_loop
    make = hot_loop._call

    def call(carry: Any, vector: Any, batch: Any) -> Any:
        if not made:
            made.append(make(carry, vector, batch))
        return made[0]

    hot_loop._call = hot_loop._feed.call = call
    return loop


class InstantTraining(Training):
    def _build_loop(self, instruments: Instruments) -> TrainLoop:
        return answer_instantly(super()._build_loop(instruments))


class InstantTrainingWithoutLedger(TrainingWithoutLedger):
    def _build_loop(self, instruments: Instruments) -> TrainLoop:
        return answer_instantly(super()._build_loop(instruments))


class InstantStep(OtherTraining):
    training_class = InstantTraining


class InstantStepWithoutLedger(OtherTraining):
    training_class = InstantTrainingWithoutLedger


def trainings(trainer: Any, batches: list[Batch], name: str, short: int, long: int) -> dict[str, Callable[[], None]]:
    def train(num_steps: int) -> Callable[[], None]:
        epoch = [batches[index % len(batches)] for index in range(num_steps)]
        return lambda: trainer.train_model(epoch, num_train_steps=trainer.global_step + num_steps) and None

    return {f"{name} short": train(short), f"{name} long": train(long)}


def measure_cost(
    title: str,
    model_class: type,
    batch_size: int,
    short: int,
    long: int,
    classes: tuple[type[MSETrainer], type[MSETrainer]] = (MSETrainer, WithoutLedger),
) -> None:
    batches = make_batches(batch_size, 64)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        root = pathlib.Path(folder)
        contestants = {}
        for name, trainer_class in zip(("on", "off"), classes, strict=True):
            trainer = make_trainer(model_class, batches[0], root / name, 50, trainer_class, steps_per_call=1)
            contestants |= trainings(trainer, batches, name, short, long)
        times = race(contestants, 1, NUM_ROUNDS)

    def best_us(name: str) -> float:
        return (times[f"{name} long"].best_us - times[f"{name} short"].best_us) / (long - short)

    def per_step_us(name: str) -> list[float]:
        pairs = zip(times[f"{name} long"].rounds_s, times[f"{name} short"].rounds_s, strict=True)
        return [(after - before) / (long - short) * 1e6 for after, before in pairs]

    on, off = per_step_us("on"), per_step_us("off")
    differences = sorted(a - b for a, b in zip(on, off, strict=True))
    quarter = len(differences) // 4
    ratio = statistics.median(a / b for a, b in zip(on, off, strict=True))
    print(
        f"{title} of {statistics.median(off):.0f} us: {best_us('on') - best_us('off'):+.2f} us by the best rounds; "
        f"median {statistics.median(differences):+.2f} us, {ratio:.3f}x "
        f"(half of the rounds between {differences[quarter]:+.2f} and {differences[-quarter - 1]:+.2f} us)"
    )


def main() -> int:
    """How many figures are not true."""
    logging.getLogger("trackside").setLevel(logging.ERROR)
    logging.getLogger("trackside").addHandler(logging.NullHandler())
    print("per step, with the ledger less without")
    instant = InstantStep, InstantStepWithoutLedger
    measure_cost("  a loop whose steps take no time", MLP, 8, SHORT_STEPS, LONG_STEPS, instant)
    measure_cost("  tiny steps, without it against themselves", MLP, 8, SHORT_STEPS, LONG_STEPS, (WithoutLedger,) * 2)
    measure_cost("  tiny steps", MLP, 8, SHORT_STEPS, LONG_STEPS)
    measure_cost("  steps of about a millisecond", WideMLP, 16, 50, 650)
    return measure_truth()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
