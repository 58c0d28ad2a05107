"""A loop of the user's own is measured like the trainer's, and stays as it is."""

import argparse
import functools
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import trackside
from tests.measured_run.own_loops import make_loader, open_run_of, rows_of, step_of, weights
from trackside.callbacks import Callback, MemoryProfileConfig
from trackside.clock import ManualClock
from trackside.errors import ConfigError, MetricError
from trackside.logger import FileLoggerConfig, LoggerConfig
from trackside.measured_run import MeasuredRun
from trackside.measured_run.run_lock import RunLock
from trackside.profiling.compiles import compile_counter


def train(run: MeasuredRun, step: Any, loader: Any, num_epochs: int = 1) -> jax.Array:
    """The loop of a user."""
    state = weights()
    for _ in range(num_epochs):
        for batch in run.batches(loader):
            state, loss = step(state, batch)
            run.log(loss=loss)
    return state


def test_every_reader_works_on_the_run(tmp_path: Path) -> None:
    """What a loop of one's own writes has status, legs, metrics, a ledger, an environment and a config."""
    with trackside.run(tmp_path / "run", config={"lr": 0.1}) as run:
        train(run, run.step(step_of()), make_loader(), num_epochs=2)
        with run.part("validation"):
            run.log(loss=0.5)
    read = trackside.open_run(tmp_path / "run")
    assert read.status == "success"
    assert [(leg.number, leg.first_step, leg.last_step) for leg in read.legs] == [(1, 0, 8)]
    assert read.metrics["train"]["loss"].size == 8
    assert read.metrics["val"]["loss"].tolist() == [0.5]
    assert read.ledger is not None
    assert (read.ledger.num_steps, read.ledger.num_samples) == (8, 24)
    assert read.config == {"lr": 0.1}
    assert (tmp_path / "run" / "output.log").is_file()
    assert any("loaders" in row for row in rows_of(run, "environment"))


def test_results_and_compiles_are_those_of_the_bare_loop() -> None:
    """Measuring changes no bit of the results, and compiles nothing more."""
    bare, loader = step_of(), make_loader()
    state = weights()
    for batch in loader:
        state, _ = bare(state, batch)
    compiled = compile_counter().num_compiles
    with open_run_of() as run:
        measured = train(run, run.step(bare), loader)
    assert compile_counter().num_compiles == compiled
    np.testing.assert_array_equal(measured, state)


def test_methods_of_the_function_are_reached() -> None:
    """What a jitted function has besides being called is there after wrapping."""
    with open_run_of() as run:
        step = run.step(step_of())
        assert step.lower(weights(), make_loader()[0]).compile() is not None
        step(weights(), make_loader()[0])


def test_parts_sum_to_the_wall_on_a_manual_clock() -> None:
    """Each delay is in its part, and nothing is lost."""
    clock = ManualClock(start=-1e6)
    began_s = clock.now()

    def batches() -> Any:
        for batch in make_loader():
            clock.advance(0.002)
            yield batch

    def slow_step(state: Any, batch: Any) -> Any:
        clock.advance(0.01)
        return state, jnp.sum(state)

    run = open_run_of(clock=clock)
    clock.advance(1.0)
    with run:
        step = run.step(slow_step)
        for batch in run.batches(batches()):
            step(weights(), batch)
            clock.advance(0.03)
            with run.part("augment"):
                clock.advance(0.5)
                with run.part("checkpointing"):
                    clock.advance(0.25)
    totals = run.ledger_totals
    expected = {"setup": 1.0, "data_wait": 0.008, "dispatch": 0.04, "other": 0.12, "augment": 2.0, "checkpointing": 1.0}
    assert {name: seconds for name, seconds in totals.parts.items() if seconds} == pytest.approx(expected)
    assert totals.wall_s == pytest.approx(clock.now() - began_s)


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.01, 0.03])
@pytest.mark.parametrize("part", ["data_wait", "dispatch", "other", "validation"])
def test_idle_time_has_the_reason_that_it_had(part: str, delay_s: float) -> None:
    """A device that is done when the call returns idles for as long as the host is busy, and for that reason."""
    clock = ManualClock(start=1.0)

    def wait(here: str) -> None:
        if here == part:
            clock.advance(delay_s)

    def batches() -> Any:
        for batch in make_loader(10):
            wait("data_wait")
            yield batch

    def step_on_host(batch: Any) -> None:
        clock.advance(0.005)
        wait("dispatch")

    with open_run_of(clock=clock) as run:
        step = run.step(step_on_host)
        for batch in run.batches(batches()):
            step(batch)
            wait("other")
            if part == "validation":
                with run.part("validation"):
                    wait("validation")
    totals = run.ledger_totals
    extra_s = 0.05 if part == "dispatch" else 0.0
    assert totals.parts[part] == pytest.approx(10 * delay_s + extra_s)
    if part in ("data_wait", "other"):
        assert totals.idle_by_reason.get(part, 0.0) == pytest.approx(9 * delay_s, abs=delay_s)


