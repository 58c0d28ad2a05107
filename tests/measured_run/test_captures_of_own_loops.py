"""Callbacks of captures and memory work in a loop of the user's own, at the steps that were asked for."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.measured_run.own_loops import make_loader, open_run_of, rows_of, step_of, weights
from trackside.callbacks import (
    EarlyStopping,
    JaxProfilerConfig,
    MemoryProfileConfig,
    MemoryProfiler,
    ProfilingConfig,
)
from trackside.clock import SYSTEM_CLOCK, ManualClock
from trackside.errors import ConfigError
from trackside.measured_run import MeasuredRun
from trackside.run_layout import CAPTURE_REQUEST_FILE_NAME


def train(run: MeasuredRun, num_steps: int) -> None:
    step, state = run.step(step_of()), weights()
    for batch in run.batches(make_loader(num_steps)):
        state, loss = step(state, batch)
        run.log(loss=loss)


@pytest.mark.usefixtures("fresh_compiles")
def test_a_window_of_steps_is_captured(tmp_path: Path) -> None:
    """A capture holds exactly its steps, marked, with scopes of the step and its FLOPs."""
    window = ProfilingConfig(log_dir=str(tmp_path / "profiles"), start_step=1, end_step=4)
    traces = []

    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state: jax.Array, batch: tuple) -> tuple[jax.Array, jax.Array]:
        traces.append(1)
        x, y = batch
        with jax.named_scope("model"):
            loss, grad = jax.value_and_grad(lambda state: jnp.mean((x @ state - y) ** 2))(state)
        return state - 0.1 * grad, loss

    with open_run_of(tmp_path / "run", clock=SYSTEM_CLOCK, callbacks=[window]) as run:
        step, state = run.step(train_step), weights()
        for batch in run.batches(make_loader(6)):
            state, _ = step(state, batch)
    (row,) = rows_of(run, "capture")
    assert (row["first_step"], row["last_step"], row["error"]) == (1, 3, "")
    assert row["report"]["step_program"].startswith("jit_train_step")
    assert row["report"]["flops"] is not None
    assert len(traces) == 1  # what it asks of JAX is not traced again
    assert set(row["memory"]["live"]) >= {"state", "batch"}


def test_captures_on_demand(tmp_path: Path) -> None:
    """A file that is touched asks for a capture, which ends before validation."""
    config = JaxProfilerConfig(profile_first_step=1000, profile_n_steps=2, profile_every_n_minutes=-1)
    clock = ManualClock(start=1.0)
    with open_run_of(tmp_path / "run", clock=clock, callbacks=[config]) as run:
        (tmp_path / "run" / CAPTURE_REQUEST_FILE_NAME).touch()
        train(run, 4)
        with run.part("validation"):
            pass
    (row,) = rows_of(run, "capture")
    assert row["reason"] == f"{CAPTURE_REQUEST_FILE_NAME} was touched"


def test_the_memory_has_a_timeline(tmp_path: Path) -> None:
    """Samples are taken between steps, with what the step's arguments fill."""
    config = MemoryProfileConfig(log_dir=str(tmp_path / "memory"), profile_every_n_steps=2)
    with open_run_of(tmp_path / "run", callbacks=[MemoryProfiler(config)]) as run:
        train(run, 5)
    samples = rows_of(run, "memory")
    assert [sample["step"] for sample in samples] == [0, 2, 4]
    assert "weights" in samples[-1]["live"]


def test_callbacks_that_need_a_trainer_are_refused(tmp_path: Path) -> None:
    """A callback that could do nothing in such a loop is refused by name."""
    with pytest.raises(ConfigError, match="EarlyStopping needs a trainer"):
        open_run_of(tmp_path / "run", callbacks=[EarlyStopping()])


def test_programs_have_the_names_that_traces_have(tmp_path: Path) -> None:
    """A lambda, and a function whose name ends with `_`, are found in the trace."""
    config = JaxProfilerConfig(profile_first_step=1, profile_n_steps=1, profile_every_n_minutes=-1)

    def step_(state: jax.Array) -> jax.Array:
        return jnp.tanh(state @ state)

    for index, function in enumerate((jax.jit(step_), jax.jit(lambda state: jnp.tanh(state @ state)))):
        with open_run_of(tmp_path / str(index), clock=SYSTEM_CLOCK, callbacks=[config]) as run:
            step, state = run.step(function), jnp.ones((4, 4))
            for _ in range(4):
                state = step(state)
        assert [row["error"] for row in rows_of(run, "capture")] == [""]


@pytest.mark.parametrize(("donates", "num_alive"), [(True, 1), (False, 2)])
def test_memory_is_that_of_each_argument(tmp_path: Path, donates: bool, num_alive: int) -> None:
    """The momentum has the shapes of the parameters, and is the optimizer's; copies of them belong to nobody."""
    optimizer, kept = optax.sgd(0.1, momentum=0.9), []

    @functools.partial(jax.jit, donate_argnums=(0, 1) if donates else ())
    def train_step(params: Any, opt_state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda params: ((batch @ params["w"]) ** 2).mean())(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    params = {"w": jnp.ones((64, 64))}
    state = params, optimizer.init(params)
    memory = MemoryProfileConfig(log_dir=str(tmp_path / "memory"), profile_every_n_steps=4)
    with open_run_of(tmp_path / "run", callbacks=[memory]) as run:
        step = run.step(train_step)
        for batch in run.batches([np.ones((8, 64), np.float32)] * 4):
            state, _ = step(*state, batch)
            kept.append(jnp.copy(state[0]["w"]))
    live, size = rows_of(run, "memory")[-1]["live"], 4 * 64 * 64
    assert live["params"] == num_alive * size
    assert live["opt_state"] == num_alive * size
    assert live["other"] >= 3 * size
