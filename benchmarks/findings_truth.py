"""Whether findings are true: real trainings without a fault and with one, and what is found in each.

Each takes a second or a few, with other models, loaders and step lengths than the rules' own tests. What must be found
is listed with it; anything else is false. Exits with 1 if anything is missed or false. To choose some, name them:
`python -m benchmarks.findings_truth validation-each-step tiny-steps`.
"""

import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import flax.linen as nn
import grain
import jax
import jax.numpy as jnp

from benchmarks.slow_data import Examples, Pair, collate, make_pair, wait
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig
from trackside.findings import compile_rules
from trackside.logger import LoggerConfig, LoggerTool, LoggerToolsConfig
from trackside.runs import open_run
from trackside.trainer import (
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
    TrainerModule,
)

LASTING_S = 8.0
MIN_COMPILE_S = 60.0
"""On a busy machine small programs take long to compile, which is true but no fault of a training."""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


# --- models -----------------------------------------------------------------------------------------------------------


class Tiny(nn.Module):
    """A step of it is over in no time."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(x)


class Wide(nn.Module):
    """Its steps take some milliseconds."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for _ in range(3):
            x = nn.tanh(nn.Dense(512)(x))
        return nn.Dense(1)(x)


class Wider(nn.Module):
    """Its steps take longer than a batch of examples that are put together one by one."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        for _ in range(3):
            x = nn.tanh(nn.Dense(1024)(x))
        return nn.Dense(1)(x)


class Convolutional(nn.Module):
    """Looks at its features as an image."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = x.reshape(x.shape[0], 8, 4, 1)
        for _ in range(2):
            x = nn.relu(nn.Conv(32, (3, 3))(x))
        return nn.Dense(1)(x.reshape(x.shape[0], -1))


