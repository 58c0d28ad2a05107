"""What is logged is written when it is there, in order, and never waited for."""

import logging
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.measured_run.own_loops import make_loader, open_run_of, rows_of, step_of, weights
from trackside.errors import ConfigError, MetricError
from trackside.logger import FileLoggerConfig, LoggerConfig
from trackside.measured_run import MeasuredRun


def values_of(run: MeasuredRun, mode: str) -> list[tuple[int, dict[str, float]]]:
    """Step and own values of each row of a mode."""
    rows = rows_of(run, "metrics", mode=mode)
    return [(row["step"], {k: v for k, v in row["values"].items() if k not in ("epoch", "step_time")}) for row in rows]


class Later:
    """A value that a device computes when it is told to."""

    aval = "a number"

    def __init__(self, value: float):
        self.value, self.is_there = value, False

    def is_ready(self) -> bool:
        return self.is_there

    def block_until_ready(self) -> None:
        self.is_there = True

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        assert self.is_there, "nobody may wait for it"
        return np.asarray(self.value)


def test_nothing_waits_for_a_value(tmp_path: Path) -> None:
    """A row waits for its values, later rows wait for it, and the end waits for all."""
    run = open_run_of(tmp_path / "run")
    run._values._know(Later(0.0))
    values = [Later(float(step)) for step in range(4)]
    for step, value in enumerate(values):
        run.log(loss=value, step=step)
    values[1].is_there = True
    run._values.write()
    assert values_of(run, "train") == []
    values[0].is_there = True
    run._values.write()
    assert values_of(run, "train") == [(0, {"loss": 0.0}), (1, {"loss": 1.0})]
    run.close()
    assert [step for step, _ in values_of(run, "train")] == [0, 1, 2, 3]


def test_forms_that_people_log(tmp_path: Path) -> None:
    """Dicts, nested dicts and keywords, of any package's numbers, end up in one row for each step and mode."""
    with open_run_of(tmp_path / "run") as run:
        run.log({"loss": np.float32(1.5), "norms": {"grad": 2}}, lr=0.5)
        run.log(accuracy=torch.tensor(0.25, requires_grad=True), is_best=True)
        run.log(budget=Decimal("2.5"), share=Fraction(1, 4), bits=jnp.asarray(3, jnp.int4))
        run.log({"val/loss": jnp.ones(()), "test": {"loss": jnp.ones(1, jnp.bfloat16)}})
        with run.part("validation"):
            run.log(accuracy=0.75)
    train = {"loss": 1.5, "norms/grad": 2.0, "lr": 0.5, "accuracy": 0.25, "is_best": 1.0}
    train |= {"budget": 2.5, "share": 0.25, "bits": 3.0}
    assert values_of(run, "train") == [(0, train)]
    assert values_of(run, "val") == [(0, {"loss": 1.0, "accuracy": 0.75})]
    assert values_of(run, "test") == [(0, {"loss": 1.0})]


def test_every_and_step(tmp_path: Path) -> None:
    """`every` leaves out steps that it does not divide; `step` is the user's own count."""
    with open_run_of(tmp_path / "run") as run:
        for step in range(1, 7):
            run.log(loss=1.0, step=step, every=3)
    assert [step for step, _ in values_of(run, "train")] == [3, 6]


@pytest.mark.parametrize("values", [{"step_time": 1.0}, {"train/step_time": 1.0}, {"train": {"step_time": 1.0}}])
def test_what_the_run_measures_itself_is_refused(values: dict[str, Any]) -> None:
    """Under any name that would replace it, and on any thread."""
    with open_run_of() as run:
        for log in (run.log, run._values.checked):
            with pytest.raises(MetricError, match="what the run measures itself"):
                log(values)


