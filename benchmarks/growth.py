"""How the trainer's cost grows: with parameter arrays, metrics, callbacks, devices, steps, and rows to be read.

Each point is the trainer, one step per call, next to its own compiled step in a bare loop, in turn, in one process; the
cost of the loop is the difference. Devices, memory and reading are measured in processes of their own. `make
bench-growth` writes the curves to `benchmarks/GROWTH.md`.
"""

import argparse
import logging
import os
import pathlib
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.fresh_process import measure
from benchmarks.interleaved import race
from benchmarks.loop_overhead import LEARNING_RATE, make_batches
from benchmarks.run_reading import measure_run
from trackside.callbacks import Callback, CallbackConfig
from trackside.logger import LoggerConfig
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
    TrainerModule,
)

PARAMETER_ARRAYS = (10, 100, 1_000, 3_000, 10_000)
ARRAYS_PER_JOIN = 100
"""XLA takes longer than in proportion to compile a concatenation of more."""
METRICS = (1, 10, 100, 1_000)
CALLBACKS = (0, 1, 10, 100)
DEVICES = (1, 2, 4, 8)
ROUND_STEPS = 2_000
"""Steps of a round, which share the milliseconds that a call of `train_model` takes before its first step."""
STEPS = (1_000, 10_000, 100_000, 1_000_000)
Curve = dict[int, dict[str, float]]
"""By the value that grows, the figures by name."""
LABELS = {
    "bare_us": "the step in a bare loop, us",
    "added_us": "added by the trainer, us",
    "grown_mb": "memory that has grown, MB",
    "bytes_per_step": "event file, bytes per step",
    "open_s": "open_run, s",
    "report_s": "report, s",
}
EXPLAINED = {
    "parameter arrays": "the compiled step in a bare loop and what the trainer adds to it, in us per step, with the "
    f"start of a training shared by up to {ROUND_STEPS:,} steps. With 10,000 arrays, XLA takes a minute to compile it",
    "metrics": "the same, with so many metrics, logged every 50 steps",
    "callbacks": "the same, with so many callbacks that hear of every step",
    "devices": "the same, with a step that is spread over so many devices of one CPU",
    "steps": "the memory of the process grows by so many MB, and the event file has so many bytes for a step",
    "rows": "seconds to open a run with so many rows of 30 metrics, with all columns and findings, and to report it",
}


@dataclass(frozen=True)
class Shape:
    """What a training has much of."""

    num_arrays: int = 10
    num_metrics: int = 1
    num_callbacks: int = 0


class Scales(nn.Module):
    """A model of many small arrays: the work is little, what crosses the call is much."""

    config: Shape

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        scales = [
            self.param(f"scale_{index}", nn.initializers.ones_init(), (1,)) for index in range(self.config.num_arrays)
        ]
        groups = (scales[at : at + ARRAYS_PER_JOIN] for at in range(0, len(scales), ARRAYS_PER_JOIN))
        joined = jax.lax.optimization_barrier([jnp.concatenate(group) for group in groups])
        return x.mean(axis=-1, keepdims=True) * (sum(group.sum() for group in joined) / len(scales))


class EmptyCallback(Callback):
    """Hears every step, and does nothing."""

    def on_training_step(self, step_metrics: Any, epoch_idx: int, step_idx: int) -> None:
        pass


class ShapedTrainer(TrainerModule):
    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        error = (apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2
        names = [f"metric_{index}" for index in range(self.model_config.model_config.num_metrics)]
        return error.mean(), ({name: error.mean() for name in names}, None)


def build(shape: Shape, folder: pathlib.Path, log_every: int = 50) -> TrainerModule:
    """A trainer of that shape."""
    return ShapedTrainer(
        TrainerConfig(
            logger=LoggerConfig(log_path=folder, log_every_n_steps=log_every),
            callbacks=[EmptyCallback(CallbackConfig()) for _ in range(shape.num_callbacks)],
            steps_per_call=1,
        ),
        ModelConfig(model_class=Scales, parallel=ParallelConfig(), model_config=shape),
        OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=LEARNING_RATE)),
        batch=make_batches(8, 8, 1)[0],
    )


def cost_us(shape: Shape, num_steps: int, num_rounds: int) -> dict[str, float]:
    """What the loop adds to its own compiled step, per step, and how long that takes."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(shape, pathlib.Path(folder) / "run")
        epoch = make_batches(8, 8, 64) * (num_steps // 64 + 1)
        epoch = epoch[:num_steps]
        trainer.train_model(epoch, num_train_steps=num_steps)
        layout, progress = trainer.init_train_metrics().layout, trainer.progress
        call = trainer.engine.train_call(layout)

        def bare() -> None:
            vector = before = trainer.engine.fresh_vector(layout)
            for batch in epoch:
                if jax.device_count() > 1:  # several devices of a CPU block each other if more calls are under way
                    before.block_until_ready()
                before = vector
                progress.carry, vector = call(progress.carry, vector, batch)
            jax.block_until_ready(vector)

        def trained() -> None:
            trainer.train_model(epoch, num_train_steps=trainer.global_step + num_steps)

        timings = race({"bare": bare, "trainer": trained}, num_steps, num_rounds)
    return {"bare_us": timings["bare"].median_us, "added_us": timings["trainer"].overhead_us(timings["bare"])}


DEVICES_CODE = """
import json, sys, logging
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
from benchmarks.growth import Shape, cost_us
logging.disable(logging.WARNING)
print(json.dumps(cost_us(Shape(), int(sys.argv[2]), int(sys.argv[3]))))
"""
MEMORY_CODE = """
import gc, json, logging, os, pathlib, sys, tempfile
logging.disable(logging.WARNING)
from benchmarks.growth import Shape, build, make_batches
def used_mb():
    gc.collect()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder) / "run"
    trainer = build(Shape(), folder)
    loader = make_batches(8, 8, 50)
    trainer.train_model(loader, num_train_steps=500)
    before = used_mb()
    trainer.train_model(loader, num_train_steps=500 + int(sys.argv[1]))
    grown = used_mb() - before
    written = sum(path.stat().st_size for path in folder.glob("events-*.jsonl"))
    print(json.dumps({"grown_mb": grown, "bytes_per_step": written / trainer.global_step}))
