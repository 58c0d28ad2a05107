"""Progress bars."""

import contextlib
import io
import logging
import math
import os
import pty
import re
import sys
import termios
import threading
import types

import pytest

from tests.trainer.tiny import make_loader, make_trainer
from trackside.measured_run.progress_bar import LINE_EVERY_S, ProgressBar, ProgressLines, describe_progress, is_shown


def test_bar_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar is shown on a terminal, on the main process, if it is enabled; never in a file or a pipe."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))  # imported, but nobody's kernel here
    assert not is_shown(enabled=True, is_main_process=True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert is_shown(enabled=True, is_main_process=True)
    assert not is_shown(enabled=False, is_main_process=True)
    assert not is_shown(enabled=True, is_main_process=False)


def test_hidden_bar_never_asks_to_be_drawn() -> None:
    """A bar that is not shown costs the loop one comparison that is always false."""
    assert ProgressBar(shown=False).next_refresh_s == math.inf


def read_all(controller: int, chunks: list[bytes]) -> None:
    """What is drawn on a terminal, which holds only so much, until it is closed."""
    with contextlib.suppress(OSError):  # Linux tells the end of a terminal by an error
        while chunk := os.read(controller, 4096):
            chunks.append(chunk)


def test_training_draws_loss_rate_and_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, training shows epoch, steps, rate, time left and loss, and ends at the total."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))
    chunks: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(controller, chunks))
    reader.start()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        trainer = make_trainer(enable_progress_bar=True)
        trainer.train_model(make_loader(3), make_loader(1), num_epochs=2)
    reader.join()
    os.close(controller)
    drawn = b"".join(chunks).decode()
    for part in ("compiling", "epoch 2/2", "6/6", "loss="):
        assert part in drawn
    assert re.search(r"\d(step/s|s/step)", drawn)  # the latter where a step takes longer than a second


def test_line_of_progress() -> None:
    """A line has epoch, step, loss, speed and time left, and leaves out what is not known."""
    line = describe_progress(2, 1_300, 5_000, {"loss": 0.123456}, 100, 10.0, 70.0)
    assert line == "epoch 2, step 1,300 of 5,000, loss 0.1235, 20 steps per second, about 3 min 5 s left"
    assert describe_progress(1, 30, math.inf, {}, 0, 0.0, 60.0) == "epoch 1, step 30, 0.5 steps per second"


def test_lines_come_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The first step only starts the clock; then a line is due every minute."""
    lines = ProgressLines(100)
    with caplog.at_level(logging.INFO):
        lines.start_epoch(1)
        lines.start_epoch(2)
        lines.show(1, {"loss": 1.0}, 5.0)
        assert lines.next_refresh_s == 5.0 + LINE_EVERY_S
        lines.show(61, {"loss": 0.5}, 65.0)
        lines.close(61)
    assert [record.message.split(",")[0] for record in caplog.records] == ["compiling train_step", "epoch 2"]
    assert lines.next_refresh_s == math.inf