def test_a_validation_is_no_idle_time() -> None:
    """What the device does in a validation is not known, whichever functions compute it."""
    clock = ManualClock(start=1.0)
    with open_run_of(clock=clock) as run:
        step = run.step(lambda: clock.advance(0.01), name="step")
        for _ in range(3):
            for _ in range(5):
                step()
            with run.part("validation"):
                clock.advance(1.0)
    assert run.ledger_totals.parts["validation"] == pytest.approx(3.0)
    assert run.ledger_totals.idle_by_reason.get("validation", 0.0) == 0.0
    assert run.ledger_totals.device_idle_s == pytest.approx(0.0)


def test_idle_time_of_a_callback_is_not_that_of_the_loop() -> None:
    """While a callback acts between two steps, the device idles for it, and not for the loop's own code."""
    clock = ManualClock(start=1.0)

    class Slow(Callback):
        def decide(self, step_idx: int) -> bool:
            return True

        def next_boundary(self, step_idx: int) -> float:
            return step_idx + 1

        def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
            clock.advance(0.5)

    with open_run_of(clock=clock, callbacks=[Slow()]) as run:
        step = run.step(lambda: clock.advance(0.01), name="step")
        for _ in range(12):
            step()
            clock.advance(0.25)
    idle = run.ledger_totals.idle_by_reason
    assert idle == pytest.approx({"callback/Slow": 10 * 0.5, "other": 10 * 0.25})


def test_recompiles_name_their_cause(tmp_path: Path) -> None:
    """Each watched function has its compiles explained, by the argument that changed."""
    with open_run_of(tmp_path / "run") as run:
        step = run.step(step_of())
        for size in (3, 5):
            step(weights(), make_loader(1, batch_size=size)[0])
    compiled = rows_of(run, "compile", function="train_step")
    assert [row["num_recompiles"] for row in compiled] == [0, 1]
    assert {change["path"] for change in compiled[1]["changes"]} == {"batch[0]", "batch[1]"}


def test_several_functions_make_one_step() -> None:
    """A function of which the calls are no steps is measured, and does not count."""
    with open_run_of() as run:
        discriminator, generator = run.step(step_of(), steps_per_call=0), run.step(step_of())
        state = weights(), weights()
        for batch in run.batches(make_loader()):
            state = discriminator(state[0], batch)[0], generator(state[1], batch)[0]
    assert run.num_steps == run.ledger_totals.num_steps == 4
    assert run.ledger_totals.num_samples == 12


@pytest.mark.parametrize("comes_first", [True, False])
def test_parts_of_a_step_have_its_number(tmp_path: Path, comes_first: bool) -> None:
    """What a part logs is in the row of its step, whether it is called before the rest of the step or after it."""
    with open_run_of(tmp_path / "run") as run:
        part, step = run.step(step_of(), steps_per_call=0, name="part"), run.step(step_of())
        for batch in run.batches(make_loader()):
            calls = [(part, "part_loss"), (step, "loss")]
            for function, name in calls if comes_first else calls[::-1]:
                run.log({name: function(weights(), batch)[1]})
    table = trackside.open_run(tmp_path / "run").metrics["train"]
    assert table.step.tolist() == [1, 2, 3, 4]
    assert all(np.isfinite(table[name]).all() for name in ("loss", "part_loss"))
    assert {row["step"] for row in rows_of(run, "compile") if not row["is_operation"]} == {1}


