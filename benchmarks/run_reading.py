"""How long it takes to open a run, and how much memory, as the run grows.

Runs are written as the trainer writes them, with 30 metrics; each is opened in fresh processes, and every column, the
step times and the findings are asked for.
"""

import pathlib
import tempfile

import numpy as np

from benchmarks.fresh_process import measure
from trackside.clock import ManualClock
from trackside.events import EventWriter
from trackside.run_layout import event_file_name

NUM_ROUNDS = 3
NUM_METRICS = 30
STEP_TIME_S = 0.003
# Steps, and every how many of them a row is written.
CASES = ((100_000, 10), (1_000_000, 10), (100_000, 1), (1_000_000, 1))
TIME_PARTS = ("data_wait", "host_to_device", "dispatch", "device_wait", "compile", "logging", "validation", "other")

MEASURE = """
import json, os, resource, sys, time
from trackside.runs import open_run
start = time.perf_counter()
run = open_run(sys.argv[1])
num_rows, num_values = len(run.metrics["train"]), sum(len(table) * len(table.names) for table in run.metrics.values())
num_clean, findings, status = int(run.step_times.clean.sum()), run.findings, run.status
seconds = time.perf_counter() - start
own, workers = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
# Times of the first process that reads and of the largest that helps it, at their peaks.
times = os.times()
print(json.dumps({"seconds": seconds, "peak": own * 1024, "worker_peak": workers * 1024, "rows": num_rows,
                  "values": num_values, "cpu": sum(times[:4])}))
"""


def write_run(folder: pathlib.Path, num_steps: int, every: int) -> int:
    """Write a run; the size of its event file is returned."""
    folder.mkdir(parents=True)
    clock = ManualClock(1.7e9)
    path = folder / event_file_name(0)
    writer = EventWriter(path, clock)
    writer.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
    names = [f"layer_{index}/grad_norm_mean" if index % 3 else f"loss_{index}_mean" for index in range(NUM_METRICS - 2)]
    block = np.random.default_rng(0).random((4096, len(names))).tolist()
    parts = dict.fromkeys(TIME_PARTS, 0.0)
    rows_per_second = max(round(1 / STEP_TIME_S / every), 1)
    for number in range(1, num_steps // every + 1):
        step = number * every
        clock.advance(STEP_TIME_S * every)
        values = dict(zip(names, block[number % 4096], strict=True))
        writer.write_metrics({**values, "epoch": 1, "step_time": STEP_TIME_S + 1e-9 * step}, step, 1, "train")
        if number % rows_per_second == 0:
            writer.write_metrics({f"{part}_ms": 0.1 + 1e-9 * step for part in parts}, step, 1, "time")
        if number % (10 * rows_per_second) == 0:
            parts = {part: seconds + 10 / len(parts) for part, seconds in parts.items()}
            writer.write("ledger", step=step, wall_s=sum(parts.values()), parts=parts, num_steps=step)
    writer.write("leg_end", leg=1, step=num_steps, epoch=1, train_time_s=num_steps * STEP_TIME_S, goodput=0.9)
    writer.write("status", status="success", step=num_steps, epoch=1)
    writer.close()
    return path.stat().st_size


def main() -> None:
    print(f"opening a run with {NUM_METRICS} metrics: best of {NUM_ROUNDS} fresh processes")
    for num_steps, every in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name) / "run"
            size = write_run(folder, num_steps, every)
            rounds = [measure(MEASURE, str(folder)) for _ in range(NUM_ROUNDS)]
        best = min(rounds, key=lambda each: each["seconds"])
        peak, worker_peak = (max(each[name] for each in rounds) / 1e6 for name in ("peak", "worker_peak"))
        helped = f", {worker_peak:4.0f} MB in a process that helps" if worker_peak else ""
        print(
            f"  {num_steps:9,} steps, a row every {every:2}: {size / 1e6:6.0f} MB, {best['rows']:9,} rows: "
            f"{best['seconds']:5.2f} s ({best['cpu']:5.2f} s of processor time), peak {peak:4.0f} MB{helped}"
        )


if __name__ == "__main__":
    main()