def test_a_step_on_a_device_is_refused() -> None:
    """Reading it, as that of a Flax `TrainState`, would wait for the device."""
    with (
        open_run_of() as run,
        pytest.raises(ConfigError, match="is on a device, and reading it would wait; leave it out"),
    ):
        run.log(loss=1.0, step=jnp.asarray(3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (jnp.ones(2), r"an array of shape \(2,\)"),
        (jax.random.key(0), "not one number"),
        (torch.ones(3), r"a tensor of shape \(3,\)"),
        ("high", "'high', a str"),
        (None, "is None, which is not one number"),
        (1j, "not one number"),
    ],
)
def test_what_is_no_number_is_refused(value: Any, words: str) -> None:
    """A value that cannot be a row's is named, with its form."""
    with open_run_of() as run, pytest.raises(MetricError, match=words):
        run.log(loss=value)


def test_what_is_no_number_is_refused_after_numbers_of_its_type() -> None:
    """That arrays were numbers before does not make one of another form a number."""
    step = jax.jit(lambda x: (x, jax.lax.complex(x, x), jnp.stack([x, x])))
    with open_run_of() as run:
        measured = run.step(step)
        for _ in range(3):
            number, other, array = measured(jnp.ones(()))
            run.log(loss=number)
        for value in (other, array):
            measured(jnp.ones(()))
            with pytest.raises(MetricError, match="not one number"):
                run.log(loss=value)


def test_several_logs_of_a_step_are_one_row(tmp_path: Path) -> None:
    """What is logged after the loss of the same step is in its row, whatever the kind of value."""
    step = jax.jit(lambda x: x + 1)
    with open_run_of(tmp_path / "run") as run:
        measured, value = run.step(step), jnp.zeros(())
        for _ in range(100):
            value = measured(value)
            run.log(loss=value)
            run.log(twice=value * 2, lr=0.5)
    expected = [(at, {"loss": float(at), "twice": 2.0 * at, "lr": 0.5}) for at in range(1, 101)]
    assert values_of(run, "train") == expected


def test_a_tracer_is_refused() -> None:
    """Inside of a jitted function there is no value yet."""
    with open_run_of() as run:

        @jax.jit
        def step(x: jax.Array) -> jax.Array:
            run.log(loss=x)
            return x

        with pytest.raises(MetricError, match="traced by JAX"):
            step(jnp.ones(()))


def test_a_donated_value_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A value that a later call has consumed cannot be read; the rest of its row is."""
    consume = jax.jit(lambda x: x + 1, donate_argnums=0)
    with open_run_of(tmp_path / "run") as run, caplog.at_level(logging.WARNING):
        value = jnp.ones(()) * 2
        run.log(mine=value, other=1.0)
        consume(value)
        assert value.is_deleted()
    assert values_of(run, "train") == [(0, {"other": 1.0})]
    assert "'mine' could not be read: it was donated" in caplog.text


def test_a_loss_that_is_not_finite_is_noted(tmp_path: Path) -> None:
    """The first NaN of training is a row of its own, and the run goes on."""
    with open_run_of(tmp_path / "run") as run:
        for step, loss in enumerate([1.0, float("nan"), float("nan")]):
            run.log(loss=loss, step=step)
    assert [(row["step"], row["values"]) for row in rows_of(run, "non_finite")] == [(1, {"loss": "nan"})]


def test_other_threads_may_log(tmp_path: Path) -> None:
    """What another thread logs is written by the loop's."""
    with open_run_of(tmp_path / "run") as run:
        thread = threading.Thread(target=lambda: run.log(reward=1.0, step=5))
        thread.start()
        thread.join()
    assert values_of(run, "train") == [(5, {"reward": 1.0})]


