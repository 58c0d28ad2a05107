"""Every second is in the ledger, from the building of the trainer to the closing of its tools, over all legs.

The clock moves only where a delay is put in. Each place has its own length, a power of two, so that sums are exact.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.delay_clock import NEVER_WAITS, DelayClock
from tests.trainer.tiny import MSETrainer, make_loader, make_trainer, rows_of
from trackside import open_run
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig
from trackside.compare.sides import read_sides
from trackside.logger import LoggerConfig, LoggerTool, LoggerToolsConfig
from trackside.profiling.first_step import TimeToFirstStep
from trackside.profiling.ledger_text import render_ledger
from trackside.report.html.report_page import render_html
from trackside.report.run_summary import RunSummary, summarise_run
from trackside.report.terminal import render_summary
from trackside.runs import Run
from trackside.trainer import Batch, checkpoints
from trackside.trainer.checkpoint_store import CheckpointStore

DELAYS_S = {
    "setup": 2.0,
    "initial_state": 4.0,
    "compile": 8.0,
    "restoring": 16.0,
    "data_wait": 0.5,
    "validation": 0.25,
    "checkpointing": 0.125,
    "callback/Watcher": 0.0625,
    "logging": 32.0,
    "drain/ThreadedTool": 64.0,
    "other": 128.0,
}
OUTSIDE_S = 4096.0
EPOCH = 3


class Delays:
    """Lets the time of a place pass, and counts how often."""

    def __init__(self) -> None:
        self.clock = DelayClock()
        self.counts: Counter[str] = Counter()

    def take(self, part: str) -> None:
        """Where a part takes its time."""
        self.counts[part] += 1
        self.clock.advance(DELAYS_S[part])


DELAYS = Delays()
"""Configs are plain data, and cannot carry it."""


class SlowLoader:
    def __init__(self, num_batches: int, part: str):
        self._batches, self._part = make_loader(num_batches), part

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        DELAYS.take(self._part)  # as one that starts its workers
        return self._read()

    def _read(self) -> Iterator[Batch]:
        for batch in self._batches:
            DELAYS.take(self._part)
            yield batch


class ThreadedTool(LoggerTool):
    """On a thread of its own, with much left to do at the end."""

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        pass

    def finalize(self, status: str) -> None:
        DELAYS.take("drain/ThreadedTool")


@dataclass(kw_only=True)
class ThreadedToolConfig(LoggerToolsConfig):
    def create(self, logger: Any) -> LoggerTool:
        return ThreadedTool()


class WaitedForTool(LoggerTool):
    """On the thread that trains."""

    threaded = False

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        if mode == "train_epoch":
            DELAYS.take("logging")


@dataclass(kw_only=True)
class WaitedForToolConfig(LoggerToolsConfig):
    def create(self, logger: Any) -> LoggerTool:
        return WaitedForTool()


class Watcher(Callback):
    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        DELAYS.take("callback/Watcher")

    def state_dict(self) -> dict[str, Any]:
        DELAYS.take("checkpointing")
        return {}

    def finalize(self, status: str) -> None:
        DELAYS.take("callback/Watcher")


@dataclass(kw_only=True)
class WatcherConfig(CallbackConfig):
    def create(self, trainer: Any, data_module: Any = None) -> Callback:
        return Watcher(self, trainer, data_module)


class SlowTrainer(MSETrainer):
    """Takes its time wherever a subclass may."""

    clock = DELAYS.clock

    def build_model(self, model_config: Any) -> None:
        DELAYS.take("setup")
        super().build_model(model_config)

    def init_model(self, exmp_input: Any) -> None:
        DELAYS.take("initial_state")
        super().init_model(exmp_input)

    def run_model_init(self, exmp_input: Any, init_rng: Any) -> dict[str, Any]:
        DELAYS.take("compile")  # it is traced
        return super().run_model_init(exmp_input, init_rng)

    def loss_function(self, *args: Any, **kwargs: Any) -> Any:
        DELAYS.take("compile")
        return super().loss_function(*args, **kwargs)

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        DELAYS.take("other")


def build(path: Path) -> SlowTrainer:
    return make_trainer(
        SlowTrainer,
        logger=LoggerConfig(log_path=path, log_tools=[ThreadedToolConfig(), WaitedForToolConfig()]),
        callbacks=[CheckpointConfig(monitor="val_loss"), WatcherConfig()],
        max_inflight_steps=NEVER_WAITS,
        resume="auto",
    )


def train(trainer: SlowTrainer, num_epochs: int) -> None:
    loaders = SlowLoader(EPOCH, "data_wait"), SlowLoader(2, "validation"), SlowLoader(1, "validation")
    trainer.train_model(*loaders, num_epochs=num_epochs)


@dataclass
class Script:
    """What a script did that trained a run in two legs."""

    run: Run
    elapsed_s: float
    log: str
    """What the log said at the end."""
    first_totals: float
    """The wall time that the first trainer's ledger showed before it was tested again."""


