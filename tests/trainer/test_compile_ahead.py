"""The training step is compiled while the evaluation is prepared, and nobody can tell except by the clock."""

import logging
import threading
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.trainer.tiny import MSETrainer, make_batch, make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CallbackConfig
from trackside.logger import LoggerConfig
from trackside.profiling.ledger_totals import COMPILE
from trackside.trainer import Batch
from trackside.trainer.background_program import THREAD_NAME
from trackside.trainer.compile_ahead import EXAMPLE_NAME


class NeverAhead(MSETrainer):
    """A hook of the user's could change what is traced, so nothing is compiled ahead."""

    def on_training_start(self) -> None:
        self.calls.append("start")


class Listener(Callback):
    """A callback of the user's that acts before the first step."""

    def on_training_start(self) -> None:
        pass


def train(trainer: Any, **changed: Any) -> Any:
    trainer.train_model(**{"train_loader": make_loader(3), "val_loader": make_loader(2), "num_epochs": 2, **changed})
    return trainer


def compiles(run: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(run, "compile") if not row["is_operation"]]


def build(run: Path, trainer_class: type = MSETrainer, **config: Any) -> Any:
    return make_trainer(trainer_class, logger=LoggerConfig(log_path=run), **{"steps_per_call": 1, **config})


def on_device(batches: Any) -> Any:
    return jax.tree.map(jax.numpy.asarray, batches)


def shapes_of(batch: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), batch)


def with_number(batch: Batch) -> Batch:
    return Batch(batch.inputs, 0.5)


def test_a_second_training_has_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that continues neither compiles ahead nor compiles again."""
    started: list[str] = []
    start = threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noting)
    trainer = train(build(tmp_path))
    started.clear()
    train(trainer, num_epochs=4)
    assert trainer.global_step == 12
    assert THREAD_NAME not in started
    assert [row["function"] for row in compiles(tmp_path)].count("train_step") == 1


CASES: dict[str, tuple[Any, Any, Any]] = {
    "single": (1, make_batch(8), make_loader(3)),
    "fused": (2, make_batch(8), make_loader(3)),
    "auto": ("auto", make_batch(8), make_loader(3)),
    "shapes": (2, shapes_of(make_batch(8)), make_loader(3)),
    "a number of Python's": (1, with_number(make_batch(8)), [with_number(batch) for batch in make_loader(3)]),
    "on the device": (2, on_device(make_batch(8)), on_device(make_loader(3))),
}


@pytest.mark.parametrize("case", CASES)
def test_the_step_compiles_once_on_another_thread(tmp_path, case):
    """Its row has the name, the step and the cost of tracing, and is no recompile; for several steps in a call, too."""
    steps_per_call, example, loader = CASES[case]
    trainer = train(build(tmp_path, steps_per_call=steps_per_call, batch=example), train_loader=loader)
    (row,) = [row for row in compiles(tmp_path) if row["function"] == "train_step"]
    assert (row["thread"], row["step"], row["num_recompiles"]) == (THREAD_NAME, 1, 0)
    assert row["trace_s"] > 0
    assert row["lower_s"] > 0
    assert trainer.sentinel.num_recompiles["eval_step"] == 0
    assert [row["function"] for row in compiles(tmp_path)].count("train_call") == 0


@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_results_are_the_same_as_without(tmp_path, steps_per_call):
    """Weights are those of a trainer that compiles at the first call, to the last bit."""
    config = {"steps_per_call": steps_per_call}
    ahead, plain = train(build(tmp_path / "a", **config)), train(build(tmp_path / "b", NeverAhead, **config))
    assert (ahead.state.params["Dense_0"]["kernel"] == plain.state.params["Dense_0"]["kernel"]).all()


@pytest.mark.parametrize("way", ["hook", "callback"])
def test_hooks_of_the_user_come_before_the_trace(tmp_path, way):
    """Where the user's code runs before the first step, the step is traced and compiled after it."""
    callbacks = [Listener(CallbackConfig())] if way == "callback" else []
    trainer = build(tmp_path, NeverAhead if way == "hook" else MSETrainer)
    trainer.fit(make_loader(3), make_loader(2), callbacks=callbacks)
    (row,) = [row for row in compiles(tmp_path) if row["function"] == "train_step"]
    assert row["thread"] == "MainThread"


@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_an_example_on_the_device_will_do(tmp_path, caplog, steps_per_call):
    """On a CPU, its program serves batches of the host as well."""
    with caplog.at_level(logging.WARNING):
        train(build(tmp_path, steps_per_call=steps_per_call, batch=on_device(make_batch(8))))
    assert [row["function"] for row in compiles(tmp_path)].count("train_step") == 1
    assert EXAMPLE_NAME not in [row["function"] for row in compiles(tmp_path)]
    assert "compiled" not in caplog.text


@pytest.mark.parametrize("steps_per_call", [1, 2])
def test_an_example_of_another_form_is_said(tmp_path, caplog, steps_per_call):
    """The program for the example batch has a name of its own, and the step's first compile is no recompile."""
    with caplog.at_level(logging.WARNING):
        trainer = train(build(tmp_path, steps_per_call=steps_per_call, batch=make_batch(4)))
    names = [row["function"] for row in compiles(tmp_path)]
    assert names.count("train_step") == 1
    assert set(names) <= {"initial state", "eval_step", "train_step", EXAMPLE_NAME}
    assert trainer.sentinel.num_recompiles["train_step"] == 0
    assert "build the trainer with a batch of the loader" in caplog.text


def test_the_ledger_adds_up(tmp_path):
    """The wall is that of the main thread, and what it waits for the program is compiling."""
    totals = train(build(tmp_path)).ledger_totals
    assert totals is not None
    assert totals.wall_s == pytest.approx(sum(totals.parts.values()))
    assert totals.parts[COMPILE] > 0
    assert all(seconds > -1e-6 for seconds in totals.parts.values())


def test_an_error_of_the_loss_comes_from_the_place_it_came_from(tmp_path):
    """A loss that cannot be traced raises its own error, as it is."""

    class Failing(MSETrainer):
        def loss_function(self, *args: Any, **kwargs: Any) -> Any:
            raise LookupError("in the loss")

    with pytest.raises(LookupError, match="in the loss"):
        train(build(tmp_path, Failing))


def test_a_compile_that_fails_ahead_is_made_by_the_first_call(tmp_path, monkeypatch):
    """If the program cannot be had ahead of time, the first call compiles as if nothing had happened."""
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda lowered: 1 / 0)
    train(build(tmp_path))
    (row,) = [row for row in compiles(tmp_path) if row["function"] == "train_step"]
    assert row["thread"] == "MainThread"
