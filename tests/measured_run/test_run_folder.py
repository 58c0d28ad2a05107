"""The folder of a run: what a second start does there, and what a look leaves alone."""

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import trackside
from tests.trainer.tiny import MSETrainer, make_batch, make_loader, make_trainer, rows_of
from trackside.callbacks import CheckpointConfig, EarlyStoppingConfig
from trackside.cli.run_glance import glance_at
from trackside.clock import SYSTEM_CLOCK, ManualClock
from trackside.errors import CheckpointError, ConfigError, MissingExtraError, TracksideError
from trackside.events import EventWriter
from trackside.logger import Logger, LoggerConfig, TensorBoardLoggerConfig, WandBLoggerConfig
from trackside.logger.run_directory import fill_in_time
from trackside.measured_run.run_folder import choose_run_folder
from trackside.measured_run.run_lock import RunLock
from trackside.processes import ThreadProcesses
from trackside.run_layout import event_file_name
from trackside.runs import open_run
from trackside.runs.run_status import NOT_STARTED
from trackside.runs.status_words import read_status


class Unplugged(list):
    """A loader that fails after its batches."""

    def __iter__(self) -> Any:
        yield from super().__iter__()
        raise OSError("the disk is gone")


def build(folder: Path, resume: str = "never", **config: Any) -> Any:
    return make_trainer(logger=LoggerConfig(log_path=folder), resume=resume, **config)


