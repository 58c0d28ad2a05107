"""Runs that were never trained: event files with step times as a test wants them, whatever the machine does."""

from pathlib import Path

import numpy as np

from trackside.events import EventWriter
from trackside.run_layout import event_file_name

STEP_S = 2e-3


def write_run(folder: Path, step_s: float, num_steps: int = 2000, seed: int = 0) -> Path:
    """The event file of a training whose steps take so long, with little noise; a quarter of it the device idles."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    writer = EventWriter(folder / event_file_name(0))
    writer.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
    for step in range(1, num_steps + 1):
        values = {"loss": 1.0, "step_time": step_s * (1 + rng.exponential(0.01))}
        writer.write_metrics(values, step, 1, "train")
        if step % 100 == 0:
            parts = {"data_wait_ms": 0.1, "device_wait_ms": 1e3 * step_s + rng.normal(0, 0.01), "compile_ms": 0.0}
            writer.write_metrics(parts, step, 1, "time")
    parts = {"data_wait": 1e-4 * num_steps, "device_wait": step_s * num_steps, "compile": 1.0}
    writer.write(
        "ledger",
        step=num_steps,
        wall_s=sum(parts.values()),
        parts=parts,
        num_steps=num_steps,
        num_samples=8 * num_steps,
        device_busy_s=0.75 * step_s * num_steps,
        device_idle_s=0.25 * step_s * num_steps,
        idle_by_reason={"data_wait": 0.25 * step_s * num_steps},
    )
    writer.write("status", status="success", step=num_steps, epoch=1)
    writer.close()
    return folder