def test_evaluations_keep_the_number_of_the_last_step(tmp_path: Path) -> None:
    """A function that makes no step is no part of the next one if it is called now and then, or logs a validation."""
    with open_run_of(tmp_path / "run") as run:
        evaluate, step = run.step(step_of(), steps_per_call=0), run.step(step_of())
        batch = make_loader()[0]
        for num_steps in (0, 3, 3):
            for _ in range(num_steps):
                step(weights(), batch)
            run.log({"val/loss": evaluate(weights(), batch)[1]})
        run.log(evaluated=1.0)
    metrics = trackside.open_run(tmp_path / "run").metrics
    assert metrics["val"].step.tolist() == [0, 3, 6]
    assert metrics["train"].step.tolist() == [6]


def test_time_to_the_first_step_ends_with_a_step(tmp_path: Path) -> None:
    """A call of something that makes no step is on the way to the first step."""
    clock = ManualClock(start=1.0)
    with open_run_of(tmp_path / "run", clock=clock) as run:
        part = run.step(lambda: clock.advance(0.5), steps_per_call=0, name="part")
        step = run.step(lambda: clock.advance(0.25), name="step")
        for _ in range(3):
            part()
            step()
    (first,) = rows_of(run, "first_step")
    assert (first["step"], first["wall_s"]) == (1, pytest.approx(0.75))


def test_steps_inside_a_scan_count() -> None:
    """A call that scans over K batches makes K steps."""
    stacked = [np.stack(leaves) for leaves in zip(*make_loader(), strict=True)]
    step = step_of(donates=False)
    scan = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))
    with open_run_of(start_step=10) as run:
        run.step(scan, steps_per_call=4, name="scan")(weights(), tuple(stacked))
    assert run.num_steps == 14


def test_step_times_of_a_scan_are_those_of_its_steps() -> None:
    """A call of K steps counts as K when it is said how long a step takes."""
    clock = ManualClock(start=1.0)
    with open_run_of(clock=clock) as run:
        step = run.step(lambda: clock.advance(0.4), steps_per_call=4, name="scan")
        for _ in range(6):
            step()
    assert run._meter.step_times.median_s() == pytest.approx(0.1)


def test_accumulation_by_hand_counts_updates() -> None:
    """Microbatches are part of the step that their update makes."""
    loss = jax.jit(jax.grad(lambda state, batch: jnp.mean((batch[0] @ state - batch[1]) ** 2)))
    update = jax.jit(lambda state, grads: state - 0.1 * grads)
    with open_run_of() as run:
        grad_of, apply, state = run.step(loss, steps_per_call=0), run.step(update), weights()
        for index, batch in enumerate(run.batches(make_loader(6))):
            grads = grad_of(state, batch)
            if index % 3 == 2:
                state = apply(state, grads)
    assert run.num_steps == 2
    assert run.ledger_totals.num_samples == 18


def test_nnx_and_equinox_steps_are_measured() -> None:
    """Functions that Flax and Equinox have jitted are steps like others."""

    @nnx.jit
    def nnx_step(model: Any, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        nnx.update(model, jax.tree.map(lambda param, grad: param - 0.1 * grad, nnx.state(model, nnx.Param), grads))
        return loss

    @eqx.filter_jit
    def eqx_step(model: Any, x: Any) -> Any:
        loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean(jax.vmap(model)(x) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda grad: -0.1 * grad, grads)), loss

    x = jnp.ones((3, 2))
    with trackside.run(None) as run:
        steps, nnx_model = (run.step(nnx_step), run.step(eqx_step)), nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        eqx_model = eqx.nn.Linear(2, 1, key=jax.random.key(0))
        for _ in range(6):
            steps[0](nnx_model, x)
            eqx_model, loss = steps[1](eqx_model, x)
            run.log(loss=loss)
    assert run.num_steps == 12
    assert run.ledger_totals.device_busy_s is not None


