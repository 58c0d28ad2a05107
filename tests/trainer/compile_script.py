"""A process that trains a tiny model, for tests of what it leaves for the next one. Prints what it did as JSON.

Arguments: the run's folder, the compile cache, and words for what is different.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np

from tests.trainer.tiny import MSETrainer, make_loader, make_trainer, rows_of
from trackside.callbacks import CheckpointConfig, ProfilingConfig
from trackside.logger import LoggerConfig
from trackside.trainer import compile_cache

run, cache, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
compile_cache.MIN_COMPILE_S = 0.0  # tiny programs compile in no time


class Deep(nn.Module):
    """Two layers, so that there is something to compile."""

    config: object = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        with jax.named_scope("other" if "renamed" in words else "first"):
            x = nn.gelu(nn.Dense(8)(x))
        return nn.Dense(1)(x)


if "killed" in words:
    write = Path.write_bytes

    def die(self: Path, content: bytes) -> int:
        if self.parent != Path(cache):
            return write(self, content)
        with self.open("wb") as file:
            file.write(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    Path.write_bytes = die  # type: ignore[method-assign]

choice = None if cache == "none" else cache
logger = None if "unlogged" in words else LoggerConfig(log_path=run)
callbacks = []
if "captured" in words:
    callbacks = [ProfilingConfig(log_dir=str(run / "profiles"), start_step=2, end_step=5)]
if "leg" in words:
    callbacks = [CheckpointConfig(monitor=None)]
trainer = make_trainer(
    MSETrainer,
    Deep,
    logger=logger,
    callbacks=callbacks,
    compile_cache=choice,
    steps_per_call=1,
    resume="auto" if "leg" in words else "never",
)
results = trainer.train_model(make_loader(3), make_loader(2), num_epochs=4 if "second" in words else 2)
compiled, reports = {}, []
if logger is not None:
    rows = [row for row in rows_of(trainer.logger.log_path, "compile") if not row["is_operation"]]
    compiled = {row["function"]: row["cache"] for row in rows}
    reports = [row["report"] for row in rows_of(trainer.logger.log_path, "capture")]
weights = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trainer.state.params))
print(
    json.dumps(
        {
            "folder": str(trainer.logger.log_path),
            "compiles": compiled,
            "reports": reports,
            "losses": {name: metrics.get("loss") for name, metrics in results.items()},
            "weights": hashlib.sha256(weights).hexdigest(),
        }
    )
)
