"""What is done with calls that have completed, one by one or several at once."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.tiny import make_loader, make_trainer, rows_of
from trackside.logger import LoggerConfig
from trackside.trainer.inflight_window import InflightWindow

NUM_STEPS = 40


class ManyAtOnce(InflightWindow):
    """Eight calls under way, and four that have completed are heard of at once, from the first step on."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.limit, self.num_retired = 8, 4

    def adapt(self, step: int, now_s: float) -> bool:
        return False


@pytest.fixture
def several_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.trainer.hot_loop.InflightWindow", ManyAtOnce)


def train(folder: Path, batches: list[Any], every: int) -> Any:
    trainer = make_trainer(logger=LoggerConfig(log_path=folder, log_every_n_steps=every), steps_per_call=1)
    trainer.train_model(batches, num_epochs=1)
    return trainer


@pytest.mark.parametrize("every", [1, 3, 50])
def test_rows_are_the_same(tmp_path: Path, every: int, request: pytest.FixtureRequest) -> None:
    """Each row has the metrics of its own steps, however many calls are heard of at once, and a time of its own."""
    train(tmp_path / "one", make_loader(NUM_STEPS), every)
    request.getfixturevalue("several_at_once")
    train(tmp_path / "several", make_loader(NUM_STEPS), every)
    one, several = (rows_of(tmp_path / name, mode="train") for name in ("one", "several"))
    assert [row["step"] for row in several] == list(range(every, NUM_STEPS + 1, every))
    for expected, found in zip(one, several, strict=True):
        times = found["values"].pop("step_time", 0.0), expected["values"].pop("step_time", 0.0)
        assert all(map(math.isfinite, times))
        assert (found["step"], found["values"]) == (expected["step"], expected["values"])


@pytest.mark.parametrize("every", [1, 7, 50])
@pytest.mark.parametrize("bad_step", [1, 4, 5, 8, 22, 40])
def test_the_first_bad_step_is_named(
    tmp_path: Path, every: int, bad_step: int, several_at_once: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that is not finite is found among those that are heard of together, also right after a log row."""
    batches = make_loader(NUM_STEPS)
    batches[bad_step - 1] = batches[bad_step - 1].replace(inputs=np.full_like(batches[0].inputs, np.nan))
    trainer = train(tmp_path, batches, every)
    assert trainer.status == "nan"
    assert f"step {bad_step}: the loss or the gradient norm is not finite" in caplog.text
