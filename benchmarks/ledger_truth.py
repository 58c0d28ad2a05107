"""Whether what the ledger says is true: delays are put into a part of the training, and are to be found there.

Delays of 2, 10 and 30 ms in loader, callback, logger tool, checkpoint and validation, and what the ledger has more in
that part than without. How long a delay really took is measured where it is made, since sleeping takes longer than was
asked for. What a checkpoint takes without it varies by more than the shortest delay, so that it is measured around the
same saves. The first of a few attempts that is true counts, because a busy machine delays things by itself.

At the end, `benchmarks.ledger_coverage` measures how much of a whole script's time is in the ledger.
"""

import contextlib
import dataclasses
import io
import logging
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from benchmarks import ledger_coverage
from benchmarks.loop_overhead import LEARNING_RATE, MLP, MSETrainer, make_batches
from benchmarks.truth_row import TruthRow
from trackside.callbacks import Callback, CallbackConfig
from trackside.logger import LoggerConfig, LoggerTool, LoggerToolsConfig
from trackside.schedule import Every
from trackside.trainer import Batch, ModelConfig, OptimizerConfig, ParallelConfig, SchedulerConfig, TrainerConfig

DELAYS_MS = (2, 10, 30)
MAX_DEVIATION = 0.1
NUM_ATTEMPTS = 3
NUM_STEPS = 100
SAVE_EVERY_N_STEPS = 5


class Sleep:
    """Sleeps, and knows how long it really did."""

    def __init__(self, delay_s: float):
        self.delay_s, self.slept_s, self.num_calls = delay_s, 0.0, 0

    def __call__(self) -> None:
        self.num_calls += 1
        if self.delay_s:
            start = time.perf_counter()
            time.sleep(self.delay_s)
            self.slept_s += time.perf_counter() - start


class SlowLoader:
    def __init__(self, batches: list[Batch], sleep: Sleep):
        self.batches, self.sleep = batches, sleep

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            self.sleep()
            yield batch


class Sleeper(Callback):
    def __init__(self, sleep: Sleep):
        super().__init__(CallbackConfig())
        self.sleep = sleep

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.sleep()


class SlowTool(LoggerTool):
    """A tool on the thread that trains, which takes its time for each row of a step."""

    threaded = False
    sleep: ClassVar[Sleep] = Sleep(0.0)

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        if mode == "train":
            type(self).sleep()


@dataclasses.dataclass(kw_only=True)
class SlowToolConfig(LoggerToolsConfig):
    def create(self, logger: Any) -> LoggerTool:
        return SlowTool()


class Saver(Callback):
    """Saves checkpoints, with a state that takes its time to gather, and knows how long the saves took without that."""

    def __init__(self, folder: pathlib.Path, sleep: Sleep, finish_saving: Callable[[], None]):
        super().__init__(CallbackConfig())
        self.folder, self.sleep, self.finish_saving = folder, sleep, finish_saving
        self.plan = Every(SAVE_EVERY_N_STEPS, "every_n_steps")
        self.own_s = 0.0

    def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
        start, slept_s = time.perf_counter(), self.sleep.slept_s
        self.trainer.save_checkpoint(self.folder, keep=lambda steps: [max(steps)])
        self.finish_saving()  # nothing is left for the end of the training to wait for
        self.own_s += time.perf_counter() - start - (self.sleep.slept_s - slept_s)

    def state_dict(self) -> dict[str, Any]:
        self.sleep()
        return {}


def build_trainer(folder: pathlib.Path, batch: Batch) -> MSETrainer:
    logger = LoggerConfig(log_path=folder, log_every_n_steps=1, log_tools=[SlowToolConfig()])
    return MSETrainer(
        TrainerConfig(logger=logger, enable_progress_bar=False),
        ModelConfig(model_class=MLP, parallel=ParallelConfig()),
        OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=LEARNING_RATE)),
        batch=batch,
    )