def test_static_arguments_methods_and_partials() -> None:
    """Whatever can be called can be a step."""

    class Model:
        @functools.partial(jax.jit, static_argnums=(0, 2))
        def train_step(self, state: Any, factor: int) -> Any:
            return state * factor

        def __hash__(self) -> int:
            return 1

    with open_run_of() as run:
        state = run.step(functools.partial(Model().train_step, factor=2))(weights())
        state = run.step(Model().train_step)(state, 3)
        run.step(torch.nn.Linear(2, 1))(torch.ones(2))
    assert run.num_steps == 3
    assert [made.name for made in run._book.functions] == ["train_step", "train_step", "Linear"]


def test_an_object_that_is_called_keeps_its_own_state() -> None:
    """What a step changes in its object is seen through the measured one, and what is set there is the object's."""

    class Model:
        def __init__(self) -> None:
            self.state = weights()

        def __call__(self, batch: Any) -> jax.Array:
            self.state, loss = update(self.state, batch)
            return loss

        def reset(self) -> None:
            self.state = weights()

    update, bare = step_of(), Model()
    for batch in make_loader():
        bare(batch)
    own = Model()
    with open_run_of() as run:
        step = run.step(own)
        for batch in make_loader():
            run.log(loss=step(batch))
        np.testing.assert_array_equal(step.state, bare.state)
        step.reset()
        np.testing.assert_array_equal(own.state, weights())
        step.state = weights() + 1
        assert own.state is step.state
        assert run.step(step) is step
    assert run.num_steps == 4
    with open_run_of() as second:
        second.step(step)(batch)
    assert second.num_steps == 1


def test_sharded_steps_are_measured() -> None:
    """Arrays on several devices are looked at like others."""
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("data",))
    batch = jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh, PartitionSpec("data")))
    step = jax.jit(lambda state, batch: (state - 0.1 * jnp.mean(batch, 0), jnp.mean(batch)))
    with open_run_of() as run:
        measured, state = (
            run.step(step, name="sharded"),
            jax.device_put(weights(), NamedSharding(mesh, PartitionSpec())),
        )
        for _ in range(3):
            state, loss = measured(state, batch)
            run.log(loss=loss)
    assert run.num_steps == 3


