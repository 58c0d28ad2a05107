"""What a batch of an evaluation takes: a small MLP, batches of 8, evaluated one by one and several to a call.

one by one     `steps_per_call=1`: a call for each batch
fused          the default: several batches in one call, where steps are short
same program   the compiled call for one batch in a bare `for`

python -m benchmarks.evaluation [--batches N] [--rounds N]
"""

import argparse
import logging
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

from benchmarks.interleaved import race
from benchmarks.prefetch import MLP
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
    TrainerModule,
)


class Regression(TrainerModule):
    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        loss = ((apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2).mean()
        return loss, ({}, None)


def make_trainer(batch: Batch, steps_per_call: int | Literal["auto"]) -> Regression:
    return Regression(
        TrainerConfig(enable_progress_bar=False, logger=None, steps_per_call=steps_per_call),
        ModelConfig(model_class=MLP, parallel=ParallelConfig(data_axis_size=1)),
        OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=1e-3)),
        batch=batch,
    )


def bare(trainer: Regression, batches: list[Batch]) -> Callable[[], None]:
    engine, layout = trainer.engine, trainer.init_eval_metrics().layout
    call, carry = engine.compile_eval(layout, is_split=True), trainer.progress.carry._replace(opt_state=None)

    def evaluate() -> None:
        vector = engine.fresh_vector(layout)
        for batch in batches:
            vector = call(carry, vector, batch)
        jax.block_until_ready(vector)

    return evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    rng = np.random.default_rng(0)
    batches = [
        Batch(rng.standard_normal((8, 64), np.float32), rng.standard_normal((8, 1), np.float32))
        for _ in range(args.batches)
    ]
    one_by_one, fused = make_trainer(batches[0], 1), make_trainer(batches[0], "auto")
    contestants: dict[str, Callable[[], Any]] = {
        "one by one": lambda: one_by_one.eval_model(batches, "val", 1),
        "fused": lambda: fused.eval_model(batches, "val", 1),
        "same program": bare(one_by_one, batches),
    }
    timings = race(contestants, args.batches, args.rounds)
    print(f"{'':<14}{'median us':>10}{'best us':>10}{'to one by one':>15}   per batch")
    for name, timing in timings.items():
        ratio = timing.ratio_to(timings["one by one"])
        print(f"{name:<14}{timing.median_us:>10.1f}{timing.best_us:>10.1f}{ratio:>15.2f}")


if __name__ == "__main__":
    main()
