"""How long it takes from the start of a process until the first training step is made.

Fresh processes, one after the other in turn: a jitted step written by hand, and a trainer, each with nothing compiled
before and with what the round before has compiled. The trainer's warm process has a run folder of its own and the same
folder of programs. All train on the same batches and validate on one; the trainer prepares
both at once, so that its evaluation is part of the training step. Times are medians; on a busy machine compare the
rows of one model with each other only.
"""

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.fresh_process import measure

COMMON = """
import sys, time
begun_s = time.time()
marks = []
def mark(name):
    global begun_s
    now_s = time.time()
    marks.append((name, now_s - begun_s))
    begun_s = now_s
kind, folder = sys.argv[1], sys.argv[2]
import json
import jax, jax.numpy as jnp, numpy as np, optax, flax.linen as nn

LAYERS, WIDTH, LENGTH = {"mlp": (2, 64, 1), "transformer": (6, 64, 32)}[kind]

class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        if kind == "transformer":
            y = nn.LayerNorm()(x)
            x = x + nn.SelfAttention(num_heads=4)(y)
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))

class Net(nn.Module):
    config: object = None
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(WIDTH)(x)
        for _ in range(LAYERS):
            x = Block()(x)
        return nn.Dense(1)(x)

rng = np.random.default_rng(0)
def batch():
    return (rng.standard_normal((8, LENGTH, 16), np.float32), rng.standard_normal((8, LENGTH, 1), np.float32))
"""

BY_HAND = (
    COMMON
    + """
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_compilation_cache_dir", folder)
mark("imports")
model, tx = Net(), optax.adam(1e-3)
first = batch()
@jax.jit
def init(x):
    params = model.init(jax.random.key(0), x)["params"]
    return params, tx.init(params)
def loss_of(params, batch):
    return jnp.mean((model.apply({"params": params}, batch[0]) - batch[1]) ** 2)
def train_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss
train_step, eval_step = jax.jit(train_step, donate_argnums=(0, 1)), jax.jit(loss_of)
mark("model")
params, opt_state = jax.block_until_ready(init(first[0]))
mark("initial state")
jax.block_until_ready(eval_step(params, first))
mark("evaluation")
jax.block_until_ready(train_step(params, opt_state, first))
mark("training step")
print(json.dumps(dict(marks)))
"""
)

TRAINER = (
    COMMON
    + """
from pathlib import Path
from trackside.logger import LoggerConfig
from trackside.trainer import (Batch, ModelConfig, OptimizerConfig, ParallelConfig, SchedulerConfig, TrainerConfig,
                               TrainerModule)
mark("imports")
class Trainer(TrainerModule):
    def loss_function(self, params, apply_fn, batch, rng, train=True):
        error = (apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, None)
batches = [Batch(*batch()) for _ in range(2)]
mark("model")
trainer = Trainer(
    TrainerConfig(
        logger=LoggerConfig(log_path=Path(sys.argv[3])), compile_cache=folder, enable_progress_bar=False,
        steps_per_call=1,
    ),
    ModelConfig(model_class=Net, parallel=ParallelConfig(data_axis_size=1), model_config=None),
    OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=1e-3)),
    batch=batches[0],
)
mark("initial state")
trainer.train_model(batches[:1], batches[1:], num_train_steps=1)
first = trainer.meter.first_step
in_training_s = first.wall_s - dict(marks)["initial state"]
print(json.dumps({**dict(marks), "training step": in_training_s, "ledger": first.text}))
"""
)

WAYS = {"by hand, cold": BY_HAND, "by hand, warm": BY_HAND, "trainer, cold": TRAINER, "trainer, warm": TRAINER}
PARTS = ("imports", "model", "initial state", "evaluation", "training step")


def rounds_of(kind: str, num_rounds: int, root: Path) -> dict[str, list[dict]]:
    """What each way took, by name."""
    found: dict[str, list[dict]] = {name: [] for name in WAYS}
    for index in range(num_rounds):
        for name, code in WAYS.items():
            programs = root / f"{kind}-{name.partition(',')[0]}-{index}"
            found[name].append(measure(code, kind, str(programs), str(root / f"run-{kind}-{index}-{name[-4:]}")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["mlp", "transformer"])
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="trackside-first-step-"))
    try:
        for kind in options.models:
            found = rounds_of(kind, options.rounds, root)
            print(f"{kind}: seconds to the first step, medians of {options.rounds} processes")
            print(f"  {'':16}" + "".join(f"{part:>15}" for part in (*PARTS, "total")))
            for name, rows in found.items():
                parts = [statistics.median(row.get(part, 0.0) for row in rows) for part in PARTS]
                total = statistics.median(sum(row.get(part, 0.0) for part in PARTS) for row in rows)
                print(f"  {name:16}" + "".join(f"{value:15.2f}" for value in (*parts, total)))
            for name in ("trainer, cold", "trainer, warm"):
                print(f"  {name}: {found[name][-1]['ledger']}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
