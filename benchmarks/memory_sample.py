"""What the memory timeline costs: one sample by the number of live arrays, one append, and the steps in between."""

import contextlib
import io
import logging
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.interleaved import Timing, race
from benchmarks.loop_overhead import LEARNING_RATE, MLP, MSETrainer, make_batches
from trackside.callbacks import Callback
from trackside.callbacks.memory_profiler import MemoryProfileConfig, MemoryProfiler
from trackside.profiling.json_list import JsonListWriter
from trackside.profiling.memory import MemorySampler
from trackside.trainer import ModelConfig, OptimizerConfig, ParallelConfig, SchedulerConfig, TrainerConfig

NEVER_DUE = 10**9


class MediumMLP(MLP):
    width: int = 256
    depth: int = 2


def time_one(function: Callable[[], Any], num_rounds: int = 50) -> str:
    """Single calls, one by one."""
    seconds = []
    for _ in range(num_rounds + 1):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return f"best {min(seconds[1:]) * 1e6:.0f} us, median {statistics.median(seconds[1:]) * 1e6:.0f} us"


def measure_samples() -> None:
    for num_arrays in (100, 3000):
        arrays = [jnp.ones(index % 50 + 1) for index in range(num_arrays)]
        owners = {"params": arrays[: num_arrays // 3], "optimizer": arrays[num_arrays // 3 :]}
        sampler = MemorySampler(jax.local_devices())
        taken = time_one(lambda s=sampler, o=owners: s.sample(0, o))
        print(f"  one sample with {num_arrays} live arrays: {taken}")
        sample = sampler.sample(0, owners)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(JsonListWriter(f"{folder}/list.json")) as writer:
        print(f"  one append to the file: {time_one(lambda: writer.append(sample), 2000)}")


def trainer_run(model_class: type, batch_size: int, num_steps: int, callbacks: list[Callback]) -> Callable[[], None]:
    batches = make_batches(batch_size, 64)
    trainer = MSETrainer(
        TrainerConfig(enable_progress_bar=False),
        ModelConfig(model_class=model_class, parallel=ParallelConfig()),
        OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=LEARNING_RATE)),
        batch=batches[0],
    )
    epoch = [batches[index % len(batches)] for index in range(num_steps)]
    return lambda: trainer.fit(epoch, num_train_steps=trainer.global_step + num_steps, callbacks=callbacks) and None


def measure_training(model_class: type, batch_size: int, num_steps: int, num_rounds: int) -> dict[str, Timing]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        contestants = {
            name: trainer_run(model_class, batch_size, num_steps, callbacks)
            for name, callbacks in {
                "without": [],
                "idle": [MemoryProfiler(MemoryProfileConfig(str(pathlib.Path(folder, "idle")), NEVER_DUE))],
                "every 100": [MemoryProfiler(MemoryProfileConfig(str(pathlib.Path(folder, "often")), 100))],
            }.items()
        }
        return race(contestants, num_steps, num_rounds)


def main() -> None:
    logging.getLogger("trackside").setLevel(logging.ERROR)
    print("memory timeline")
    measure_samples()
    for title, arguments in {"tiny steps": (MLP, 8, 2000, 15), "steps of about 1 ms": (MediumMLP, 64, 500, 15)}.items():
        timings = measure_training(*arguments)
        without = timings["without"]
        print(f"  {title}: {without.median_us:.0f} us per step without")
        for name in ("idle", "every 100"):
            timing = timings[name]
            best = timing.best_us - without.best_us
            print(
                f"    {name:10} {timing.overhead_us(without):+7.2f} us per step ({best:+.2f} between the best rounds), "
                f"{timing.ratio_to(without):.3f}x"
            )


if __name__ == "__main__":
    main()