"""


def reading_s(num_rows: int) -> dict[str, float]:
    """How long it takes to read a run of so many rows."""
    point = measure_run(num_rows)
    return {"open_s": point.open_s, "report_s": point.report_s}


def grow(name: str, values: Sequence[int], measured: Callable[[int], dict[str, float]]) -> Curve:
    """Measure at each value, and print what was found."""
    print(f"\n{name}", flush=True)
    curve = {}
    for value in values:
        curve[value] = measured(value)
        print(
            f"  {value:>9,}  " + ", ".join(f"{key} {figure:,.2f}" for key, figure in curve[value].items()), flush=True
        )
    return curve


def measure_all(num_rounds: int, max_steps: int, max_arrays: int) -> dict[str, Curve]:
    """All curves."""
    return {
        "parameter arrays": grow(
            "parameter arrays",
            [n for n in PARAMETER_ARRAYS if n <= max_arrays],
            lambda n: cost_us(Shape(num_arrays=n), min(ROUND_STEPS, 1_000_000 // n), num_rounds),
        ),
        "metrics": grow("metrics", METRICS, lambda n: cost_us(Shape(num_metrics=n), ROUND_STEPS, num_rounds)),
        "callbacks": grow("callbacks", CALLBACKS, lambda n: cost_us(Shape(num_callbacks=n), ROUND_STEPS, num_rounds)),
        "devices": grow("devices", DEVICES, lambda n: measure(DEVICES_CODE, str(n), str(ROUND_STEPS), str(num_rounds))),
        "steps": grow("steps", [n for n in STEPS if n <= max_steps], lambda n: measure(MEMORY_CODE, str(n))),
        "rows": grow("rows", [n for n in STEPS if n <= max_steps], reading_s),
    }


def draw(curves: dict[str, Curve], path: pathlib.Path) -> None:
    """Draw the curves into a picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for axis, (name, curve) in zip(grid.flat, curves.items(), strict=True):
        for key in next(iter(curve.values())):
            axis.plot(list(curve), [point[key] for point in curve.values()], marker="o", label=LABELS[key])
        axis.set_xscale("symlog" if 0 in curve else "log")
        axis.set_xticks(list(curve), [f"{value:,}" for value in curve], minor=False)
        axis.minorticks_off()
        if name == "parameter arrays":  # what the step takes hides what is added to it
            axis.set_yscale("symlog", linthresh=10)
        lowest = min(point[key] for point in curve.values() for key in point)
        axis.set_ylim(bottom=min(0.0, lowest))
        axis.set_title(name)
        axis.legend(frameon=False, fontsize=8)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def to_markdown(curves: dict[str, Curve], picture: str) -> str:
    """The curves as a page."""
    parts = [
        "# How the cost of the trainer grows",
        f"Written by `make bench-growth` on {os.cpu_count()} cores ({platform.machine()}, {platform.system()}), Python "
        f"{platform.python_version()}, jax {jax.__version__}. Load of the machine when it ended: "
        f"{os.getloadavg()[0]:.1f}.",
        f"![Curves]({picture})",
    ]
    for name, curve in curves.items():
        keys = list(next(iter(curve.values())))
        rows = [
            f"| {value:,} | " + " | ".join(f"{point[key]:,.2f}" for key in keys) + " |"
            for value, point in curve.items()
        ]
        head = f"| {name} | " + " | ".join(LABELS[key] for key in keys) + " |"
        parts += [
            f"## {name.capitalize()}",
            EXPLAINED[name][0].upper() + EXPLAINED[name][1:] + ".",
            "\n".join([head, "| ---: " * (len(keys) + 1) + "|", *rows]),
        ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-steps", type=int, default=STEPS[-1])
    parser.add_argument("--max-arrays", type=int, default=PARAMETER_ARRAYS[-1])
    parser.add_argument("--output", type=pathlib.Path, help="the page to write, with a picture beside it")
    chosen = parser.parse_args(arguments or [])
    logging.getLogger("trackside").setLevel(logging.ERROR)
    curves = measure_all(chosen.rounds, chosen.max_steps, chosen.max_arrays)
    if chosen.output is not None:
        picture = chosen.output.with_suffix(".png")
        draw(curves, picture)
        chosen.output.write_text(to_markdown(curves, picture.name))


if __name__ == "__main__":
    main(sys.argv[1:])
