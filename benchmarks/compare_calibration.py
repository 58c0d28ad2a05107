"""How often `trackside compare --max-slowdown 5%` cries wolf, and how often it misses a slowdown of 10 %.

    python -m benchmarks.compare_calibration --pairs 100 --runs /tmp/calibration

For each pair three trainings are run in processes of their own, in random order, on one core each: two of the same
program, and one whose step has a tenth more work. The first two compared must give no alarm, the first and the third
must. Trainings are kept in the folder `--runs`: one that is there is not run again, so that a measurement can be
interrupted and continued, and the same trainings can be judged again after a change to the statistics.

The step's work is a number of layers that share their weights and run in one loop on the device. Five more than 44 are
11 % more layers and make the undisturbed step about 10 % longer, since a part of it is no layer; what it came to is
printed.
"""

import argparse
import contextlib
import io
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import flax.linen as nn
import jax

from benchmarks.loop_overhead import MSETrainer, make_batches
from trackside.compare import Comparison, compare_runs
from trackside.logger import LoggerConfig
from trackside.trainer import ModelConfig, OptimizerConfig, ParallelConfig, SchedulerConfig, TrainerConfig

WIDTH = 64
BATCH_SIZE = 32
NUM_LAYERS = {"first": 44, "second": 44, "slowed": 49}
NUM_STEPS = 8000
MAX_SLOWDOWN = "5%"


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return nn.tanh(nn.Dense(WIDTH)(x)), None


class Tower(nn.Module):
    """As many layers as `config` says."""

    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        repeated = nn.scan(Layer, variable_broadcast="params", split_rngs={"params": False}, length=self.config)
        x, _ = repeated()(x, None)
        return nn.Dense(1)(x)


def train(run_dir: pathlib.Path, num_layers: int, num_steps: int) -> None:
    batches = make_batches(BATCH_SIZE, WIDTH)
    epoch = [batches[index % len(batches)] for index in range(num_steps)]
    trainer = MSETrainer(
        TrainerConfig(logger=LoggerConfig(log_path=run_dir, log_every_n_steps=1), enable_progress_bar=False),
        ModelConfig(model_class=Tower, parallel=ParallelConfig(data_axis_size=1), model_config=num_layers),
        OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=1e-3)),
        batch=batches[0],
    )
    with contextlib.redirect_stderr(io.StringIO()):
        trainer.train_model(epoch, num_train_steps=num_steps)


def train_in_process(run_dir: pathlib.Path, num_layers: int, num_steps: int, core: int) -> None:
    """Train in a process of its own. A folder appears under its name when the training is complete."""
    unfinished = run_dir.with_name(f".{run_dir.name}-{os.getpid()}")
    command = [sys.executable, "-m", "benchmarks.compare_calibration", "--train", str(unfinished)]
    command += ["--layers", str(num_layers), "--steps", str(num_steps), "--core", str(core)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    unfinished.rename(run_dir)


def run_pairs(runs: pathlib.Path, num_pairs: int, num_steps: int) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    for index in range(num_pairs):
        names = list(NUM_LAYERS)
        random.Random(index).shuffle(names)
        started_s = time.perf_counter()
        for name in names:
            run_dir = runs / f"{index:03d}-{name}"
            if not run_dir.exists():
                train_in_process(run_dir, NUM_LAYERS[name], num_steps, cores[index % len(cores)])
        print(f"pair {index + 1} of {num_pairs}: {time.perf_counter() - started_s:.0f} s", flush=True)


def judge(runs: pathlib.Path, num_pairs: int, show: bool) -> None:
    same, slowed = [], []
    for index in range(num_pairs):
        paths = {name: runs / f"{index:03d}-{name}" for name in NUM_LAYERS}
        if not all(path.exists() for path in paths.values()):
            continue
        same.append(compare_runs(paths["first"], paths["second"], max_slowdown=MAX_SLOWDOWN))
        slowed.append(compare_runs(paths["first"], paths["slowed"], max_slowdown=MAX_SLOWDOWN))
        if show:
            print(f"  {index:3d}  same {figures(same[-1])}   slowed {figures(slowed[-1])}")
    if not same:
        print(f"no complete pair in {runs}")
        return
    print(f"{len(same)} pairs at --max-slowdown {MAX_SLOWDOWN}:")
    print(f"  false alarms among pairs of one program: {rate([one.is_regression for one in same])}")
    print(f"  slowdowns of 10 % that were found:       {rate([one.is_regression for one in slowed])}")
    print(f"  cannot tell: {sum(one.step_time.verdict == 'cannot tell' for one in same + slowed)} of {2 * len(same)}")
    print(f"  intervals that hold the truth, 0 %:      {rate([holds(one, 0.0) for one in same])}")
    for title, comparisons in (("one program", same), ("slowed", slowed)):
        undisturbed = [one.step_time.change or 0.0 for one in comparisons]
        median = [median_change(one) for one in comparisons]
        print(f"  {title}: change of the undisturbed step {spread(undisturbed)}; of the median step {spread(median)}")


def figures(comparison: Comparison) -> str:
    time_ = comparison.step_time
    if time_.change is None or time_.low is None or time_.high is None:
        return time_.verdict
    alarm = "ALARM" if comparison.is_regression else ""
    return f"{100 * time_.change:+6.1f} % ({100 * time_.low:+6.1f} to {100 * time_.high:+6.1f}) {alarm:5}"


def holds(comparison: Comparison, truth: float) -> bool:
    low, high = comparison.step_time.low, comparison.step_time.high
    return low is not None and high is not None and low <= truth <= high


def median_change(comparison: Comparison) -> float:
    before, after = comparison.step_time.median_before_s, comparison.step_time.median_after_s
    return after / before - 1.0 if before and after else 0.0


def rate(outcomes: list[bool]) -> str:
    return f"{sum(outcomes)} of {len(outcomes)} ({100 * sum(outcomes) / len(outcomes):.0f} %)"


def spread(changes: list[float]) -> str:
    deviation = statistics.pstdev(changes)
    return f"{100 * statistics.median(changes):+.1f} % (standard deviation {100 * deviation:.1f} %)"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs",
        type=int,
        default=3,
        help="how many pairs; each took 46 to 100 s on two busy cores",
    )
    parser.add_argument("--runs", type=pathlib.Path, help="where trainings are kept; a temporary folder if left out")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="steps of each training")
    parser.add_argument("--show", action="store_true", help="print each pair")
    parser.add_argument("--judge-only", action="store_true", help="train nothing, judge what is there")
    parser.add_argument("--train", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments or [])
    if options.train:
        train(options.train, options.layers, options.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = options.runs or pathlib.Path(folder)
        if not options.judge_only:
            run_pairs(runs, options.pairs, options.steps)
        judge(runs, options.pairs, options.show)


if __name__ == "__main__":
    if "--core" in sys.argv:  # before anything of jax starts its threads
        os.sched_setaffinity(0, {int(sys.argv[sys.argv.index("--core") + 1])})
    main(sys.argv[1:])
