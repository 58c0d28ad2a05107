"""Findings of real trainings, on the machine's clock: each made to have one fault, and one without any.

Faults that are only delays of the host are in `test_provoked_delays`, on a clock of their own.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from tests.findings.provoked import Delayed, found, train
from tests.trainer.tiny import MSETrainer, make_batch, make_loader
from trackside.callbacks import (
    Callback,
    CallbackConfig,
    JAXProfiler,
    MemoryProfileConfig,
    MemoryProfiler,
    ProfilingConfig,
)
from trackside.findings import Finding, RunFacts, capture_rules, compile_rules, loop_rules
from trackside.profiling.capture import start_capture
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    register_optimizer,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_compile_cache")]

DELAY_S = 0.02
NUM_STEPS = 60
"""With the delay, enough for more than the second that a verdict takes."""


class Layers(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = nn.tanh(nn.Dense(512)(x))
        return x


class Wide(nn.Module):
    """Layers whose steps take some milliseconds."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(Layers()(x))


class Recomputing(nn.Module):
    """The same, but all activations are computed again for the gradient."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(nn.remat(Layers)()(x))


class Deep(nn.Module):
    """One layer applied many times, each written out: it takes long to compile and next to nothing to run."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        layer = nn.Dense(4)
        for _ in range(40):
            x = nn.tanh(layer(x))
        return nn.Dense(1)(x)


class Hoarder(Callback):
    """Keeps an array of every epoch."""

    def __init__(self) -> None:
        super().__init__(CallbackConfig())
        self.kept: list[jax.Array] = []

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        self.kept.append(jax.numpy.zeros(4096) + epoch_idx)


class HostHoarder(Callback):
    """Keeps an array of the host of every epoch, or only the last ones.

    Args:
        num_kept: At most so many; None for all.
    """

    def __init__(self, num_kept: int | None) -> None:
        super().__init__(CallbackConfig())
        self.kept: deque[np.ndarray] = deque(maxlen=num_kept)

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        self.kept.append(np.ones(1 << 20))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory, frozen_garbage) -> dict[str, Finding]:
    """What is found in a training that computes most of the time, with a validation and a few log rows.

    What other modules have left must not be collected in it, which takes seconds on a busy machine. There, the one
    capture may wait for a core for a tenth of a second: the training takes some seconds.
    """
    batches = make_loader(80, size=256)
    folder = tmp_path_factory.mktemp("healthy")
    profiler = JAXProfiler(ProfilingConfig(log_dir=str(folder / "profile"), start_step=100, end_step=110))
    memory = MemoryProfiler(MemoryProfileConfig(log_dir=str(folder / "memory"), profile_every_n_steps=5))
    facts = train(folder / "run", batches, batches[:5], 6, [profiler, memory], model_class=Wide)
    assert facts.ledger is not None
    assert facts.ledger.device_busy_s is not None
    assert facts.captures
    return found(facts)


@pytest.mark.parametrize(
    "finding",
    [
        "input_bound",
        "logging_too_often",
        "validation_dominates",
        "checkpointing_dominates",
        "callback_dominates",
        "garbage_collection",
        "dispatch_bound",
        "recompiling",
        "ragged_last_batch",
        "device_memory_growth",
        "optimizer_share_high",
        "recompute_share",
        "low_coverage",
    ],
)
def test_silent_on_a_healthy_training(healthy, finding):
    """A training without a fault has none of the findings."""
    assert finding not in healthy


def test_slow_loader_is_input_bound(tmp_path):
    """A loader that takes its time starves the device, severely."""
    facts = train(tmp_path, Delayed(make_loader(NUM_STEPS), lambda: time.sleep(DELAY_S)))
    assert found(facts)["input_bound"].severity == "severe"


def test_ragged_last_batch_is_told_as_that(tmp_path):
    """A last batch with fewer examples is told with its shape, and not as recompiling."""
    findings = found(train(tmp_path, [*make_loader(10), make_batch(3)], num_epochs=2))
    assert findings["ragged_last_batch"].evidence["last_shape"] == "(3, 4)"
    assert "recompiling" not in findings


def test_ragged_last_batch_of_validation_is_told(tmp_path):
    """So is one of the validation, for the step that evaluates."""
    findings = found(train(tmp_path, make_loader(10), [*make_loader(2), make_batch(3)]))
    assert findings["ragged_last_batch"].subject == "eval_step"


def test_batches_of_many_shapes_recompile(tmp_path):
    """Batches that change their size within an epoch are told as recompiling, with the leaf."""
    batches = [make_batch(size) for size in (8, 7, 6, 8)]
    finding = found(train(tmp_path, batches))["recompiling"]
    assert finding.subject == "train_step"
    assert finding.evidence["num_recompiles"] == 2
    assert "batch.inputs" in finding.title


def test_arrays_that_are_kept_are_growth(tmp_path):
    """A callback that keeps arrays is found by the memory profiler, and told."""
    profiler = MemoryProfiler(MemoryProfileConfig(log_dir=str(tmp_path / "memory"), profile_every_n_steps=2))
    facts = train(tmp_path / "run", make_loader(2), num_epochs=40, callbacks=[Hoarder(), profiler])
    assert found(facts)["device_memory_growth"].subject == "other live arrays"


