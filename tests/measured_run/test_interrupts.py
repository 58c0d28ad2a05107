"""Signals at every moment of a training: the step is finished and saved, and what was saved is not lost."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.children import environment
from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig
from trackside.errors import CheckpointError, ConfigError
from trackside.logger import FileLoggerConfig, LoggerConfig
from trackside.runs import open_run
from trackside.trainer import checkpoint_store
from trackside.trainer.checkpoint_store import CheckpointStore

pytestmark = pytest.mark.usefixtures("default_signals")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Sending(Callback):
    """Sends signals after a step."""

    def __init__(self, at_step: int, *numbers: int):
        super().__init__(CallbackConfig())
        self._at_step, self._numbers = at_step, numbers

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == self._at_step:
            for number in self._numbers:
                signal.raise_signal(number)


def build(folder: Path, **config: Any) -> Any:
    defaults = {"resume": "auto", "callbacks": [CheckpointConfig(every_n_epochs=1)]}
    return make_trainer(logger=LoggerConfig(log_path=folder), **{**defaults, **config})


def saved(folder: Path) -> list[int]:
    return CheckpointStore(folder / "checkpoints").steps()


def status(folder: Path) -> str:
    return rows_of(folder, "status")[-1]["status"]


def send_while_writing(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Send signals to this process when a checkpoint was written and is not committed yet."""
    checksums = checkpoint_store._checksums

    def slow_checksums(folder: Path) -> dict[str, list[int]]:
        for number in numbers:
            os.kill(os.getpid(), number)
        return checksums(folder)

    monkeypatch.setattr(checkpoint_store, "_checksums", slow_checksums)


def test_sigterm_again_during_the_last_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends SIGTERM again while the checkpoint is written does not lose it."""
    send_while_writing(monkeypatch, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        build(tmp_path).fit(make_loader(6), callbacks=[Sending(3, signal.SIGTERM)])
    assert ended.value.code == 143
    (step,) = saved(tmp_path)
    assert 3 <= step < 6
    assert status(tmp_path) == "interrupted"


def test_sigterm_after_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes between the last step and the end of its save waits for the save, and skips the test."""
    send_while_writing(monkeypatch, signal.SIGTERM)
    trainer = build(tmp_path)
    with pytest.raises(SystemExit) as ended:
        trainer.fit(make_loader(3), test_loader=make_loader(1))
    assert (ended.value.code, saved(tmp_path), status(tmp_path)) == (143, [3], "interrupted")
    assert rows_of(tmp_path, mode="test") == []
    monkeypatch.undo()
    again = build(tmp_path)
    again.fit(make_loader(3), test_loader=make_loader(1))
    assert (again.global_step, status(tmp_path)) == (3, "success")
    assert len(rows_of(tmp_path, mode="test")) == 1


def test_sigterm_while_closing(tmp_path: Path) -> None:
    """A signal that comes when all is saved and tested waits until the run is closed, as the success that it is."""

    class Late(Callback):
        def finalize(self, status: str) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        build(tmp_path).fit(make_loader(3), callbacks=[Late()])
    assert (ended.value.code, status(tmp_path)) == (143, "success")


def test_ctrl_c_twice_stops_at_once(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """The first Ctrl-C says what the second does, and the second saves nothing."""
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path).fit(make_loader(6), callbacks=[Sending(3, signal.SIGINT, signal.SIGINT)])
    assert (saved(tmp_path), status(tmp_path)) == ([], "interrupted")
    assert "finishing the step; press Ctrl-C again to quit now" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("resume", "text"),
    [("auto", "saved step {}; run the same"), ("never", "saved step {}; set resume='auto' and run the same")],
)
def test_ctrl_c_says_how_to_resume(tmp_path: Path, resume: str, text: str, capfd: pytest.CaptureFixture) -> None:
    """Who stops a training learns that it was saved, and what to do next."""
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, resume=resume).fit(make_loader(6), callbacks=[Sending(3, signal.SIGINT)])
    (step,) = saved(tmp_path)
    assert text.format(step) in (tmp_path / "output.log").read_text()


def test_sigterm_then_ctrl_c(tmp_path: Path) -> None:
    """The first signal decides how the process ends."""
    with pytest.raises(SystemExit):
        build(tmp_path).fit(make_loader(6), callbacks=[Sending(3, signal.SIGTERM, signal.SIGINT)])
    assert len(saved(tmp_path)) == 1


def test_handlers_are_given_back(tmp_path: Path) -> None:
    """After a training, interrupted or not, and during the final test, signals mean what they meant before."""
    before = [signal.getsignal(number) for number in SIGNALS]
    during: list[Any] = []

    class Looking(Callback):
        def on_test_epoch_start(self, epoch_idx: int) -> None:
            during.extend(signal.getsignal(number) for number in SIGNALS)

    build(tmp_path / "a").fit(make_loader(2), test_loader=make_loader(1), callbacks=[Looking()])
    assert during == before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(SystemExit):
        build(tmp_path / "b").fit(make_loader(6), callbacks=[Sending(3, signal.SIGTERM)])
    assert [signal.getsignal(number) for number in SIGNALS] == before


# --- trainings that never start -------------------------------------------------------------------------------------


def test_refused_start_closes_the_tools(tmp_path: Path) -> None:
    """A training that fails before its loop leaves no file open, and its run has not started."""
    logger = LoggerConfig(log_path=tmp_path, log_tools=[FileLoggerConfig()])
    trainer = make_trainer(logger=logger, resume="must", callbacks=[CheckpointConfig()])
    tool = trainer.logger.tools[0]
    with pytest.raises(CheckpointError):
        trainer.fit(make_loader(2))
    assert not trainer.logger.is_open
    assert tool._tables == {}
    assert open_run(tmp_path).status == "not started"
    with pytest.raises(ConfigError):
        trainer.fit(make_loader(2), num_epochs=1, num_train_steps=3)


def test_refused_start_leaves_a_finished_run_as_it_is(tmp_path: Path) -> None:
    """A run that was a success stays one when a second start in its folder is refused."""
    folder, saved = tmp_path / "run", str(tmp_path / "saved")
    build(folder, callbacks=[CheckpointConfig(dirpath=saved)]).fit(make_loader(2))
    with pytest.raises(CheckpointError, match="resume='never'"):
        build(folder, resume="never", callbacks=[CheckpointConfig(dirpath=saved)]).fit(make_loader(2))
    assert status(folder) == "success"
    assert open_run(tmp_path / "run-2").status == "not started"


SCRIPT = """
import signal, sys
from pathlib import Path
from tests.measured_run.test_interrupts import Sending, build
from tests.trainer.tiny import make_loader
build(Path(sys.argv[1])).fit(make_loader(6), callbacks=[Sending(3, signal.SIGINT)])
"""


@pytest.mark.slow
def test_process_that_is_interrupted_ends_in_order(tmp_path: Path) -> None:
    """A process that ends by Ctrl-C has said on the terminal that it saved, and dies of SIGINT as shells expect."""
    done = fork_server.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(),
    )
    assert done.returncode == -signal.SIGINT
    said = done.stdout + done.stderr
    assert "press Ctrl-C again to quit now" in said
    outcome = f"saved step {saved(tmp_path)[0]}; run the same command to resume"
    assert outcome in said
    assert done.stderr.rstrip().endswith(f"KeyboardInterrupt\n{outcome}")
