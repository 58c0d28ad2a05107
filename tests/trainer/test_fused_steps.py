"""Several steps in one call: the same as one by one, whatever the calls."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.tiny import Linear, MSETrainer, make_batch, make_loader, make_trainer, rows_of
from trackside.callbacks import Callback, CheckpointConfig, LearningRateMonitorConfig
from trackside.errors import ConfigError, DataError
from trackside.events import read_events
from trackside.logger import LoggerConfig
from trackside.metrics import MetricLayout
from trackside.profiling import profile_data_loader
from trackside.run_layout import event_file_name
from trackside.trainer import Batch, ParallelConfig
from trackside.trainer.fused_steps import NOT_MADE, num_steps_made, plan_steps

# Bits depend on what XLA optimizes, so these compile as users do.
pytestmark = pytest.mark.usefixtures("default_compiler")

SIZES = (2, 7, 16, "auto")
NUM_BATCHES = 11


def bits(trainer: Any) -> bytes:
    """The whole state."""
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trainer.progress.carry))


def logged(log_path: Path, mode: str = "train") -> list[tuple[int, dict[str, float]]]:
    """The numbers of each row, without those that are times."""
    return [
        (row["step"], {name: value for name, value in row["values"].items() if "time" not in name})
        for row in rows_of(log_path, mode=mode)
    ]


class Mixed(nn.Module):
    """Batch statistics, dropout and attention."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))[:, None, :]
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), x)
        return nn.Dense(1)(nn.Dropout(0.1, deterministic=not train)(nn.gelu(x[:, 0])))


class MixedTrainer(MSETrainer):
    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        variables = {"params": params}
        output, updates = apply_fn(variables, batch.inputs, train=train, rngs={"dropout": rng}, mutable=["batch_stats"])
        error = (output - batch.targets) ** 2
        metrics = {
            "loss": {"value": error.sum(), "count": error.size, "log_modes": ["mean", "max", "std"]},
            "first": {"value": error[0, 0], "count": 1, "log_modes": ["single"]},
        }
        return error.mean(), (metrics, updates)


class Conv(nn.Module):
    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(nn.relu(nn.Conv(3, (3,))(x[..., None])).reshape(len(x), -1))


def train(log_path: Path, steps_per_call: Any, loader: Any = None, **config: Any) -> Any:
    options = {name: config.pop(name) for name in ("num_epochs", "num_train_steps", "val") if name in config}
    every = config.pop("log_every_n_steps", 4)
    logger = LoggerConfig(log_path=log_path, log_every_n_steps=every)
    trainer = make_trainer(**{"optimizer": "adam", "logger": logger, "steps_per_call": steps_per_call, **config})
    if "num_train_steps" not in options:
        options.setdefault("num_epochs", 2)
    loader = make_loader(NUM_BATCHES) if loader is None else loader
    trainer.train_model(loader, options.pop("val", None), **options)
    return trainer


