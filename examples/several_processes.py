"""Train one model with two processes on this machine: python examples/several_processes.py [RUN_DIR].

It starts itself twice, as a launcher on a cluster would. On a cluster, run `train` in each process; with SLURM, Open
MPI or TPUs, `jax.distributed.initialize()` needs no arguments.
"""

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np

from trackside.callbacks import CheckpointConfig
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

NUM_PROCESSES = 2


class Net(nn.Module):
    config: object = None

    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(1)(nn.tanh(nn.Dense(16)(x)))


class MSETrainer(TrainerModule):
    def loss_function(self, params, apply_fn, batch, rng, train=True):
        error = (apply_fn({"params": params}, batch.inputs, train=train) - batch.targets) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, None)


def load_batches(process_index: int, num_processes: int) -> list[Batch]:
    """This process's part of batches of 64 examples."""
    inputs = np.random.default_rng(0).uniform(-2, 2, (1280, 1)).astype(np.float32)
    own = Batch(inputs, np.sin(2 * inputs))[process_index::num_processes]
    size = 64 // num_processes
    return [own[start : start + size] for start in range(0, len(own.inputs), size)]


def train(run_dir: Path) -> None:
    """What each process does."""
    batches = load_batches(jax.process_index(), jax.process_count())
    trainer = MSETrainer(
        TrainerConfig(
            logger=LoggerConfig(log_path=run_dir, log_every_n_steps=8),
            callbacks=[CheckpointConfig(monitor="val_loss")],
            resume="auto",
            watchdog_timeout_s=600,
        ),
        ModelConfig(model_class=Net, parallel=ParallelConfig(fsdp_axis_size=2, fsdp_min_weight_size=16)),
        OptimizerConfig(name="adam", scheduler=SchedulerConfig(lr=3e-2)),
        batch=batches[0],
    )
    results = trainer.train_model(batches[:16], batches[16:], num_epochs=4)
    print(
        f"process {jax.process_index()} of {jax.process_count()}: {trainer.global_step} steps on "
        f"{len(jax.devices())} devices, validation loss {results['val']['loss']:.4f}"
    )


def start_processes(run_dir: str) -> None:
    """Start one process for each index, and wait for all of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    commands = [[sys.executable, __file__, run_dir, address, str(index)] for index in range(NUM_PROCESSES)]
    started = [subprocess.Popen(command) for command in commands]
    exit_codes = [process.wait() for process in started]
    if any(exit_codes):
        sys.exit(f"exit codes {exit_codes}")
    files = sorted(path.name for path in Path(run_dir).glob("events-*.jsonl"))
    print(f"both processes trained one model and wrote {files}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        jax.config.update("jax_num_cpu_devices", 1)
        jax.distributed.initialize(  # before anything else touches a device
            sys.argv[2], NUM_PROCESSES, int(sys.argv[3]), heartbeat_timeout_seconds=30, shutdown_timeout_seconds=60
        )
        train(Path(sys.argv[1]))
    else:
        start_processes(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