class Attentive(nn.Module):
    """Looks at its features as a sequence."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.Dense(48)(x[..., None])
        query, key, value = (nn.Dense(48)(x) for _ in range(3))
        weights = nn.softmax(jnp.einsum("btd,bsd->bts", query, key))
        return nn.Dense(1)((x + weights @ value).mean(axis=1))


class MSETrainer(TrainerModule):
    def loss_function(self, params: Any, apply_fn: Callable, batch: Pair, rng: Any, train: bool = True) -> Any:
        error = (apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, None)


# --- loaders ----------------------------------------------------------------------------------------------------------


def make_list(number: int, size: int = 256) -> list[Pair]:
    few = [make_pair(size, seed) for seed in range(min(number, 16))]
    return [few[index % len(few)] for index in range(number)]


class Made:
    """Makes each batch when it is asked for."""

    def __init__(self, number: int, delay_s: float = 0.0, start_s: float = 0.0, size: int = 256):
        self.number, self.delay_s, self.start_s, self.size = number, delay_s, start_s, size

    def __iter__(self) -> Iterator[Pair]:
        wait(self.start_s)
        for index in range(self.number):
            wait(self.delay_s)
            yield make_pair(self.size, index)


class Lasting:
    """Gives small batches for some seconds."""

    def __iter__(self) -> Iterator[Pair]:
        batch = make_pair(32)
        yield batch  # with which the step is compiled
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < LASTING_S:
            yield batch


def torch_loader(number: int, delay_s: float = 0.0, size: int = 256, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    data: Any = Examples(number * size, delay_s)
    if options.get("num_workers"):
        options["multiprocessing_context"] = "spawn"  # a fork of a process with JAX in it may never end
    return DataLoader(data, batch_size=size, collate_fn=collate, **options)


def grain_loader(number: int, delay_s: float = 0.0, num_threads: int = -1) -> Any:
    """A data set of grain that reads with some threads; below 0, one that grain reads as it likes."""

    def fetch(seed: int) -> Pair:
        wait(delay_s)
        return make_pair(seed=int(seed) % 16)

    batches = grain.MapDataset.range(number).map(fetch)
    options = grain.ReadOptions(num_threads=max(num_threads, 0), prefetch_buffer_size=max(4 * num_threads, 0))
    return batches if num_threads < 0 else batches.to_iter_dataset(options)


# --- callbacks and tools ----------------------------------------------------------------------------------------------


class Sleeper(Callback):
    """Sleeps every few steps."""

    def __init__(self, delay_s: float, every_n_steps: int = 1):
        super().__init__(CallbackConfig(every_n_steps=every_n_steps))
        self.delay_s = delay_s

    def on_filtered_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        time.sleep(self.delay_s)


class Stalling(Callback):
    """Stalls once, after some seconds."""

    def __init__(self) -> None:
        super().__init__(CallbackConfig(every_n_steps=1))
        self.began_s = self.stalled_s = 0.0

    def on_filtered_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        now_s = time.perf_counter()
        self.began_s = self.began_s or now_s
        if not self.stalled_s and now_s - self.began_s > 0.8 * LASTING_S:
            self.stalled_s = 0.07 * LASTING_S
            time.sleep(self.stalled_s)


class Compiler(Callback):
    """Compiles something large at the end of the first epoch, and runs it in no time."""

    def __init__(self) -> None:
        super().__init__(CallbackConfig())

    def on_filtered_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        def deep(x: jax.Array) -> jax.Array:
            for _ in range(60):
                x = jnp.tanh(x @ x)
            return x

        if epoch_idx == 1:
            jax.jit(deep)(jnp.ones((8, 8))).block_until_ready()


class SleepyTool(LoggerTool):
    """Takes its time for each row."""

    delay_s: ClassVar[float] = 0.0

    def log_metrics(self, metrics: dict[str, float], step: int, epoch: int, mode: str) -> None:
        time.sleep(self.delay_s)


class SlowTool(SleepyTool):
    delay_s = 0.02


class SlowToolInTheLoop(SlowTool):
    threaded = False


@dataclass
class SleepyToolConfig(LoggerToolsConfig):
    """Makes one of the tools."""

    tool: str = "SleepyTool"
    """Its class."""

    def create(self, logger: Any) -> LoggerTool:
        return {one.__name__: one for one in (SleepyTool, SlowTool, SlowToolInTheLoop)}[self.tool]()


# --- trainings --------------------------------------------------------------------------------------------------------


@dataclass
class Training:
    """A training, and what must be found in it."""

    name: str
    loader: Callable[[], Any]
    expected: frozenset[str] = frozenset()
    model: type = Wide
    num_epochs: int = 1
    val: Callable[[], Any] | None = None
    callbacks: Callable[[Path], list[Any]] = lambda run: []
    tool: str = ""
    log_every_n_steps: int = 50
    config: dict[str, Any] = field(default_factory=dict)
    size: int = 256

    def run(self, folder: Path) -> dict[str, str]:
        """Train, and read what was found: the message by id. It is the same as the trainer has, or that is false."""
        tools = [SleepyToolConfig(self.tool)] if self.tool else []
        logger = LoggerConfig(log_path=folder, log_every_n_steps=self.log_every_n_steps, log_tools=tools)
        trainer = MSETrainer(
            TrainerConfig(logger=logger, enable_progress_bar=False, **self.config),
            ModelConfig(model_class=self.model, parallel=ParallelConfig(data_axis_size=1)),
            OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=1e-3)),
            batch=make_pair(self.size),
        )
        val = None if self.val is None else self.val()
        trainer.fit(self.loader(), val, num_epochs=self.num_epochs, callbacks=self.callbacks(folder))
        found = open_run(folder).findings
        messages = {finding.id: finding.message for finding in found}
        if list(trainer.findings) != found:
            messages["not_the_same_live"] = f"live: {[one.id for one in trainer.findings]}"
        return messages


def saving(every_n_steps: int) -> Callable[[Path], list[Any]]:
    return lambda run: [CheckpointConfig(dirpath=str(run / "saved"), every_n_steps=every_n_steps)]


def sick(name: str, expected: str, loader: Callable[[], Any], **options: Any) -> Training:
    return Training(name, loader, frozenset(expected.split()), **options)


HEALTHY = (
    Training("list", lambda: make_list(200)),
    Training("device-arrays", lambda: jax.device_put(make_list(16)) * 12),
    Training("made-on-demand", lambda: Made(200)),
    Training("torch-no-workers", lambda: torch_loader(30, size=64), num_epochs=4, size=64, model=Wider),
    Training(
        "torch-workers-kept",
        lambda: torch_loader(60, size=32, num_workers=1, persistent_workers=True, prefetch_factor=8),
        num_epochs=4,
        size=32,
        model=Wider,
    ),
    Training("grain-map", lambda: grain_loader(60), num_epochs=3),
    Training("grain-prefetching", lambda: grain_loader(200, 0.008, num_threads=8)),
    Training("convolutions", lambda: make_list(80), model=Convolutional, num_epochs=3, val=lambda: make_list(5)),
    Training("attention", lambda: make_list(60, 64), model=Attentive, num_epochs=2, size=64),
    Training(
        "compiling-callback",
        lambda: make_list(60),
        num_epochs=4,
        callbacks=lambda run: [Compiler()],
        val=lambda: make_list(2),
    ),
    Training("threaded-tool", lambda: make_list(200), tool="SleepyTool", log_every_n_steps=5),
    Training("checkpoints", lambda: make_list(200), callbacks=saving(150)),
)

SICK = (
    sick("slow-generator", "input_bound", lambda: Made(120, 0.02), model=Tiny),
    sick("slow-torch-examples", "input_bound", lambda: torch_loader(40, 0.0015, size=32), model=Tiny, size=32),
    sick("slow-grain", "input_bound", lambda: grain_loader(100, 0.02, num_threads=0), model=Tiny),
    sick("tiny-steps", "dispatch_bound", lambda: make_list(16, 8) * 1000, model=Tiny, size=8, log_every_n_steps=2000),
    sick(
        "validation-each-step",
        "validation_dominates",
        lambda: make_list(60),
        val=lambda: make_list(3),
        config={"check_val_every_n_steps": 1},
    ),
    sick("slow-tool", "slow_logging_tool", lambda: make_list(150, 32), tool="SlowTool", log_every_n_steps=1, size=32),
    sick(
        "slow-tool-in-the-loop",
        "logging_too_often",
        lambda: make_list(80),
        tool="SlowToolInTheLoop",
        log_every_n_steps=1,
    ),
    sick("stalling-callback", "callback_stalls", Lasting, callbacks=lambda run: [Stalling()], size=32),
    sick("slow-callback", "callback_dominates", lambda: make_list(60), callbacks=lambda run: [Sleeper(0.1)]),
    sick("many-shapes", "recompiling", lambda: [make_pair(size) for size in (256, 200, 128, 100)] * 10),
    sick("smaller-last-batch", "ragged_last_batch", lambda: [*make_list(40), make_pair(100)], num_epochs=2),
    sick("workers-restarted", "idle_after_epoch", lambda: torch_loader(10, num_workers=1), num_epochs=4),
    sick("slow-start", "idle_after_epoch", lambda: Made(20, start_s=0.5), num_epochs=5),
    sick("saved-each-step", "checkpointing_dominates", lambda: make_list(40), callbacks=saving(1)),
)


def judge(training: Training) -> bool:
    """Run a training and print what was found; whether that is the truth."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        began_s = time.perf_counter()
        found = training.run(Path(folder) / "run")
        took_s = time.perf_counter() - began_s
        missed, false = training.expected - found.keys(), found.keys() - training.expected
        verdict = "ok" if not missed and not false else "WRONG"
        wanted = ", ".join(sorted(training.expected)) or "nothing"
        print(f"{verdict:<6}{training.name:<29}{wanted:<24} found: {', '.join(found) or 'nothing'} ({took_s:.1f} s)")
        for one in missed:
            print(f"        missed: {one}")
        for one in false:
            print(f"        false: {found[one]}")
        sys.stdout.flush()
        return not missed and not false
    return False


def main() -> int:
    logging.getLogger("trackside").setLevel(logging.ERROR)
    logging.getLogger("absl").setLevel(logging.ERROR)
    compile_rules.MIN_COMPILE_S = MIN_COMPILE_S
    names = sys.argv[1:]
    chosen = [one for one in (*HEALTHY, *SICK) if not names or one.name in names]
    if unknown := set(names) - {one.name for one in chosen}:
        raise SystemExit(f"no such trainings: {sorted(unknown)}")
    num_wrong = sum(not judge(training) for training in chosen)
    print(f"{len(chosen)} trainings, {num_wrong} judged wrongly")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