def test_torch_loops_are_measured() -> None:
    """A step of PyTorch is over when it returns; its loss keeps no graph."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with open_run_of() as run:
        step = run.step(train_step)
        for x in run.batches([torch.ones(3, 2)] * 5):
            run.log(loss=step(x))
    assert (run.num_steps, run.ledger_totals.num_samples) == (5, 15)


def test_a_step_inside_of_another_is_part_of_it() -> None:
    """Measured functions may call each other, also while JAX traces them."""
    with open_run_of() as run:
        inner = run.step(step_of(donates=False))
        outer = run.step(jax.jit(lambda state, batch: inner(state, batch)[0]), name="outer")
        around = run.step(lambda state, batch: inner(state, batch), name="around")
        outer(weights(), make_loader()[0])
        around(weights(), make_loader()[0])
        jax.make_jaxpr(inner)(weights(), make_loader()[0])
    assert run.num_steps == 2


def test_what_an_earlier_run_has_wrapped_is_measured_by_the_next() -> None:
    """A cell of a notebook that is run again wraps what it has wrapped before, and the new run measures it."""
    step, loader, state = step_of(), make_loader(), weights()
    for _ in range(2):
        with open_run_of() as run:
            step, loader = run.step(step), run.batches(loader)
            for batch in loader:
                state, _ = step(state, batch)
        assert (run.num_steps, run.ledger_totals.num_steps, run.ledger_totals.num_samples) == (4, 4, 12)


def test_a_loader_is_let_go_of_at_the_end() -> None:
    """Batches that are taken after the end come, and nothing is kept of them."""
    with open_run_of() as run:
        loader = run.batches(make_loader())
    assert len(list(loader)) == 4
    assert run._host.spans == []


def test_nested_loops_are_one_epoch(tmp_path: Path) -> None:
    """A pass inside of another is no epoch of its own; the one after it is."""
    with open_run_of(tmp_path / "run") as run:
        step = run.step(step_of(donates=False))
        for _ in range(2):
            for batch in run.batches(make_loader(2)):
                for _ in run.batches(make_loader(3)):
                    step(weights(), batch)
    assert [row["epoch"] for row in rows_of(run, "metrics", mode="train_epoch")] == [1, 2]
    assert run.num_steps == 12


def test_a_second_loader_that_goes_on_does_not_end_epochs(tmp_path: Path) -> None:
    """Passes over the first loader are epochs, whatever is read beside them for longer."""
    with open_run_of(tmp_path / "run") as run:
        step, state = run.step(step_of()), weights()
        beside = iter(run.batches(make_loader(50)))
        for _ in range(3):
            for batch in run.batches(make_loader(4)):
                next(beside)
                state, _ = step(state, batch)
    assert run._book.epoch == 3


def test_functions_that_make_no_step_belong_to_the_part(tmp_path: Path) -> None:
    """What is evaluated in a part is the part's time, with its batches; its compiles are explained."""
    clock = ManualClock(start=-1e6)
    with open_run_of(tmp_path / "run", clock=clock) as run:
        evaluate = run.step(jax.jit(lambda batch: jnp.sum(batch[0])), steps_per_call=0, name="evaluate")
        step = run.step(step_of())
        step(weights(), make_loader()[0])
        with run.part("validation"):
            for batch in run.batches(make_loader(2)):
                clock.advance(1.0)
                evaluate(batch)
            evaluate(make_loader(1, batch_size=7)[0])
    totals = run.ledger_totals
    assert (totals.num_steps, totals.num_samples, totals.parts["validation"]) == (1, 0, 2.0)
    assert [row["num_recompiles"] for row in rows_of(run, "compile", function="evaluate")] == [0, 1]


def test_resumed_runs_have_legs(tmp_path: Path) -> None:
    """A run goes on as a new leg, from the step that the loop gives."""
    for start_step in (0, 3):
        with trackside.run(tmp_path / "run", resume=True, start_step=start_step, num_steps=7) as run:
            train(run, run.step(step_of()), make_loader())
    read = trackside.open_run(tmp_path / "run")
    assert [(leg.number, leg.first_step, leg.last_step) for leg in read.legs] == [(1, 0, 4), (2, 3, 7)]
    assert read.metrics["train"].step.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert read.ledger is not None
    assert read.ledger.num_steps == 8


def test_a_resume_without_a_step_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the step is left out, the run says that it begins again; on a first leg there is nothing to say."""
    for _ in range(2):
        assert "resume=True without start_step" not in caplog.text
        with trackside.run(tmp_path / "run", resume=True) as run:
            train(run, run.step(step_of()), make_loader())
    assert "resume=True without start_step: the run in" in caplog.text


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    """While a run is open its folder is refused; afterwards another run goes beside it."""
    with trackside.run(tmp_path / "run"):
        with pytest.raises(ConfigError, match="in use"):
            trackside.run(tmp_path / "run")
        with RunLock(tmp_path / "other"), pytest.raises(ConfigError, match="in use"):
            trackside.run(tmp_path / "other")
    with trackside.run(tmp_path / "run") as second:
        assert second.path == tmp_path / "run-2"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError, "error"), (KeyboardInterrupt, "interrupted"), (SystemExit, "success"), (None, "success")],
)
def test_how_it_ends_is_a_status(tmp_path: Path, error: type[BaseException] | None, status: str) -> None:
    """Whatever ends the loop, the run says so, and has every row."""

    def loop() -> None:
        with trackside.run(tmp_path / "run") as run:
            train(run, run.step(step_of()), make_loader())
            if error is not None:
                raise error

    if error is None:
        loop()
    else:
        with pytest.raises(error):
            loop()
    read = trackside.open_run(tmp_path / "run")
    assert (read.status, read.metrics["train"]["loss"].size) == (status, 4)


def test_a_step_that_fails_leaves_the_run_usable() -> None:
    """An exception of the step is the user's; the next call is measured."""
    with open_run_of() as run:
        step = run.step(step_of(donates=False))
        with pytest.raises(TypeError):
            step("no weights", make_loader()[0])
        step(weights(), make_loader()[0])
    assert run.num_steps == 1