class _LastTable(logging.Handler):
    """Keeps the last table of where the time went."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("where the time went"):
            self.text = record.getMessage()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Build, think, train, validate, test, save; then the same in another process, which resumes."""
    path, began_s, verify = tmp_path_factory.mktemp("whole") / "run", DELAYS.clock.now(), CheckpointStore.verify

    def slow_verify(store: CheckpointStore, step: int) -> Any:
        DELAYS.take("restoring")
        return verify(store, step)

    checkpoints._is_finite.clear_cache()  # it is one function for all trainers of the process
    table = _LastTable()
    logger = logging.getLogger("trackside.measured_run.closing")
    logger.addHandler(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "verify", slow_verify)
        trainer = build(path)
        DELAYS.clock.advance(OUTSIDE_S)
        train(trainer, 2)
        first_s = trainer.ledger.totals().wall_s
        DELAYS.clock.advance(OUTSIDE_S)
        trainer.eval_model(SlowLoader(1, "validation"), "val", 2)
        trainer.save_checkpoint(path / "more")
        trainer.finish_saving()
        train(build(path), 3)
    logger.removeHandler(table)
    return Script(open_run(path), DELAYS.clock.now() - began_s, table.text, first_s)


def test_every_second_is_in_the_ledger(script: Script) -> None:
    """What the script took is what the ledger has, but for the time that was spent outside of the trainer."""
    ledger = script.run.ledger
    assert ledger is not None
    assert ledger.wall_s == sum(ledger.parts.values()) == script.elapsed_s - 2 * OUTSIDE_S
    assert ledger.outside_s == 2 * OUTSIDE_S


@pytest.mark.parametrize("part", DELAYS_S)
def test_each_second_is_in_its_part(script: Script, part: str) -> None:
    """Building, compiling whatever for, restoring, closing tools: each is a part, of both legs together."""
    assert script.run.ledger is not None
    assert DELAYS.counts[part] > 0
    assert script.run.ledger.parts[part] == DELAYS.counts[part] * DELAYS_S[part]


def test_what_follows_a_training_is_in_its_ledger(script: Script) -> None:
    """The file has the totals again after an evaluation and a checkpoint that came after the training."""
    first_leg = [row for row in rows_of(script.run.path, "ledger") if row["leg"] == 1]
    after_s = sum(DELAYS_S[part] for part in ("validation", "validation", "drain/ThreadedTool", "checkpointing"))
    assert first_leg[-1]["wall_s"] - script.first_totals == after_s
    assert script.run.status == "success"


def test_first_step_of_each_leg_has_its_parts(script: Script) -> None:
    """The time to the first step is that of building, compiling, restoring and the first batch, also when resumed."""
    first, second = (leg.time_to_first_step for leg in script.run.legs)
    assert first is not None
    assert second is not None
    assert script.run.time_to_first_step == first
    for one, restoring_s in ((first, 0.0), (second, DELAYS_S["restoring"])):
        assert one.wall_s == sum(one.parts.values())
        assert one.parts.get("restoring", 0.0) == restoring_s
        assert one.parts["setup"] == DELAYS_S["setup"]
        assert one.parts["initial_state"] == DELAYS_S["initial_state"]
        assert one.parts["data_wait"] == 2 * DELAYS_S["data_wait"]  # opening the loader, and the batch
        assert one.parts["compile"] % DELAYS_S["compile"] == 0
        assert "other" not in one.parts


