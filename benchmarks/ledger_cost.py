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
from trackside.profiling.call_record import CallRecord
from trackside.profiling.ledger import Ledger
from trackside.trainer import Batch
from trackside.trainer.loop import TrainLoop
from trackside.trainer.step_meter import StepMeter

NUM_ROUNDS = 15


class NoMeter(StepMeter):
    """Takes the place of a meter, and logs nothing."""

    def log_if_due(self, step: int) -> None:
        pass

    def log(self, step: int) -> None:
        pass


class LoopWithoutLedger(TrainLoop):
    """The loop as it would be if nobody wanted to know where the time goes."""

    def _run_until(self, boundary: float) -> bool:
        position, window, now = self.position, self._window, self.clock.now
        guard, batches, place, call = position.guard, position.batches, self.placement.place, self.call
        assert guard is not None
        assert batches is not None
        next_log_step = self._log_plan.next_boundary(position.step)
        while position.step < boundary and not self.status:
            try:
                batch = guard.protect(next(batches))
            except StopIteration:
                return False
            if self._is_first_call:
                self._check_first(batch)
            batch = place(batch)
            if len(window) >= self.max_inflight_steps:
                np.asarray(window[0].report)
            carry, vector = position.carry, position.vector
            num_compiles, ready_s = self._compiles.num_events, now()
            position.carry, position.vector = call(carry, vector, batch)
            position.step += 1
            record = CallRecord(position.step, 1, position.epoch, ready_s, now(), position.vector, batch)
            window.append(record)
            if position.step == next_log_step:
                record.is_logged = True
                position.vector = self.fresh_vector
                next_log_step = self._log_plan.next_boundary(position.step)
            if self._compiles.num_events != num_compiles:
                self._account_compile(record, (carry, vector, batch), num_compiles)
            if len(window) > self.max_inflight_steps:
                self._retire(window.popleft())
            if guard.on_probation:
                self._retire_all()
        return True


class WithoutLedger(MSETrainer):
    def _build_loop(self, train_loader: Any, val_loader: Any, goal: Any) -> TrainLoop:
        loop = super()._build_loop(train_loader, val_loader, goal)
        self.ledger.stop()
        meter = NoMeter(Ledger(), self.logger, self.events, loop.max_inflight_steps, loop.position.time, lambda: None)
        fields = {field.name: getattr(loop, field.name) for field in dataclasses.fields(loop)}
        return LoopWithoutLedger(**{**fields, "meter": meter})


class InstantStep(MSETrainer):
    """Makes its first step; those after it return at once what it returned. What is left is the loop itself."""

    def _build_loop(self, train_loader: Any, val_loader: Any, goal: Any) -> TrainLoop:
        loop = super()._build_loop(train_loader, val_loader, goal)
        made: list[Any] = []
        make = loop.call

        def call(carry: Any, vector: Any, batch: Any) -> Any:
            if not made:
                made.append(make(carry, vector, batch))
            return made[0]

        loop.call = call
        return loop


class InstantStepWithoutLedger(InstantStep, WithoutLedger):
    pass


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
            trainer = make_trainer(model_class, batches[0], root / name, 50, trainer_class)
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
