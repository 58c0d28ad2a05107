"""The full way: configs for everything, and a trainer with your loss: python examples/full_trainer.py [RUN_DIR]."""

import sys
import tempfile
from pathlib import Path

import flax.linen as nn
import numpy as np

from trackside.logger import FileLoggerConfig, LoggerConfig
from trackside.trainer import Batch, ModelConfig, OptimizerConfig, SchedulerConfig, TrainerConfig, TrainerModule


class Net(nn.Module):
    config: object = None

    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(1)(nn.tanh(nn.Dense(32)(x)))


class MSETrainer(TrainerModule):
    def loss_function(self, params, apply_fn, batch, rng, train=True):
        error = (apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, None)


inputs = np.random.default_rng(0).uniform(-2, 2, (2560, 1)).astype(np.float32)
data = Batch(inputs, np.sin(2 * inputs))
batches = [data[start : start + 64] for start in range(0, 2560, 64)]
run_dir = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
trainer = MSETrainer(
    TrainerConfig(logger=LoggerConfig(log_path=run_dir, log_every_n_steps=10, log_tools=[FileLoggerConfig()])),
    ModelConfig(model_class=Net),
    OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=1e-2)),
    batch=batches[0],
)
metrics = trainer.train_model(batches[:32], batches[32:36], batches[36:], num_epochs=10)
print(f"test loss {metrics['test']['loss']:.4f}; the run is in {run_dir}")