def test_every_view_shows_the_same(script: Script) -> None:
    """Log, summary, comparison and frames have the figures of all legs, as the opened run has them."""
    run, summary = script.run, summarise_run(script.run)
    assert run.ledger is not None
    table = render_ledger(run.ledger).splitlines()
    assert script.log.splitlines()[: len(table)] == table
    assert RunSummary.from_dict(summary.to_dict()).ledger == run.ledger
    assert RunSummary.from_dict(summary.to_dict()).time_to_first_step == run.time_to_first_step
    assert {side.ledger.wall_s for side in read_sides(run, run) if side.ledger is not None} == {run.ledger.wall_s}
    assert run.to_pandas("ledger")["seconds"].sum() == run.ledger.wall_s
    shown = render_summary(summary).plain
    for part in ("setting up", "initial state", "restoring", "closing ThreadedTool"):
        assert part in shown
    assert f"where the time went: {run.ledger.wall_s:.1f} s" in shown


def test_time_to_first_step_is_shown(script: Script) -> None:
    """The terminal says how long the first step took to come, for each leg."""
    shown = " ".join(render_summary(summarise_run(script.run)).plain.split())
    for leg in script.run.legs:
        assert leg.time_to_first_step is not None
        assert f"first step after {leg.time_to_first_step.text}" in shown
    assert "first batch" in shown


def test_page_shows_parts_and_first_step(script: Script) -> None:
    """The page has the time to the first step next to the other main figures, and each part with what it is."""
    page = render_html(script.run)
    for text in ("Time to first step", "first step after", "closing ThreadedTool", "Building the trainer", "8192 s"):
        assert text in page


def test_programs_have_names_that_say_what_they_are_for(script: Script) -> None:
    """Nothing that the library compiles by itself has the name of one of its functions."""
    compiled = {row["function"] for row in script.run.compiles if not row["is_operation"]}
    assert compiled == {"initial state", "train_step", "eval_step", "check of a checkpoint"}


class Impatient(LoggerTool):
    """Ctrl-C is pressed while it closes."""

    threaded = False

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        pass

    def finalize(self, status: str) -> None:
        raise KeyboardInterrupt


@dataclass(kw_only=True)
class ImpatientConfig(LoggerToolsConfig):
    def create(self, logger: Any) -> LoggerTool:
        return Impatient()


def test_ledger_is_written_when_nobody_waits_for_a_tool(tmp_path: Path) -> None:
    """If closing a tool is interrupted, the run has its last totals and its status all the same."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path, log_tools=[ImpatientConfig()]))
    with pytest.raises(KeyboardInterrupt):
        trainer.train_model(make_loader(2), num_epochs=1)
    assert not trainer.ledger.is_running
    assert [row["num_steps"] for row in rows_of(tmp_path, "ledger")][-1] == 2
    assert [row["status"] for row in rows_of(tmp_path, "status")] == ["success"]


def test_what_is_called_between_two_trainings_is_in_the_second(tmp_path: Path) -> None:
    """A prediction writes no row, but its time is in the ledger of the run once it is trained again."""
    trainer = make_trainer(SlowTrainer, logger=LoggerConfig(log_path=tmp_path), max_inflight_steps=NEVER_WAITS)
    trainer.train_model(make_loader(2), num_epochs=1)
    began_s = DELAYS.clock.now()
    trainer.predict(SlowLoader(2, "validation"))
    predicted_s = DELAYS.clock.now() - began_s
    trainer.train_model(make_loader(2), num_epochs=2)
    ledger = open_run(tmp_path).ledger
    assert ledger is not None
    assert ledger.parts["validation"] == predicted_s == 3 * DELAYS_S["validation"]


def test_trainings_of_one_trainer_are_legs_of_their_own(tmp_path: Path) -> None:
    """The second call begins with nothing spent; the run's ledger is the sum, and the first step has its own time."""
    trainer = make_trainer(MSETrainer, logger=LoggerConfig(log_path=tmp_path))
    trainer.train_model(make_loader(2), num_epochs=1)
    first = trainer.ledger_totals
    trainer.train_model(make_loader(2), num_epochs=2)
    second, run = trainer.ledger_totals, open_run(tmp_path)
    assert (first.num_steps, second.num_steps) == (2, 2)
    assert second.parts["initial_state"] == 0.0
    assert run.ledger is not None
    assert run.ledger.wall_s == pytest.approx(first.wall_s + second.wall_s)
    assert [type(leg.time_to_first_step) for leg in run.legs] == [TimeToFirstStep] * 2
