"""The ledger's truth, through the real trainer: on a clock that only delays move, each is found in its part alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import MSETrainer, make_loader, make_trainer
from trackside.callbacks import Callback, CallbackConfig
from trackside.clock import ManualClock
from trackside.logger import LoggerConfig, LoggerTool, LoggerToolsConfig
from trackside.trainer import Batch

NUM_STEPS = 6
PARTS = ["data_wait", "callback/DelayedCallback", "logging", "checkpointing", "validation"]


class Delays:
    """Lets the time pass that the part under test is delayed by, and counts how often."""

    def __init__(self) -> None:
        self.clock = ManualClock(start=1000.0)
        self.set("", 0.0)

    def set(self, part: str, delay_s: float) -> None:
        """From now on, one part is delayed."""
        self._part, self._delay_s, self.num_delays = part, delay_s, 0

    def take(self, part: str) -> None:
        """Where a part may be delayed."""
        if part == self._part:
            self.num_delays += 1
            self.clock.advance(self._delay_s)


DELAYS = Delays()
"""The tool's config is plain data, and cannot carry it."""


class DelayedLoader:
    """A loader that takes its time for each batch, for one part or the other."""

    def __init__(self, num_batches: int, part: str):
        self._batches, self._part = make_loader(num_batches), part

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            DELAYS.take(self._part)
            yield batch


class DelayedTool(LoggerTool):
    """A tool on the thread that trains."""

    threaded = False

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        DELAYS.take("logging")


@dataclass(kw_only=True)
class DelayedToolConfig(LoggerToolsConfig):
    def create(self, logger: Any) -> LoggerTool:
        return DelayedTool()


class DelayedCallback(Callback):
    """Takes its time after each step, and saves a checkpoint, for which its state takes time to gather."""

    def __init__(self, folder: Path):
        super().__init__(CallbackConfig())
        self._folder = folder

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        DELAYS.take("callback/DelayedCallback")

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        self.trainer.save_checkpoint(self._folder / f"step_{step_idx}")

    def state_dict(self) -> dict[str, Any]:
        DELAYS.take("checkpointing")
        return {}


class ClockedTrainer(MSETrainer):
    clock = DELAYS.clock


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> ClockedTrainer:
    """A trainer that trains again and again, so that it compiles once."""
    return make_trainer(
        ClockedTrainer,
        logger=LoggerConfig(
            log_path=tmp_path_factory.mktemp("run"), log_every_n_steps=1, log_tools=[DelayedToolConfig()]
        ),
    )


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.010, 0.030])
@pytest.mark.parametrize("part", PARTS)
def test_delay_appears_in_its_part_alone(trainer: ClockedTrainer, tmp_path: Path, part: str, delay_s: float) -> None:
    """All of what a part was delayed by is in that part of the totals, and nothing is in any other."""
    DELAYS.set(part, delay_s)
    trainer.fit(
        DelayedLoader(NUM_STEPS, "data_wait"),
        DelayedLoader(2, "validation"),
        num_train_steps=trainer.global_step + NUM_STEPS,
        callbacks=[DelayedCallback(tmp_path)],
    )
    totals = trainer.ledger_totals
    assert totals is not None
    assert totals.num_steps == NUM_STEPS
    assert DELAYS.num_delays > 0
    expected_s = DELAYS.num_delays * delay_s
    assert totals.parts[part] == pytest.approx(expected_s, rel=0.1)
    assert totals.wall_s - totals.parts[part] == pytest.approx(0.0, abs=1e-9)


class SlowEnds:
    """A loader without a length that takes its time to start and to say that it is over, as workers do."""

    def __iter__(self) -> Iterator[Batch]:
        DELAYS.take("data_wait")
        yield from make_loader(NUM_STEPS)
        DELAYS.take("data_wait")


def test_starting_and_ending_a_loader_is_waiting_for_data(trainer: ClockedTrainer) -> None:
    """What comes before its first batch and after its last counts as waiting for data, in each epoch."""
    trainer.fit(SlowEnds(), num_epochs=trainer.epoch + 1)  # to the end of the epoch that another test has begun
    DELAYS.set("data_wait", 0.5)
    trainer.fit(SlowEnds(), num_epochs=trainer.epoch + 2)
    totals = trainer.ledger_totals
    assert totals is not None
    assert DELAYS.num_delays == 4
    assert totals.parts["data_wait"] == pytest.approx(2.0)
    assert totals.wall_s == pytest.approx(2.0)
