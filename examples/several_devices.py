"""Train on eight CPU devices with split parameters: python examples/several_devices.py [RUN_DIR].

On eight accelerators, leave out `jax_num_cpu_devices`; nothing else changes.
"""

import sys
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np

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

jax.config.update("jax_num_cpu_devices", 8)  # before the first use of a device


class Net(nn.Module):
    """The first layer names its axes; the automatic rule handles the second."""

    config: object = None

    @nn.compact
    def __call__(self, x, train: bool = False):
        init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        x = nn.tanh(nn.Dense(64, kernel_init=init)(x))
        return nn.Dense(8)(x)


class MSETrainer(TrainerModule):
    def loss_function(self, params, apply_fn, batch, rng, train=True):
        error = (apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, None)


rng = np.random.default_rng(0)
inputs = rng.standard_normal((1024, 16), np.float32)
data = Batch(inputs, inputs @ rng.standard_normal((16, 8), np.float32) / 4)
batches = [data[start : start + 64] for start in range(0, 1024, 64)]
run_dir = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())

parallel = ParallelConfig(
    data_axis_size=2,
    fsdp_axis_size=2,
    model_axis_size=2,
    fsdp_min_weight_size=256,  # low, so that even this small model is split
    logical_axis_rules={"embed": "fsdp", "mlp": "tp"},
)
trainer = MSETrainer(
    TrainerConfig(logger=LoggerConfig(log_path=run_dir, log_every_n_steps=4)),
    ModelConfig(model_class=Net, parallel=parallel),
    OptimizerConfig(name="adam", scheduler=SchedulerConfig(lr=1e-2)),
    batch=batches[0],
)
print(trainer.tabulate_params())
metrics = trainer.train_model(batches[:12], [*batches[12:], data[:5]], num_epochs=5)
kernel = trainer.state.params["Dense_0"]["kernel"]
print(f"mesh {dict(trainer.mesh.shape)}: the kernel {kernel.shape} is split into parts of", end=" ")
print(f"{kernel.addressable_shards[0].data.shape} on {len(kernel.sharding.device_set)} devices")
print(f"validation loss {metrics['val']['loss']:.4f}; the run is in {run_dir}")
