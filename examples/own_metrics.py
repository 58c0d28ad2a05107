"""Write your own metrics and your own logging tool: python examples/own_metrics.py [RUN_DIR]."""

import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from trackside.events import read_events
from trackside.logger import LoggerConfig, LoggerTool, LoggerToolsConfig
from trackside.trainer import Batch, ModelConfig, OptimizerConfig, SchedulerConfig, TrainerConfig, TrainerModule


@dataclass
class WeightedBatch(Batch):
    weights: np.ndarray  # 0 for padding


class Net(nn.Module):
    config: object = None

    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(1)(x)


class WeightedTrainer(TrainerModule):
    def loss_function(self, params, apply_fn, batch, rng, train=True):
        error = apply_fn({"params": params}, batch.inputs, train=train) - batch.targets
        total, weight = (batch.weights * error**2).sum(), batch.weights.sum()
        metrics = {
            # A sum, and what it is summed over: never a mean with a count. The logged mean is the sum of all values
            # over the sum of all counts, which is right even if the weights vary between batches.
            "loss": {"value": total, "count": weight},
            # One number per step: it is its own mean, so its count is 1.
            "abs_error": {"value": jnp.abs(error).max(), "count": 1, "log_modes": ["max", "std"]},
            "weight": {"value": weight, "count": 1, "log_modes": ["mean_nopostfix", "single"]},
        }
        return total / weight, (metrics, None)

    def on_validation_epoch_end(self, eval_metrics, epoch_idx, step_idx):
        eval_metrics["rmse"] = eval_metrics["loss"] ** 0.5  # what a hook adds is logged, too

    def get_metric_postprocess_fn(self):
        def in_milliseconds(row):  # gets every row, and rows have different names
            if "step_time" in row:
                row["step_time_ms"] = 1e3 * row.pop("step_time")
            return row

        return in_milliseconds


@dataclass(kw_only=True)
class RowCounterConfig(LoggerToolsConfig):
    file_name: str = "row_counts.txt"

    def create(self, logger):
        return RowCounter(logger.log_path / self.file_name)


class RowCounter(LoggerTool):
    """Counts the rows of each mode, except those about time, and writes the counts to a file at the end."""

    def __init__(self, path):
        self.path = path
        self.num_rows = Counter()

    def log_metrics(self, metrics, step, epoch, mode):
        if mode != "time":  # up to ten per second, so their number varies
            self.num_rows[mode] += 1

    def finalize(self, status):
        self.path.write_text(f"{status}: {dict(self.num_rows)}\n")


rng = np.random.default_rng(0)
inputs = rng.standard_normal((512, 4), np.float32)
targets = inputs @ np.array([[1.0], [-2.0], [0.5], [3.0]], np.float32)
data = WeightedBatch(inputs, targets, rng.integers(0, 2, (512, 1)).astype(np.float32))
batches = [data[start : start + 32] for start in range(0, 512, 32)]
run_dir = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())

trainer = WeightedTrainer(
    TrainerConfig(logger=LoggerConfig(log_path=run_dir, log_every_n_steps=4, log_tools=[RowCounterConfig()])),
    ModelConfig(model_class=Net),
    OptimizerConfig(name="sgd", scheduler=SchedulerConfig(lr=0.1)),
    batch=batches[0],
)
trainer.train_model(batches[:12], batches[12:], num_epochs=2)

rows = [row for row in read_events(run_dir / "events-00000.jsonl") if row["kind"] == "metrics"]
for mode in ("train", "val"):
    last = [row for row in rows if row["mode"] == mode][-1]
    print(f"last {mode} row, step {last['step']}:", {name: round(value, 4) for name, value in last["values"].items()})
print("rows that the tool received:", (run_dir / "row_counts.txt").read_text().strip())