def test_wrong_use_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each mistake has its sentence, and has it once."""
    with caplog.at_level(logging.WARNING, "trackside"):
        with open_run_of() as run:
            loader = run.batches(run.batches(make_loader(1)))
            step = run.step(run.step(step_of(donates=False)))
            run.step(lambda: None, name="forgotten")
            for batch in loader:
                step(weights(), batch)
            thread = threading.Thread(target=step, args=(weights(), batch))
            thread.start()
            thread.join()
        for _ in range(2):
            step(weights(), batch)
            run.log(loss=1.0)
    said = [record.getMessage() for record in caplog.records]
    for words in (
        "this loader is wrapped already",
        "this function is wrapped already",
        "run.step(forgotten) was never called",
        "on another thread",
        "train_step was called after the run was closed",
        "run.log was called after the run was closed",
    ):
        assert sum(words in message for message in said) == 1, words


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    """Errors name what was given, and what to do."""
    with open_run_of() as run:
        with pytest.raises(ConfigError, match=r"run\.step: expected a function, got 3"):
            run.step(3)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="steps_per_call"):
            run.step(step_of(), steps_per_call=-1)
        with pytest.raises(ConfigError, match=r"run\.part: 'dispatch' is measured already"):
            run.part("dispatch")
        with pytest.raises(ConfigError, match=r"run\.part: expected a name such as 'validation', got 3$"):
            run.part(3)  # type: ignore[arg-type]
        with pytest.raises(MetricError, match=r"expected numbers by name, got a float"):
            run.log(3.0)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="every=0"):
            run.log(loss=1.0, every=0)
        with pytest.raises(trackside.errors.DataError, match="cannot be iterated"):
            run.batches(3)
    with pytest.raises(ConfigError, match="config"):
        trackside.run(tmp_path / "run", config=3)
    with pytest.raises(ConfigError, match="start_step"):
        trackside.run(tmp_path / "run", start_step=-1)
    with trackside.run(tmp_path / "run"):
        pass


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"path": 3}, "path: expected str | Path | None, got 3"),
        ({"resume": "auto"}, "resume: expected bool, got 'auto'"),
        ({"start_step": "5"}, "start_step: expected int, got '5'; write 5"),
        ({"num_steps": 1e4}, "num_steps: expected int, got 10000.0; write 10000"),
        ({"num_steps": 0}, "num_steps: expected a positive number, or None; got 0"),
        ({"max_recompiles": -5}, "max_recompiles: expected 0 or more, or -1"),
        ({"silence_findings": "input-bound"}, "write .'input-bound'."),
        ({"silence_findings": 3}, "silence_findings: expected a list of ids, got 3"),
        ({"tools": 3}, "tools: expected configs of tools such as FileLoggerConfig.., got 3"),
        ({"tools": ["csv"]}, "tools: expected configs of tools such as FileLoggerConfig.., got 'csv'"),
        ({"callbacks": 3}, "callbacks: expected a list of callbacks or of their configs, got 3"),
    ],
)
def test_arguments_of_wrong_types_are_named_before_anything_is_written(
    kwargs: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Argument, value and fix; and no folder is left behind."""
    with pytest.raises(ConfigError, match=message):
        trackside.run(**{"path": tmp_path / "run", **kwargs})
    assert list(tmp_path.iterdir()) == []