def train(trainer: Any, num_batches: int = 2) -> None:
    trainer.train_model(make_loader(num_batches), num_epochs=1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def legs_of(folder: Path) -> list[tuple[int, int]]:
    return [(row["leg"], row["step"]) for row in rows_of(folder, "leg")]


def test_second_run_gets_its_own_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without resuming, a folder with a run is left alone: the next runs go to folders with numbers, and say so."""
    folder = tmp_path / "run"
    train(build(folder, callbacks=[CheckpointConfig()]))
    before = contents(folder)
    second = build(folder, callbacks=[CheckpointConfig()])
    train(second)
    train(build(folder))
    assert contents(folder) == before
    assert second.trainer_config.logger.log_path == second.logger.log_path == tmp_path / "run-2"
    assert (tmp_path / "run-2/checkpoints/2").is_dir()
    assert "run-2" in (tmp_path / "run-2/config.json").read_text()
    assert [legs_of(tmp_path / name) for name in ("run", "run-2", "run-3")] == [[(1, 0)]] * 3
    assert sum("this one goes to" in record.message for record in caplog.records) == 2


def test_same_trainer_stays_in_its_folder(tmp_path: Path) -> None:
    """A second call of `train_model` continues the trainer's own run."""
    trainer = build(tmp_path / "run")
    train(trainer)
    trainer.train_model(make_loader(2), num_epochs=2)
    assert legs_of(tmp_path / "run") == [(1, 0), (1, 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_folder_of_a_run_that_never_began_is_used(tmp_path: Path) -> None:
    """A trainer that was only built, as in a notebook, leaves its folder to the next one."""
    build(tmp_path / "run")
    train(build(tmp_path / "run"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_two_trainers_built_for_one_folder(tmp_path: Path) -> None:
    """Of two trainers that were built for one folder, the second to train is refused."""
    first, second = build(tmp_path / "run"), build(tmp_path / "run")
    train(first)
    with pytest.raises(ConfigError, match="build the trainer again"):
        train(second)
    assert open_run(tmp_path / "run").status == "success"


def test_wanted_resume_comes_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run that resumes stays in its folder, counts its legs, and warns of nothing."""
    folder, callbacks = tmp_path / "run", [CheckpointConfig()]
    train(build(folder, "auto", callbacks=callbacks))
    caplog.clear()
    resumed = build(folder, "auto", callbacks=callbacks)
    resumed.train_model(make_loader(2), num_epochs=2)
    assert legs_of(folder) == [(1, 0), (2, 2)]
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [record.message for record in warnings if "devices" not in record.message]


def test_run_that_failed_before_its_first_checkpoint(tmp_path: Path) -> None:
    """With `auto`, a run without a checkpoint that did not finish starts again in its folder, as the next leg."""
    folder = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(OSError, match="disk"):
            build(folder, "auto", callbacks=[CheckpointConfig()]).train_model(Unplugged(make_loader(1)), num_epochs=1)
    train(build(folder, "auto", callbacks=[CheckpointConfig()]))
    assert legs_of(folder) == [(1, 0), (2, 0), (3, 0)]
    assert open_run(folder).status == "success"


def test_finished_run_without_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With `auto`, a finished run that left no checkpoint is not mixed with another; the error names both ways out."""
    folder = tmp_path / "run"
    train(build(folder, "auto"))
    assert "no callback keeps checkpoints" in caplog.text
    before = (folder / "config.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"another folder for the run, or set resume='never'"):
        train(build(folder, "auto", seed=3))
    assert open_run(folder).status == "success"
    assert (folder / "config.json").read_bytes() == before
    assert legs_of(folder) == [(1, 0)]


def test_checkpoints_in_a_folder_of_their_own_are_refused(tmp_path: Path) -> None:
    """Without resuming, a `dirpath` that holds checkpoints is an error: a new run folder does not help there."""
    callbacks = [CheckpointConfig(dirpath=str(tmp_path / "kept"))]
    train(build(tmp_path / "run", callbacks=callbacks))
    with pytest.raises(CheckpointError, match="never"):
        train(build(tmp_path / "run", callbacks=callbacks))


def test_load_model_from_the_folder_of_the_config(tmp_path: Path) -> None:
    """A new run can load the run whose folder its config names, which stays as it is."""
    folder = tmp_path / "run"
    train(build(folder, callbacks=[CheckpointConfig()]))
    before = contents(folder)
    trainer = build(folder, callbacks=[CheckpointConfig()])
    trainer.load_model()
    assert trainer.global_step == 2
    trainer.train_model(make_loader(2), num_epochs=2)
    assert contents(folder) == before
    assert legs_of(tmp_path / "run-2") == [(1, 2)]


@pytest.mark.parametrize("is_loaded", [True, False], ids=["load_from_checkpoint", "built to resume"])
def test_evaluation_leaves_a_run_alone(tmp_path: Path, is_loaded: bool) -> None:
    """To test, evaluate and predict with a model of a run changes no byte of the run; training it continues the run."""
    folder, loader = tmp_path / "run", make_loader(2)
    train(build(folder, "auto", callbacks=[CheckpointConfig()]))
    before = contents(folder)
    if is_loaded:
        trainer = MSETrainer.load_from_checkpoint(folder, exmp_input=make_batch(8))
    else:
        trainer = build(folder, "auto", callbacks=[CheckpointConfig()])
        trainer.load_model()
    trainer.test_model(loader)
    trainer.eval_model(loader, mode="val", epoch_idx=1)
    trainer.predict(loader)
    trainer.logger.finalize("error")
    assert contents(folder) == before
    trainer.train_model(loader, num_epochs=2)
    assert legs_of(folder) == [(1, 0), (2, 2)]
    assert [row["step"] for row in rows_of(folder, mode="train")] == [1, 2, 3, 4]
    assert open_run(folder).status == "success"


def test_evaluation_can_be_logged_on_demand(tmp_path: Path) -> None:
    """After `attach`, evaluations of a loaded model are rows of its run, whose status stays."""
    folder = tmp_path / "run"
    train(build(folder, callbacks=[CheckpointConfig()]))
    trainer = MSETrainer.load_from_checkpoint(folder, exmp_input=make_batch(8))
    trainer.run_log.attach()
    trainer.eval_model(make_loader(2), mode="late", epoch_idx=1)
    assert len(rows_of(folder, mode="late")) == 1
    assert [row["status"] for row in rows_of(folder, "status")] == ["success"]


def test_run_that_was_only_built_is_not_started(tmp_path: Path) -> None:
    """A run without a training is `not started` in every view, and not dead."""
    build(tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.status == glance_at(tmp_path / "run").status == NOT_STARTED
    assert not run.is_finished
    assert read_status(run).text == "not started: the trainer was built, but no training has begun"


def test_run_whose_start_was_refused_is_not_started(tmp_path: Path) -> None:
    """A run that must resume and cannot is `not started`, and its files are closed."""
    trainer = build(tmp_path / "run", "must", callbacks=[CheckpointConfig()])
    with pytest.raises(CheckpointError):
        train(trainer)
    assert not trainer.logger.is_open
    assert open_run(tmp_path / "run").status == glance_at(tmp_path / "run").status == NOT_STARTED


def test_log_without_a_trainer_that_was_killed(tmp_path: Path) -> None:
    """A log of one's own loop has no legs; without a last word it is dead all the same."""
    Logger(LoggerConfig(log_path=tmp_path / "run")).log_host_metrics({"loss": 1.0}, 1)
    assert open_run(tmp_path / "run").status == glance_at(tmp_path / "run").status == "dead"


def test_stopped_early_is_told_apart(tmp_path: Path) -> None:
    """A run that a callback ended is `stopped early`."""
    stopper = EarlyStoppingConfig(monitor="train_loss", stopping_threshold=1e9)
    build(tmp_path / "run", callbacks=[stopper]).train_model(make_loader(2), num_epochs=4)
    assert read_status(open_run(tmp_path / "run")).word == glance_at(tmp_path / "run").status == "stopped early"


def test_time_in_the_path(tmp_path: Path) -> None:
    """`{time}` in `log_path` becomes the time of the start, also in the config that is saved."""
    trainer = build(tmp_path / "digits-{time}")
    (folder,) = tmp_path.iterdir()
    assert folder == trainer.logger.log_path == trainer.trainer_config.logger.log_path
    assert len(folder.name) == len("digits-20250131-235959")
    Logger(LoggerConfig(log_path=tmp_path / "own-{time}")).finalize("success")
    assert len(list(tmp_path.glob("own-2*"))) == 1


def test_callbacks_as_a_tuple(tmp_path: Path) -> None:
    """Callbacks in a tuple are saved with the configs, so that the run can be loaded."""
    train(build(tmp_path / "run", callbacks=(CheckpointConfig(), EarlyStoppingConfig(monitor="train_loss"))))
    loaded = MSETrainer.load_from_checkpoint(tmp_path / "run", exmp_input=make_batch(8))
    assert [type(one).__name__ for one in loaded.callbacks] == ["ModelCheckpoint", "EarlyStopping"]


# --- several processes ------------------------------------------------------------------------------------------------


def begin_run(folder: Path) -> None:
    folder.mkdir()
    writer = EventWriter(folder / event_file_name(0))
    writer.write("leg", leg=1, step=0)
    writer.close()


def choose_on_all(config: LoggerConfig, resume: str, clocks: list[Any]) -> list[Any]:
    """What each of several processes chooses, or the error that it got."""

    def choose(process: ThreadProcesses) -> Any:
        try:
            return choose_run_folder(config, resume, process, clocks[process.index])
        except TracksideError as error:
            return str(error)

    with ThreadPoolExecutor(len(clocks)) as pool:
        return list(pool.map(choose, ThreadProcesses.group(len(clocks))))


@pytest.mark.parametrize(("resume", "expected", "is_continued"), [("never", "run-2", False), ("auto", "run", True)])
def test_processes_choose_one_folder(tmp_path: Path, resume: str, expected: str, is_continued: bool) -> None:
    """All processes of a training take the folder that the first one finds."""
    begin_run(tmp_path / "run")
    chosen = choose_on_all(LoggerConfig(log_path=tmp_path / "run"), resume, [SYSTEM_CLOCK] * 3)
    assert [(config.log_path, continued) for config, continued in chosen] == [(tmp_path / expected, is_continued)] * 3


def test_processes_share_the_time_in_a_name(tmp_path: Path) -> None:
    """`{time}` is that of the first process, whatever the clocks of the others show."""
    clocks = [ManualClock(1.7e9 + 10 * index) for index in range(3)]
    chosen = choose_on_all(LoggerConfig(log_path=tmp_path / "{time}"), "never", clocks)
    expected = fill_in_time(tmp_path / "{time}", int(clocks[0].timestamp()))
    assert [config.log_path for config, _ in chosen] == [expected] * 3


def test_refused_folder_is_refused_on_all_processes(tmp_path: Path) -> None:
    """A folder in which a training runs is refused on every process, so that none waits for the others."""
    with RunLock(tmp_path / "run"):
        errors = choose_on_all(LoggerConfig(log_path=tmp_path / "run"), "never", [SYSTEM_CLOCK] * 2)
    assert str(tmp_path / "run") in errors[0]
    assert "failed on the first process" in errors[1]


@pytest.mark.parametrize(
    ("tool", "module"), [(WandBLoggerConfig(), "wandb"), (TensorBoardLoggerConfig(), "tensorboardX")]
)
def test_a_missing_package_of_a_tool_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Any, module: str
) -> None:
    """It is named before anything is written, for trainers and for loops of one's own."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=f"needs the package '{module}'.*pip install"):
        make_trainer(logger=LoggerConfig(log_path=tmp_path / "run", log_tools=[tool]))
    with pytest.raises(MissingExtraError, match=f"needs the package '{module}'.*pip install"):
        trackside.run(tmp_path / "run", tools=tool)
    assert list(tmp_path.iterdir()) == []
