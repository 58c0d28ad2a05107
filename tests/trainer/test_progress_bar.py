"""Progress bars."""

import contextlib
import io
import math
import os
import pty
import re
import sys
import termios
import threading

import pytest

from tests.trainer.tiny import make_loader, make_trainer
from trackside.trainer.progress_bar import ProgressBar, is_shown


def test_bar_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar is shown on a terminal, on the main process, if it is enabled; never in a file or a pipe."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
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
    for part in ("epoch 2/2", "6/6", "loss="):
        assert part in drawn
    assert re.search(r"\d(step/s|s/step)", drawn)  # the latter where a step takes longer than a second