MODELS: dict[str, dict[str, Any]] = {
    "linear": {},
    "mixed": {"trainer_class": MixedTrainer, "model_class": Mixed},
    "convolutions": {"model_class": Conv},
    "accumulating": {"gradient_accumulate_steps": 2},
    "accumulating by scan": {"gradient_accumulate_steps": 2, "gradient_accumulate_scan": True},
    "mesh": {"parallel": ParallelConfig(data_axis_size=2)},
    "convolutions on a mesh": {"model_class": Conv, "parallel": ParallelConfig(data_axis_size=2)},
    "fsdp": {"parallel": ParallelConfig(data_axis_size=1, fsdp_axis_size=2, fsdp_min_weight_size=1)},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_size_gives_the_same(tmp_path: Path, name: str) -> None:
    """State, rows of steps and rows of epochs are the same to the last bit, for every number of steps in a call."""
    sizes = SIZES if name == "linear" else (3,)
    plain = train(tmp_path / "1", 1, **MODELS[name])
    for size in sizes:
        fused = train(tmp_path / str(size), size, **MODELS[name])
        assert fused.global_step == plain.global_step
        assert bits(fused) == bits(plain), size
        assert logged(tmp_path / str(size)) == logged(tmp_path / "1"), size
        assert logged(tmp_path / str(size), "train_epoch") == logged(tmp_path / "1", "train_epoch"), size


@pytest.mark.parametrize("model", [Linear, Conv])
def test_short_steps_are_fused_by_default(tmp_path: Path, model: type) -> None:
    """Dense layers and convolutions alike, and no finding advises to do it."""
    chosen = train(tmp_path, "auto", model_class=model)
    assert chosen.loop_plan.steps_per_call.program == "fused"
    assert chosen.run_log.facts().can_fuse_steps is False


def test_a_remainder_does_not_compile(tmp_path: Path) -> None:
    """Calls of any length are of one program."""
    train(tmp_path, 4, log_every_n_steps=3, check_val_every_n_steps=5, val=make_loader(1))
    compiled = [row for row in rows_of(tmp_path, "compile") if row["function"] == "train_step"]
    assert len(compiled) == 1


@pytest.mark.parametrize("size", [4, "auto"])
def test_a_row_for_each_step(tmp_path: Path, size: Any) -> None:
    """With a row for each step, each has the metrics of that step alone and a time of its own."""
    train(tmp_path, size, log_every_n_steps=1)
    rows = rows_of(tmp_path, mode="train")
    assert [row["step"] for row in rows] == list(range(1, 2 * NUM_BATCHES + 1))
    losses = _losses_of_single_steps()
    assert [row["values"]["loss_mean"] for row in rows] == pytest.approx(losses, rel=1e-6)
    assert all(row["values"].get("step_time", 0) >= 0 for row in rows)


@cache
def _losses_of_single_steps() -> list[float]:
    heard = Heard()
    trainer = make_trainer(optimizer="adam", steps_per_call=1, logger=None)
    trainer.fit(make_loader(NUM_BATCHES), num_epochs=2, callbacks=[heard])
    return [values["loss"] for _, values in heard.steps]


class Heard(Callback):
    """Writes down what it hears of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, dict[str, float]]] = []

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.steps.append((step_idx, dict(step_metrics)))


def test_hooks_hear_of_each_step() -> None:
    """Hooks get each step once, in order, with its own metrics."""
    heard = Heard()
    trainer = make_trainer(optimizer="adam", steps_per_call=4, logger=None)
    trainer.fit(make_loader(NUM_BATCHES), num_epochs=2, callbacks=[heard])
    assert [step for step, _ in heard.steps] == list(range(1, 2 * NUM_BATCHES + 1))
    assert [values["loss"] for _, values in heard.steps] == _losses_of_single_steps()


class Failing(Callback):
    """Fails at a step."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == 6:
            raise RuntimeError("enough")


def test_rows_of_steps_after_a_hook_has_failed(tmp_path: Path) -> None:
    """Steps that were made are logged, with no gap where a hook failed inside a call."""
    trainer = make_trainer(steps_per_call=4, logger=LoggerConfig(log_path=tmp_path, log_every_n_steps=1))
    with pytest.raises(RuntimeError, match="enough"):
        trainer.fit(make_loader(NUM_BATCHES), num_epochs=1, callbacks=[Failing()])
    steps = [row["step"] for row in rows_of(tmp_path, mode="train")]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 8


def test_auto_leaves_steps_alone_that_somebody_acts_on() -> None:
    """Where a hook may act on single steps, they are made one by one unless asked for otherwise."""
    trainer = make_trainer(logger=None)
    trainer.fit(make_loader(2), num_epochs=1, callbacks=[Heard()])
    assert trainer.loop_plan.steps_per_call.program == "plain"
    trainer = make_trainer(logger=None)
    trainer.fit(make_loader(2), num_epochs=1)
    assert trainer.loop_plan.steps_per_call.program == "fused"


class Silent(MSETrainer):
    """A step that reports no metrics."""

    def create_training_step_function(self) -> Any:
        step = super().create_training_step_function()
        return lambda state, batch, metrics: (step(state, batch, metrics)[0], metrics)


def test_steps_without_metrics(tmp_path: Path) -> None:
    """A step that reports nothing is counted all the same."""
    plain, fused = (train(tmp_path / str(size), size, trainer_class=Silent) for size in (1, 4))
    assert fused.global_step == plain.global_step == 2 * NUM_BATCHES
    assert bits(fused) == bits(plain)
    assert logged(tmp_path / "4") == logged(tmp_path / "1")


def test_rows_of_hooks_are_in_the_order_of_steps(tmp_path: Path) -> None:
    """Rows that a hook writes and log rows follow each other as they do for single steps."""
    callbacks = [LearningRateMonitorConfig(every_n_steps=1)]
    for size in (1, 7):
        train(tmp_path / str(size), size, log_every_n_steps=3, callbacks=callbacks)
    assert logged(tmp_path / "7") == logged(tmp_path / "1")


def test_auto_leaves_the_search_for_nan_to_jax() -> None:
    """While JAX looks for the operation that is not finite, steps are not hidden in a loop."""
    with jax.debug_nans(True):
        trainer = make_trainer(logger=None)
        trainer.train_model(make_loader(2), num_epochs=1)
    assert trainer.loop_plan.steps_per_call.program == "plain"


@pytest.mark.parametrize("bad", [1, 4, 6])
def test_the_step_that_is_not_finite(tmp_path: Path, bad: int) -> None:
    """A step that is not finite is named exactly, and none is made after it in its call."""
    loader = make_loader(NUM_BATCHES)
    loader[bad - 1] = Batch(loader[bad - 1].inputs, np.full_like(loader[bad - 1].targets, np.nan))
    trainer = train(tmp_path, 4, loader, log_every_n_steps=2)
    (row,) = rows_of(tmp_path, "non_finite")
    assert row["step"] == bad
    assert trainer.status == "nan"
    assert bad == trainer.global_step == int(trainer.progress.carry.step)
    assert [row["step"] for row in rows_of(tmp_path, mode="train")] == list(range(2, bad + 1, 2))


@pytest.mark.parametrize("size", [1, 4, 16])
def test_what_is_not_finite_comes_after_the_steps_before_it(tmp_path: Path, size: int) -> None:
    """Rows, hooks and the error are in the order of steps, wherever in a call the bad one is."""
    loader, order = make_loader(NUM_BATCHES), []

    class Told(Callback):
        def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
            order.append((step_idx, trainer.stop_request.status))

    loader[5] = Batch(loader[5].inputs, np.full_like(loader[5].targets, np.nan))
    trainer = make_trainer(steps_per_call=size, logger=LoggerConfig(log_path=tmp_path, log_every_n_steps=2))
    trainer.fit(loader, num_epochs=1, callbacks=[Told()])
    assert order[:6] == [(1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (6, "nan")]
    rows = [row for row in read_events(tmp_path / event_file_name(0)) if row["kind"] in ("metrics", "non_finite")]
    steps = [(row["kind"], row["step"]) for row in rows if row.get("mode", "train") == "train"]
    assert steps[:4] == [("metrics", 2), ("metrics", 4), ("non_finite", 6), ("metrics", 6)]


def test_bad_batches_are_skipped(tmp_path: Path) -> None:
    """A skipped batch inside a call leaves the state as it was, and is counted."""
    loader = make_loader(NUM_BATCHES)
    loader[2] = Batch(np.full_like(loader[2].inputs, np.inf), loader[2].targets)
    plain, fused = (train(tmp_path / str(size), size, loader, skip_bad_batches=True) for size in (1, 5))
    assert bits(plain) == bits(fused)
    assert [row["num_batches"] for row in rows_of(tmp_path / "5", "skipped")] == [1, 1]


# --- loaders ----------------------------------------------------------------------------------------------------------


class Reusing:
    """Refills one array for all batches."""

    def __iter__(self) -> Iterator[Batch]:
        inputs, targets = np.empty((8, 4), np.float32), np.empty((8, 1), np.float32)
        for batch in make_loader(NUM_BATCHES):
            inputs[:], targets[:] = batch.inputs, batch.targets
            yield Batch(inputs, targets)


def _uneven() -> list[Batch]:
    return [make_batch(8 if index % 4 else 5, index) for index in range(NUM_BATCHES)]


class OneByOne:
    """Makes batches of several sizes, of which none is taken before its turn."""

    def __iter__(self) -> Iterator[Batch]:
        yield from _uneven()


class Donating:
    """Makes each batch in the memory of the one before, on the device."""

    def __iter__(self) -> Iterator[Batch]:
        replace = jax.jit(lambda old, new: jax.tree.map(lambda a, b: 0 * a + b, old, new), donate_argnums=0)
        batch = jax.tree.map(jnp.zeros_like, make_batch(8))
        for one in make_loader(NUM_BATCHES):
            batch = replace(batch, one)
            yield batch


LOADERS: dict[str, Callable[[], Any]] = {
    "of unknown length, reusing its memory": Reusing,
    "of batches of several sizes": _uneven,
    "of batches of several sizes, made one by one": OneByOne,
    "a tuple of batches of several sizes, timed": lambda: profile_data_loader(tuple(_uneven())),
    "on the device": lambda: [jax.tree.map(jnp.asarray, batch) for batch in make_loader(NUM_BATCHES)],
    "on the device, given up for the next": Donating,
    "in part on the device": lambda: [Batch(jnp.asarray(b.inputs), b.targets) for b in make_loader(NUM_BATCHES)],
    "in double precision": lambda: [
        Batch(b.inputs.astype(np.float64), b.targets.astype(np.float64)) for b in make_loader(NUM_BATCHES)
    ],
}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("size", [4])
def test_loaders(tmp_path: Path, name: str, size: Any) -> None:
    """Batches are used in order, each once, whatever they are and wherever they lie."""
    plain, fused = (train(tmp_path / str(one), one, LOADERS[name]()) for one in (1, size))
    assert fused.global_step == plain.global_step == 2 * NUM_BATCHES
    assert bits(plain) == bits(fused)
    assert logged(tmp_path / str(size)) == logged(tmp_path / "1")


class StoppedAt(Callback):
    """Asks for a stop at a step."""

    acts_on_steps = False

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == self.step:
            self.trainer.request_stop("enough")


@pytest.mark.parametrize("at", range(1, 7))
def test_a_stop_while_batches_of_another_size_wait(tmp_path: Path, at: int) -> None:
    """What was taken of a list for the calls to come is trained on in its order, and nothing else."""
    trainer = make_trainer(optimizer="adam", logger=None, steps_per_call=4, max_inflight_steps=1)
    loader = 2 * _uneven()
    trainer.fit(loader, num_epochs=1, callbacks=[StoppedAt(at)])
    assert at <= trainer.global_step < at + 8
    single = train(tmp_path, 1, loader, num_train_steps=trainer.global_step)
    assert bits(trainer) == bits(single)


@pytest.mark.parametrize("what", ["global_step", "state"])
def test_a_loader_that_follows_the_training(tmp_path: Path, what: str) -> None:
    """A loader that looks at the trainer to make a batch sees it after the step before, as with single steps."""

    class Following(MSETrainer):
        def batches(self) -> Iterator[Batch]:
            for _ in range(NUM_BATCHES):
                yield make_batch(8, self.global_step if what == "global_step" else int(self.state.step))

    ends = []
    for size in (1, 4, "auto"):
        trainer = make_trainer(Following, optimizer="adam", steps_per_call=size, logger=None)
        trainer.train_model(trainer.batches(), num_epochs=1)
        ends.append(bits(trainer))
    assert ends[0] == ends[1] == ends[2]


def test_a_loader_that_looks_at_the_trainer_late(caplog: pytest.LogCaptureFixture) -> None:
    """A loader that begins to look at the trainer inside a call is warned of, and gets the true step from then on."""
    seen = []

    class Late(MSETrainer):
        def batches(self) -> Iterator[Batch]:
            for index in range(NUM_BATCHES):
                if index >= 2:
                    seen.append(self.global_step)
                yield make_batch(8, index)

    trainer = make_trainer(Late, steps_per_call=4, logger=None)
    trainer.train_model(trainer.batches(), num_epochs=1)
    assert seen == [0, *range(3, NUM_BATCHES)]
    assert "saw it as it was 2 steps before" in caplog.text


def test_masks_are_not_lost(tmp_path: Path) -> None:
    """A masked array, which JAX refuses, is not trained on without its mask."""
    masked = Batch(np.ma.masked_array(make_batch(8).inputs), make_batch(8).targets)
    for loader in ([masked] * 4, [make_batch(8), make_batch(8), masked]):
        with pytest.raises(ValueError, match="masked"):
            train(tmp_path / str(len(loader)), 4, loader)


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_a_loader_that_fails_inside_a_call(tmp_path: Path, error: type[BaseException]) -> None:
    """The batches before the failure are trained on and logged, as if each had been a call of its own."""

    def failing() -> Iterator[Batch]:
        yield from make_loader(6)
        raise error("disk on fire")

    with pytest.raises(error, match="on fire"):
        train(tmp_path, 4, failing(), log_every_n_steps=1)
    assert [row["step"] for row in rows_of(tmp_path, mode="train")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("size", "bad"), [(1, 1), (4, 1), (4, 6)])
def test_bytes_in_the_other_order(tmp_path: Path, size: int, bad: int) -> None:
    """A batch that JAX does not take is named when its turn comes, and those before it are trained on."""
    loader = make_loader(NUM_BATCHES)
    loader[bad - 1].inputs = loader[bad - 1].inputs.astype(">f4")
    with pytest.raises(DataError, match=r"batch: inputs is an array of >f4, .*newbyteorder"):
        train(tmp_path, size, loader, log_every_n_steps=1)
    assert [row["step"] for row in rows_of(tmp_path, mode="train")] == list(range(1, bad))


class Stopping:
    """A loader with a position that asks for a stop while it gives a batch."""

    def __init__(self, trainer: Any = None, at: int = -1):
        self.trainer, self.at, self.index = trainer, at, 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.index % (NUM_BATCHES + 1) == NUM_BATCHES:
            self.index += 1
            raise StopIteration
        self.index += 1
        if self.index == self.at:
            self.trainer.stop_request.ask("interrupted")
        return make_batch(8, self.index)

    def get_state(self) -> dict[str, int]:
        return {"index": self.index}

    def set_state(self, state: dict[str, int]) -> None:
        self.index = state["index"]


@pytest.mark.parametrize(("at", "size"), [(1, 4), (6, 4), (NUM_BATCHES, 4), (NUM_BATCHES + 4, 4), (6, "auto")])
def test_resuming_after_a_stop_inside_a_call(tmp_path: Path, at: int, size: Any) -> None:
    """What was fetched is trained on before the state is saved, and the resumed training ends with the same bits."""
    whole = train(tmp_path / "whole", size, Stopping())

    def build() -> Any:
        logger = LoggerConfig(log_path=tmp_path / "run", log_every_n_steps=4)
        return make_trainer(
            optimizer="adam",
            logger=logger,
            steps_per_call=size,
            resume="auto",
            callbacks=[CheckpointConfig(monitor=None)],
        )

    trainer = build()
    trainer.train_model(Stopping(trainer, at), num_epochs=2)
    trainer.save_checkpoint(trainer.checkpoint_callback.directory)
    trainer.finish_saving()
    resumed = build()
    resumed.train_model(Stopping(), num_epochs=2)
    assert resumed.global_step == 2 * NUM_BATCHES
    assert bits(resumed) == bits(whole)


# --- what a resumed training runs in ----------------------------------------------------------------------------------


def test_a_resumed_training_keeps_its_program(tmp_path: Path) -> None:
    """What was chosen for a training holds when it is resumed, also where another choice would be made now."""

    def build() -> Any:
        logger = LoggerConfig(log_path=tmp_path / "run", log_every_n_steps=4)
        callbacks = [CheckpointConfig(monitor=None, every_n_steps=4)]
        return make_trainer(optimizer="adam", logger=logger, resume="auto", callbacks=callbacks)

    build().train_model(make_loader(8), num_train_steps=4)
    resumed, heard = build(), Heard()
    resumed.fit(make_loader(8), num_train_steps=8, callbacks=[heard])
    assert resumed.loop_plan.steps_per_call.program == "fused"
    assert resumed.loop_plan.steps_per_call.makes_one
    assert [step for step, _ in heard.steps] == [5, 6, 7, 8]


# --- what cannot work -------------------------------------------------------------------------------------------------


class Growing(MSETrainer):
    """A step that changes the type of what it is given."""

    def create_training_step_function(self) -> Any:
        step = super().create_training_step_function()

        def growing(state: Any, batch: Any, metrics: Any) -> Any:
            state, metrics = step(state, batch, metrics)
            return state.replace(step=state.step.astype(jnp.float32)), metrics

        return growing


def test_a_state_that_changes_its_form() -> None:
    """A step after which the state has another type cannot be fused, and is told so before anything compiles."""
    with pytest.raises(ConfigError, match=r"steps_per_call=4.*set it to 1"):
        make_trainer(Growing, steps_per_call=4, logger=None).train_model(make_loader(2), num_epochs=1)


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True])
def test_values_that_make_no_sense(value: Any) -> None:
    """Only whole positive numbers and `auto` are taken."""
    with pytest.raises(ConfigError, match=rf"^steps_per_call: expected a whole number .* got {value!r}$"):
        make_trainer(steps_per_call=value)