def test_tools_get_the_rows(tmp_path: Path) -> None:
    """A tool hears of rows as it does with the trainer."""
    with MeasuredRun(LoggerConfig(log_path=tmp_path / "run", log_tools=[FileLoggerConfig()])) as run:
        step, state = run.step(step_of()), weights()
        for batch in run.batches(make_loader()):
            state, loss = step(state, batch)
            run.log(loss=loss)
    files = list((tmp_path / "run").rglob("*.csv"))
    assert any(len(file.read_text().splitlines()) == 5 for file in files)


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A device that never catches up costs rows, not memory, and that is said once."""
    monkeypatch.setattr("trackside.measured_run.logged_values.MAX_ROWS", 3)
    with open_run_of(tmp_path / "run") as run, caplog.at_level(logging.WARNING):
        run._values._know(Later(0.0))
        for step in range(40):
            run.log(loss=Later(float(step)), step=step)
        for _ in range(100):
            run._values.write()
    assert caplog.text.count("rows behind") == 1
    assert len(values_of(run, "train")) <= 5


@pytest.mark.parametrize("make", [lambda: torch.zeros(()), lambda: torch.nn.Parameter(torch.zeros(()))])
def test_a_tensor_is_logged_as_it_is_now(tmp_path: Path, make: Any) -> None:
    """What is added to it afterwards, in place, does not change the rows before."""
    total = make()
    with open_run_of(tmp_path / "run") as run:
        for step in range(1, 6):
            with torch.no_grad():
                total += step
            run.log(total=total, step=step)
    assert [values["total"] for _, values in values_of(run, "train")] == [1, 3, 6, 10, 15]


def test_a_buffer_that_is_used_again_is_copied(tmp_path: Path) -> None:
    """Values for each step of a call, and those of other threads, are those of the moment."""
    buffer, number = np.zeros(4), np.zeros(())
    with open_run_of(tmp_path / "run") as run:
        made = run.step(lambda: None, steps_per_call=4)
        for call in range(3):
            buffer[:] = np.arange(4) + 4 * call
            made()
            run.log(loss=buffer)
        for step in range(20, 23):
            number[...] = step
            thread = threading.Thread(target=run.log, kwargs={"x": number, "step": step})
            thread.start()
            thread.join()
        number[...] = -1
    rows = dict(values_of(run, "train"))
    assert [rows[step]["loss"] for step in range(1, 13)] == list(range(12))
    assert [rows[step]["x"] for step in range(20, 23)] == [20, 21, 22]


def test_parts_inside_of_a_validation_are_part_of_it(tmp_path: Path) -> None:
    """What is logged in a block inside of a validation is validation's, and after it training's again."""
    with open_run_of(tmp_path / "run") as run:
        with run.part("validation"):
            with run.part("decode"):
                run.log(bleu=0.5, step=1)
            run.log(loss=1.0, step=1)
        run.log(loss=2.0, step=2)
    assert values_of(run, "val") == [(1, {"bleu": 0.5, "loss": 1.0})]
    assert values_of(run, "train") == [(2, {"loss": 2.0})]


def test_an_epoch_of_the_users_own_is_kept(tmp_path: Path) -> None:
    """Who logs an epoch means it; the time of steps is the run's own figure."""
    with open_run_of(tmp_path / "run") as run:
        run.log(loss=1.0, epoch=7, step=1)
        with pytest.raises(MetricError, match="'step_time' is what the run measures itself"):
            run.log(loss=1.0, step_time=0.1, step=2)
    assert [row["values"]["epoch"] for row in rows_of(run, "metrics", mode="train")] == [7]


@pytest.mark.parametrize("step", ["3", 2.5, -1, 2**63])
def test_steps_that_are_none_are_refused_at_once(tmp_path: Path, step: Any) -> None:
    """The call that is wrong raises, and the others are logged."""
    with open_run_of(tmp_path / "run") as run:
        with pytest.raises(ConfigError, match="step="):
            run.log(loss=1.0, step=step)
        run.log(loss=2.0, step=1)
    assert values_of(run, "train") == [(1, {"loss": 2.0})]


@pytest.mark.parametrize("every", ["x", 2.5, 0])
def test_intervals_that_are_none_are_refused(every: Any) -> None:
    """So does one that has no meaning as a number of steps."""
    with open_run_of() as run, pytest.raises(ConfigError, match="every="):
        run.log(loss=1.0, every=every)


def test_a_number_that_no_float_can_hold() -> None:
    """It is an error that names the value."""
    with open_run_of() as run, pytest.raises(MetricError, match="'a' is a number that no float can hold"):
        run.log(a=10**400)