def test_one_tool_or_callback_is_a_list_of_one(tmp_path: Path) -> None:
    """As for the trainer."""
    config = MemoryProfileConfig(log_dir=str(tmp_path / "memory"), profile_every_n_steps=1)
    with trackside.run(tmp_path / "run", tools=FileLoggerConfig(), callbacks=config) as run:
        train(run, run.step(step_of()), make_loader())
    assert (tmp_path / "run" / "metrics" / "train.csv").is_file()
    assert (tmp_path / "memory" / "memory_profile.json").is_file()


def test_configs_may_be_what_people_have(tmp_path: Path) -> None:
    """A dataclass or the arguments of a command line are a config."""

    @dataclass
    class Config:
        lr: float = 0.5

    for name, config in (("a", Config()), ("b", argparse.Namespace(lr=0.5))):
        with trackside.run(tmp_path / name, config=config):
            pass
        assert trackside.open_run(tmp_path / name).config == {"lr": 0.5}


def test_a_function_that_is_only_traced_is_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    """A warning says to wrap the jitted function, if the wrapped function was jitted instead."""
    with open_run_of() as run:
        jax.jit(run.step(lambda x: x + 1))(1.0)
        run.step(lambda x: x)
    assert "run.step(<lambda>) was called only while JAX traced" in caplog.text
    assert "as in step = run.step(jax.jit(step))" in caplog.text
    assert "run.step(<lambda>) was never called: call what it returns, as in step = run.step(step)" in caplog.text


def test_a_loop_without_a_step_is_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    """Where run.step was forgotten, there are no steps, and the log says why; a run that only logs is well."""
    with open_run_of() as run:
        run.log(loss=1.0)
    assert "run.step" not in caplog.text
    with open_run_of() as run:
        for _ in run.batches(make_loader()):
            run.log(loss=1.0)
    assert caplog.text.count("no function was given to run.step: no steps are counted") == 1


def test_a_part_may_be_inside_of_itself() -> None:
    """As in a function that calls itself; afterwards the time is the loop's again."""
    clock = ManualClock()
    with open_run_of(clock=clock) as run:
        run.step(step_of())(weights(), make_loader(1)[0])
        part = run.part("search")
        with part, part:
            clock.advance(1.0)
        clock.advance(2.0)
    assert run.ledger_totals.parts["search"] == pytest.approx(1.0)
    assert run.ledger_totals.parts["other"] == pytest.approx(2.0)


def test_a_checkpoint_in_a_validation_is_left_out_once(tmp_path: Path) -> None:
    """Blocks inside of each other do not shorten the logged step times."""
    clock = ManualClock()
    with open_run_of(tmp_path / "run", clock) as run:
        step, state = run.step(step_of(donates=False)), weights()
        for index, batch in enumerate(make_loader(4)):
            state, loss = step(state, batch)
            run.log(loss=float(loss))
            clock.advance(10.0)
            if index == 1:
                with run.part("validation"), run.part("search"), run.part("checkpointing"):
                    clock.advance(7.0)
    assert [row["values"]["step_time"] for row in rows_of(run, "metrics", mode="train")][2:] == [10.0, 10.0]


def test_a_run_may_be_closed_by_hand(tmp_path: Path) -> None:
    """Without `with`, `close` ends the run, and does nothing the second time."""
    run = trackside.run(tmp_path / "run", progress=True)
    train(run, run.step(step_of()), make_loader())
    run.close()
    run.close("error")
    assert trackside.open_run(tmp_path / "run").status == "success"


def test_parts_of_a_step_do_not_disturb_the_device_clock(tmp_path):
    """Gradients of microbatches and their update, with a slow loader: the device is seen idle, and nothing fails."""
    gradient = jax.jit(jax.grad(lambda p, x: ((x @ p) ** 2).mean()))
    update = jax.jit(lambda p, g: (p - 1e-6 * g, (g**2).sum()))
    params = jnp.ones((16, 16))
    with trackside.run(tmp_path / "run") as run:
        part, step = run.step(gradient, steps_per_call=0), run.step(update)
        for x in run.batches(slow_batches(20)):
            params, norm = step(params, part(params, x) + part(params, x))
            run.log(norm=norm)
    assert run.num_steps == 20
    assert is_idle_or_unknown(run)


