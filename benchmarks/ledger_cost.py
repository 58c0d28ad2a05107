"""What the ledger costs, and whether what it says is true.

Cost: the trainer with its ledger and with one that does nothing, long trainings less short ones, in turn.
Truth: delays of 0, 2, 10 and 30 ms in loader, callback and validation, and what the ledger has in that part.
"""

import contextlib
import io
import logging
import math
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.idle_callbacks import LONG_STEPS, SHORT_STEPS
from benchmarks.interleaved import race
from benchmarks.loop_overhead import MLP, MSETrainer, WideMLP, make_batches, make_trainer
from trackside.callbacks import Callback, CallbackConfig
from trackside.profiling.ledger import Ledger
from trackside.trainer import Batch
from trackside.trainer.meter import StepMeter

NUM_ROUNDS = 15


class Unaccounted(list):
    """Takes calls, and keeps none."""

    def append(self, call: Any) -> None:
        pass


class NoMeter(StepMeter):
    """Takes the place of a meter, and does as little as can be."""

    def __init__(self, meter: StepMeter):
        super().__init__(Ledger(), meter._logger, meter._events, 2)
        self.calls = Unaccounted()
        self.device.next_sample_s = math.inf

    def log_if_due(self, step: int) -> None:
        pass

    def log(self, step: int) -> None:
        pass


class WithoutLedger(MSETrainer):
    def _build_loop(self, *args: Any) -> Any:
        loop = super()._build_loop(*args)
        self.ledger.stop()
        loop.meter = NoMeter(loop.meter)
        loop._rows.ledger = loop.meter.ledger
        return loop


def trainings(trainer: Any, batches: list[Batch], name: str, short: int, long: int) -> dict[str, Callable[[], None]]:
    def train(num_steps: int) -> Callable[[], None]:
        epoch = [batches[index % len(batches)] for index in range(num_steps)]
        return lambda: trainer.train_model(epoch, num_train_steps=trainer.global_step + num_steps) and None

    return {f"{name} short": train(short), f"{name} long": train(long)}


def measure_cost(title: str, model_class: type, batch_size: int, short: int, long: int) -> None:
    batches = make_batches(batch_size, 64)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        root = pathlib.Path(folder)
        contestants = {}
        for name, trainer_class in (("on", MSETrainer), ("off", WithoutLedger)):
            trainer = make_trainer(model_class, batches[0], root / name, 50, trainer_class)
            contestants |= trainings(trainer, batches, name, short, long)
        times = race(contestants, 1, NUM_ROUNDS)

    def per_step_us(name: str) -> list[float]:
        pairs = zip(times[f"{name} long"].rounds_s, times[f"{name} short"].rounds_s, strict=True)
        return [(after - before) / (long - short) * 1e6 for after, before in pairs]

    on, off = per_step_us("on"), per_step_us("off")
    differences = sorted(a - b for a, b in zip(on, off, strict=True))
    quarter = len(differences) // 4
    ratio = statistics.median(a / b for a, b in zip(on, off, strict=True))
    print(
        f"{title}: {statistics.median(differences):+.2f} us per step of {statistics.median(off):.0f} us, {ratio:.3f}x "
        f"(half of the rounds between {differences[quarter]:+.2f} and {differences[-quarter - 1]:+.2f} us)"
    )


class SlowLoader:
    def __init__(self, batches: list[Batch], delay_s: float):
        self.batches, self.delay_s = batches, delay_s

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            time.sleep(self.delay_s)
            yield batch


class Sleeper(Callback):
    def __init__(self, delay_s: float):
        super().__init__(CallbackConfig())
        self.delay_s = delay_s

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        time.sleep(self.delay_s)


def measure_truth(num_steps: int = 100) -> None:
    batches = make_batches(8, 64)
    epoch = [batches[index % len(batches)] for index in range(num_steps)]
    print("injected per step, and what the ledger has more in that part than without:")
    runs: dict[str, Callable[[Any, float], None]] = {
        "data_wait": lambda trainer, delay_s: trainer.fit(SlowLoader(epoch, delay_s)),
        "callback/Sleeper": lambda trainer, delay_s: trainer.fit(epoch, callbacks=[Sleeper(delay_s)]),
        "validation": lambda trainer, delay_s: trainer.fit(epoch, SlowLoader(epoch, delay_s)),
    }
    for part, run in runs.items():
        figures = []
        for delay_ms in (0, 2, 10, 30):
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
                trainer = make_trainer(MLP, batches[0], pathlib.Path(folder), 50)
                run(trainer, delay_ms / 1e3)
            figures.append(1e3 * trainer.ledger_totals.parts[part] / num_steps)
        shown = ", ".join(
            f"{ms} ms: {figure - figures[0]:.2f}" for ms, figure in zip((0, 2, 10, 30), figures, strict=True)
        )
        print(f"  {part:18} {shown}")


def main() -> None:
    logging.getLogger("trackside").setLevel(logging.ERROR)
    logging.getLogger("trackside").addHandler(logging.NullHandler())
    measure_cost("ledger, tiny step", MLP, 8, SHORT_STEPS, LONG_STEPS)
    measure_cost("ledger, step of about a millisecond", WideMLP, 16, 50, 650)
    measure_truth()


if __name__ == "__main__":
    main()
