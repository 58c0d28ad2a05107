"""A training by two processes, both profiled: `python -m tests.callbacks.process_script INDEX PORT FOLDER`."""

import sys
from pathlib import Path

import jax

from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks import JAXProfiler, JaxProfiler, JaxProfilerConfig, ProfilingConfig
from trackside.logger import LoggerConfig
from trackside.trainer import ParallelConfig


def main() -> None:
    index, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
    batches = make_loader(80, size=4, seed=100 * index)
    trainer = make_trainer(
        parallel=ParallelConfig(), logger=LoggerConfig(log_path=folder / "run"), batch=batches[0], lr=0.01
    )
    profilers = [
        JAXProfiler(ProfilingConfig(str(folder / "window"), 10, 13, main_process_only=False)),
        JaxProfiler(
            JaxProfilerConfig(
                main_process_only=False, profile_first_step=20, profile_n_steps=2, profile_every_n_minutes=0
            )
        ),
    ]
    trainer.fit(batches, callbacks=profilers)
    print("FINAL", [float(leaf.sum()).hex() for leaf in jax.tree.leaves(trainer.state.params)], flush=True)


if __name__ == "__main__":
    main()