class Training:
    """A trainer that trains a hundred steps again and again, with a delay in one part or the other."""

    def __init__(self, folder: pathlib.Path):
        batches = make_batches(8, 64)
        self.epoch = [batches[index % len(batches)] for index in range(NUM_STEPS)]
        self.checkpoints = folder / "checkpoints"
        self.trainer = build_trainer(folder / "run", batches[0])
        self.parts: dict[str, Callable[[Sleep], None]] = {
            "data_wait": lambda sleep: self._fit(SlowLoader(self.epoch, sleep)),
            "callback/Sleeper": lambda sleep: self._fit(self.epoch, callbacks=[Sleeper(sleep)]),
            "logging": self._fit_with_tool,
            "validation": lambda sleep: self._fit(self.epoch, SlowLoader(self.epoch, sleep)),
        }

    def _fit(self, *loaders: Any, **kwargs: Any) -> None:
        self.trainer.fit(*loaders, num_train_steps=self.trainer.global_step + NUM_STEPS, **kwargs)

    def _fit_with_tool(self, sleep: Sleep) -> None:
        SlowTool.sleep = sleep
        self._fit(self.epoch)
        SlowTool.sleep = Sleep(0.0)

    def found_s(self, part: str, sleep: Sleep) -> float:
        """What the ledger has more in the part that is delayed than it would have without the delay."""
        if part == "checkpointing":
            saver = Saver(self.checkpoints, sleep, self.trainer.finish_saving)
            self._fit(self.epoch, callbacks=[saver])
            return self._part_s(part) - saver.own_s
        self.parts[part](Sleep(0.0))
        without_s = self._part_s(part)
        self.parts[part](sleep)
        return self._part_s(part) - without_s

    def _part_s(self, part: str) -> float:
        assert self.trainer.ledger_totals is not None
        return self.trainer.ledger_totals.parts[part]


@dataclasses.dataclass(frozen=True)
class Figure:
    """How long a delay was, in the mean, and what the ledger has more for it."""

    slept_ms: float
    found_ms: float

    @property
    def deviation(self) -> float:
        return (self.found_ms - self.slept_ms) / self.slept_ms

    @property
    def is_true(self) -> bool:
        return abs(self.deviation) <= MAX_DEVIATION

    def __str__(self) -> str:
        mark = "" if self.is_true else " NOT TRUE"
        return f"{self.found_ms:.2f} of {self.slept_ms:.2f} ({100 * self.deviation:+.1f} %{mark})"


def measure(training: Training, part: str, delay_s: float) -> Figure:
    """The best attempt; none follows one that is true."""
    attempts: list[Figure] = []
    while len(attempts) < NUM_ATTEMPTS and not any(figure.is_true for figure in attempts):
        sleep = Sleep(delay_s)
        found_s = training.found_s(part, sleep)
        attempts.append(Figure(1e3 * sleep.slept_s / sleep.num_calls, 1e3 * found_s / sleep.num_calls))
    return min(attempts, key=lambda figure: abs(figure.deviation))


def measure_truth() -> int:
    """Print the figures.

    Returns:
        How many of them are further off than they may be.
    """
    print(f"ms that the ledger finds in a part, of those slept there; true within {100 * MAX_DEVIATION:.0f} %:")
    num_untrue = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        training = Training(pathlib.Path(folder))
        for part in ("validation", "checkpointing"):  # both compile, which is not theirs
            training.found_s(part, Sleep(0.0))
        for part in (*training.parts, "checkpointing"):
            nothing = Sleep(0.0)
            without_ms = 1e3 * training.found_s(part, nothing) / nothing.num_calls
            figures = [measure(training, part, delay_ms / 1e3) for delay_ms in DELAYS_MS]
            num_untrue += sum(not figure.is_true for figure in figures)
            shown = ", ".join(map(str, figures))
            print(f"  {part:18} {without_ms:+.2f} of 0, {shown}")
    return num_untrue + ledger_coverage.main()


def main() -> int:
    """How many figures are not true."""
    logging.getLogger("trackside").setLevel(logging.ERROR)
    logging.getLogger("trackside").addHandler(logging.NullHandler())
    return measure_truth()


def truth_rows(delays_ms: tuple[int, ...] = (10,)) -> Iterator[TruthRow]:
    """What the ledger finds of delays in each part. The noise is what it finds where there is none."""
    logging.getLogger("trackside").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        training = Training(pathlib.Path(folder))
        training.found_s("validation", Sleep(0.0))  # compiles
        for part in (*training.parts, "checkpointing"):
            nothing = Sleep(0.0)
            without_ms = 1e3 * training.found_s(part, nothing) / nothing.num_calls
            for delay_ms in delays_ms:
                figure = measure(training, part, delay_ms / 1e3)
                noise = abs(without_ms) / figure.slept_ms
                yield TruthRow(f"delay in {part}", figure.slept_ms, figure.found_ms, MAX_DEVIATION, noise, "ms")


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
