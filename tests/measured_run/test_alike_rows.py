"""Rows that are alike are written many at once: what is in them is what was logged, whatever comes between them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from trackside.errors import MetricError
from trackside.logger import FileLoggerConfig, LoggerConfig
from trackside.measured_run import MeasuredRun
from trackside.runs import open_run

NUM_STEPS = 700
"""More than are written with their names, and more than are written at once."""
ODD = 521

Logs = Callable[[MeasuredRun, int, Any], None]


@jax.jit
def count(state: jax.Array) -> tuple[jax.Array, jax.Array]:
    return state + 1, state * 0.5


def train(folder: Path, logs: Logs, *tools: FileLoggerConfig) -> None:
    """A loop whose loss is half of the step."""
    with MeasuredRun(LoggerConfig(log_path=folder, log_tools=list(tools))) as run:
        step, state = run.step(count), jnp.ones(())
        for number in range(1, NUM_STEPS + 1):
            state, loss = step(state)
            logs(run, number, loss)


def log_loss(run: MeasuredRun, step: int, loss: Any) -> None:
    run.log(loss=loss)


def log_often(run: MeasuredRun, step: int, loss: Any) -> None:
    run.log(loss=loss)
    run.log(twice=2.0 * step)


def log_more_now_and_then(run: MeasuredRun, step: int, loss: Any) -> None:
    run.log({"loss": loss, "lr": 0.1} if step % 50 == 0 else {"loss": loss})


def log_two_forms_by_turns(run: MeasuredRun, step: int, loss: Any) -> None:
    run.log({"loss": loss, "even": 1.0} if step % 2 == 0 else {"loss": loss})


def log_a_validation(run: MeasuredRun, step: int, loss: Any) -> None:
    run.log(loss=loss)
    if step == ODD:
        run.log({"val/loss": 3.0})


def log_every_third(run: MeasuredRun, step: int, loss: Any) -> None:
    run.log(loss=loss, every=3)


def log_an_epoch_of_its_own(run: MeasuredRun, step: int, loss: Any) -> None:
    run.log(loss=loss, epoch=step // 10)


def log_a_value_that_is_gone(run: MeasuredRun, step: int, loss: Any) -> None:
    run.log(loss=loss)
    if step == ODD:
        loss.delete()


@pytest.mark.parametrize(
    ("logs", "others"),
    [
        (log_loss, {}),
        (log_often, {"twice": (NUM_STEPS, 2.0 * NUM_STEPS)}),
        (log_more_now_and_then, {"lr": (14, 0.1)}),
        (log_two_forms_by_turns, {"even": (350, 1.0)}),
        (log_a_validation, {}),
        (log_every_third, {}),
        (log_an_epoch_of_its_own, {"epoch": (NUM_STEPS, 70.0)}),
        (log_a_value_that_is_gone, {}),
    ],
)
def test_all_that_was_logged_is_there(logs: Logs, others: dict[str, tuple[int, float]], tmp_path: Path) -> None:
    """Each step has its loss, also next to rows that are different, and those have theirs."""
    train(tmp_path / "run", logs)
    table = open_run(tmp_path / "run").metrics["train"]
    losses = {int(table.step[at]): float(table["loss"][at]) for at in table.present("loss")}
    expected = {step: step / 2 for step in range(1, NUM_STEPS + 1)}
    if logs is log_every_third:
        expected = {step: value for step, value in expected.items() if step % 3 == 0}
    if logs is log_a_value_that_is_gone:
        losses.pop(ODD, None)
        expected.pop(ODD)
    assert losses == expected
    for name, (number, last) in others.items():
        present = table.present(name)
        assert (len(present), float(table[name][present[-1]])) == (number, last)


def test_steps_have_their_times(tmp_path: Path) -> None:
    """Those that are written together have a time each, which add up to less than the run took."""
    train(tmp_path / "run", log_loss)
    run = open_run(tmp_path / "run")
    table = run.metrics["train"]
    seconds = table["step_time"][table.present("step_time")]
    assert len(seconds) > NUM_STEPS - 20
    assert (seconds >= 0).all()
    assert seconds.sum() <= table.t[-1] - run.legs[0].started_at + 1.0


def test_tools_get_each_row(tmp_path: Path) -> None:
    """A file of metrics has one for each step, with all that it has in the event file."""
    train(tmp_path / "run", log_loss, FileLoggerConfig())
    lengths = [len(file.read_text().splitlines()) for file in (tmp_path / "run").rglob("*.csv")]
    assert NUM_STEPS + 1 in lengths


def test_a_loss_that_is_not_finite_is_found_among_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning names its step, and its row is there."""

    def log_nan(run: MeasuredRun, step: int, loss: Any) -> None:
        run.log(loss=loss if step != ODD else float("nan"))

    train(tmp_path / "run", log_nan)
    assert f"at step {ODD}: loss=nan" in caplog.text
    table = open_run(tmp_path / "run").metrics["train"]
    assert len(table.present("loss")) == NUM_STEPS


def test_a_name_of_the_runs_own_is_refused_among_others(tmp_path: Path) -> None:
    """Rows that are taken without a look at each are looked at all the same."""

    def log_step_time(run: MeasuredRun, step: int, loss: Any) -> None:
        run.log(loss=loss)
        if step == ODD:
            with pytest.raises(MetricError, match="step_time"):
                run.log(step_time=loss)

    train(tmp_path / "run", log_step_time)