def hoard(tmp_path: Path, num_kept: int | None) -> dict[str, Finding]:
    """What is found in a training of forty epochs, with a callback that keeps eight megabytes after each."""
    profiler = MemoryProfiler(MemoryProfileConfig(log_dir=str(tmp_path / "memory"), profile_every_n_steps=2))
    facts = train(tmp_path / "run", make_loader(2), num_epochs=40, callbacks=[HostHoarder(num_kept), profiler])
    return found(facts)


def test_host_arrays_that_are_kept_are_growth(tmp_path):
    """A list of arrays of the host that grows is told, with how fast it does."""
    finding = hoard(tmp_path, num_kept=None)["host_memory_growth"]
    assert finding.evidence["bytes_per_step"] == pytest.approx(4 << 20, rel=0.25)


def test_host_arrays_that_are_let_go_are_no_growth(tmp_path):
    """The same arrays, of which only the last two are kept."""
    assert "host_memory_growth" not in hoard(tmp_path, num_kept=2)


class SlowToPlace(MSETrainer):
    """Takes milliseconds to place each batch."""

    def init_mesh(self, model_config: ModelConfig, mesh: Any = None) -> None:
        super().init_mesh(model_config, mesh)
        place = self.placement.place_train

        def place_slowly(batch: Batch) -> Batch:
            time.sleep(0.005)
            return place(batch)

        self.placement.place_train = place_slowly


def test_tiny_steps_are_dispatch_bound(tmp_path, monkeypatch):
    """Steps that compute for less time than it takes to call them leave the device idle, which is seen."""
    monkeypatch.setattr(loop_rules, "MAX_CALL_COST_S", 1.0)  # on a busy machine, a sleep may last
    monkeypatch.setattr(loop_rules, "MAX_SMALL_STEP_S", 0.1)  # and so may a step
    facts = train(tmp_path, make_loader(100) * 3, log_every_n_steps=1000, trainer_class=SlowToPlace, steps_per_call=1)
    finding = found(facts)["dispatch_bound"]
    assert finding.evidence["device_idle_for_dispatch_share"] > loop_rules.MIN_IDLE_FOR_DISPATCH


def test_layers_that_are_written_out_are_slow_to_compile(tmp_path, monkeypatch):
    """A run that mostly compiles is told of that, not of recompiling; the least time is lowered to that of a test."""
    monkeypatch.setattr(compile_rules, "MIN_COMPILE_S", 0.5)
    findings = found(train(tmp_path, make_loader(10), model_class=Deep))
    assert "slow_compile" in findings
    assert "recompiling" not in findings


def profile_of(tmp_path: Path, model_class: type, batch_size: int, optimizer: str) -> RunFacts:
    """Train for some steps, ten of which are captured."""
    profiler = JAXProfiler(ProfilingConfig(log_dir=str(tmp_path / "profile"), start_step=5, end_step=15))
    loader = make_loader(20, size=batch_size)
    return train(tmp_path / "run", loader, callbacks=[profiler], model_class=model_class, optimizer=optimizer)


@register_optimizer("laborious")
def laborious(config: OptimizerConfig, learning_rate: Any, decay_mask: Any) -> optax.GradientTransformation:
    """Goes over each gradient again and again, as optimizers do that orthogonalise or precondition it."""

    def refine(gradient: jax.Array) -> jax.Array:
        for _ in range(24):
            gradient = jax.numpy.sin(gradient)
        return gradient

    refined = optax.stateless(lambda updates, params: jax.tree.map(refine, updates))
    return optax.chain(refined, optax.sgd(learning_rate))


def test_optimizer_that_does_most_of_the_work_is_told(tmp_path):
    """With a batch of one example, updating the parameters takes longer than their gradient."""
    assert "optimizer_share_high" in found(profile_of(tmp_path, Wide, batch_size=1, optimizer="laborious"))


def test_recomputed_activations_are_told(tmp_path):
    """What rematerialisation costs is told from a capture."""
    assert "recompute_share" in found(profile_of(tmp_path, Recomputing, batch_size=256, optimizer="sgd"))


def capture_of(folder: Path, function: Callable[[jax.Array], jax.Array]) -> RunFacts:
    """Capture some calls of a jitted function by itself, as in a loop of one's own."""
    call, x = jax.jit(function), jax.numpy.ones((512, 512))
    call(x).block_until_ready()
    capture = start_capture(folder, "calls", 1, for_perfetto=False)
    for step in range(1, 7):
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            call(x).block_until_ready()
    capture.stop(6)
    report = capture.wait().report
    assert report is not None
    return RunFacts(captures=[{"report": report.to_dict()}])


def test_operations_that_the_compiler_made_are_low_coverage(tmp_path):
    """XLA takes a cumulative sum apart into operations of its own, and does not say what they come from."""
    finding = found(capture_of(tmp_path, lambda x: jax.numpy.cumsum(x, axis=0)))["low_coverage"]
    assert finding.evidence["unattributed_share"] > 1 - capture_rules.MIN_RESOLVED


def test_operations_that_say_where_they_come_from_are_no_low_coverage(tmp_path):
    """Products and functions of their numbers are all told."""
    assert "low_coverage" not in found(capture_of(tmp_path, lambda x: jax.numpy.tanh(x @ x)))