def test_nothing_is_said_of_a_device_that_nobody_can_see(tmp_path):
    """Where the last call before each wait returns only what is donated, idle time is not said to be zero."""
    step_ = jax.jit(lambda p, x: (p + x.mean(), p.sum()), donate_argnums=0)
    decay_ = jax.jit(lambda p: p * 0.9, donate_argnums=0)
    params = jnp.ones((16, 16))
    with trackside.run(tmp_path / "run") as run:
        step, decay = run.step(step_), run.step(decay_, steps_per_call=0)
        for x in run.batches(slow_batches(20)):
            params, _ = step(params, x)
            params = decay(params)
    assert is_idle_or_unknown(run)


def is_idle_or_unknown(run):
    """Whether the device is seen idle, as it is most of the time; on a busy machine it may not be seen."""
    share = run.ledger_totals.idle_share
    return share is None or share > 0.2


def slow_batches(number):
    for _ in range(number):
        time.sleep(0.01)  # the subject: a loader that the device waits for
        yield np.ones((8, 16), np.float32)


@pytest.fixture
def no_records() -> Iterator[None]:
    """For names that pytest cannot pass on, if they are in a record of the log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


ODD_NAMES = ("a\udc80", "a\udc81", "a\nb", "a\0b", "\x1b[31mred", "x" * 3000)


@pytest.mark.parametrize("tools", [(), (FileLoggerConfig(),)])
def test_odd_names_lose_nothing(tmp_path: Path, tools: tuple, no_records: None) -> None:
    """Whatever metrics, parts, functions and folders are called, all rows are there; lone surrogates are escaped."""
    folder = tmp_path / "run\udc80"
    with trackside.run(folder, tools=tools) as run:
        step = run.step(step_of(), name=ODD_NAMES[0])
        state = weights()
        for batch in make_loader():
            state, loss = step(state, batch)
            run.log({"loss": loss, **dict.fromkeys(ODD_NAMES, 1.0)})
            for name in ODD_NAMES:
                with run.part(name):
                    pass
        with run.part("validation"):
            run.log({ODD_NAMES[0]: 2.0})
    read = trackside.open_run(folder)
    escaped = [name.encode("utf-8", "backslashreplace").decode() for name in ODD_NAMES]
    assert read.status == "success"
    assert [read.metrics["train"][name].tolist() for name in ["a\\udc80", *escaped[1:]]] == [[1.0] * 4] * 6
    assert read.metrics["val"]["a\\udc80"].tolist() == [2.0]
    assert read.metrics["train"]["loss"].size == 4


def test_names_that_are_none_are_refused() -> None:
    """When they are given, with what was given."""
    with open_run_of() as run:
        for name in ("", 3, None):
            with pytest.raises(MetricError, match=f"run.log: expected names that are strings, .* got {name!r}"):
                run.log({name: 1.0})  # type: ignore[dict-item]
        with pytest.raises(ConfigError, match=r"run\.step: name=3: expected text"):
            run.step(step_of(), name=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300, "a\0b"])
def test_a_folder_that_cannot_be_is_named(tmp_path: Path, name: str) -> None:
    """In words that fit what the user wrote, and not as an error of the system."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="the run's folder"):
        trackside.run(tmp_path / name)


def test_classes_have_to_be_called(tmp_path: Path) -> None:
    """A config or a loader that is a class is named."""
    with pytest.raises(ConfigError, match=r"config: .* got the class LoggerConfig; write LoggerConfig\(...\)"):
        trackside.run(tmp_path / "run", config=LoggerConfig)
    with open_run_of() as run, pytest.raises(trackside.errors.DataError, match=r"run\.batches: .* class list; call it"):
        run.batches(list)