def test_debug_runs_step_by_step() -> None:
    """Without compilation there is nothing to fuse."""
    trainer = make_trainer(debug=True, steps_per_call=4, logger=None)
    trainer.train_model(make_loader(2), num_epochs=1)
    assert trainer.loop_plan.steps_per_call.program == "plain"


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_steps", "step", "every", "expected"),
    [
        (4, 0, -1, [1, 1, 1, 1, 0]),
        (2, 0, -1, [1, 1, 0, 0, 0]),
        (4, 0, 1, [2, 2, 2, 2, 0]),
        (4, 3, 2, [1, 2, 1, 2, 0]),
        (4, 4, 2, [2, 1, 2, 1, 0]),
        (3, 1, 3, [1, 1, 2, 0, 0]),
        (2, 1, 3, [1, 1, 0, 0, 0]),
    ],
)
def test_plans(num_steps: int, step: int, every: int, expected: list[int]) -> None:
    """After a step with a row, the metrics begin anew."""
    assert plan_steps(4, num_steps, step, every).tolist() == expected


def test_steps_that_were_made() -> None:
    """A report tells how many steps were made, also of those that have counted nothing."""
    report = np.zeros((4, MetricLayout(()).num_words), np.uint32)
    report[:, 1] = [5, 0, 1, NOT_MADE]
    assert num_steps_made(report) == 3
    assert num_steps_made(report[:2]) == 2


@pytest.mark.parametrize("steps_per_call", [1, 2, "auto"])
def test_batches_on_the_device_are_not_transferred(steps_per_call: Any) -> None:
    """Training and validation on such batches pass a guard against transfers that nobody asked for."""
    batches = [jax.device_put(batch) for batch in make_loader(4)]
    trainer = make_trainer(batch=batches[0], steps_per_call=steps_per_call)
    with jax.transfer_guard("disallow"):
        trainer.train_model(batches, batches, num_epochs=2)
    assert trainer.global_step == 8
