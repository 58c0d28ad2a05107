"""How long it takes to open a run and to report it, and how much memory, as the run grows; and lists of many runs.

    python -m benchmarks.run_reading --plot reading.png

Runs are written as the trainer writes them, with 30 metrics and a row for each step; each is opened in fresh processes,
and every column, the step times and the findings are asked for. Processor time is what to look at on a busy machine.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
from dataclasses import dataclass

import numpy as np

from benchmarks.fresh_process import measure
from trackside.clock import ManualClock
from trackside.events import EventWriter
from trackside.run_layout import event_file_name

NUM_ROUNDS = 3
NUM_METRICS = 30
STEP_TIME_S = 0.003
NUM_STEPS = (1_000, 10_000, 100_000, 1_000_000)
# How many runs, and how many steps each has.
MANY = ((200, 5_000), (1_000, 300))
TIME_PARTS = ("data_wait", "host_to_device", "dispatch", "device_wait", "compile", "logging", "validation", "other")

OPEN = """
import json, resource, sys, time
from trackside.runs import open_run
wall, cpu = time.perf_counter(), time.process_time()
run = open_run(sys.argv[1])
num_rows, num_values = len(run.metrics["train"]), sum(len(table) * len(table.names) for table in run.metrics.values())
num_clean, findings, status = int(run.step_times.clean.sum()), run.findings, run.status
print(json.dumps({"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "rows": num_rows,
                  "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""

REPORT = """
import json, os, sys, time
from trackside.report import render_summary, summarise_run, write_html_report
from trackside.runs import open_run
run = open_run(sys.argv[1])
run.metrics, run.findings
wall, cpu = time.perf_counter(), time.process_time()
render_summary(summarise_run(run)).plain
page = write_html_report(run)
print(json.dumps({"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu,
                  "bytes": os.path.getsize(page)}))
"""

LIST = """
import json, sys, time
from trackside.cli.run_glance import glance_at
from trackside.runs import find_runs
wall, cpu = time.perf_counter(), time.process_time()
glances = [glance_at(path) for path in find_runs(sys.argv[1])]
print(json.dumps({"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))
"""

OPEN_ALL = """
import json, sys, time
from trackside.runs import find_runs, open_run
wall, cpu = time.perf_counter(), time.process_time()
losses = [open_run(path).metrics["train"]["loss_0_mean"][-1] for path in find_runs(sys.argv[1])]
print(json.dumps({"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))
"""


@dataclass(frozen=True)
class Point:
    """What was measured of a run."""

    num_steps: int
    num_bytes: int
    open_s: float
    open_cpu_s: float
    peak_bytes: float
    report_s: float
    report_cpu_s: float
    page_bytes: int


def best(code: str, folder: pathlib.Path) -> dict[str, float]:
    """The round with the least processor time."""
    return min((measure(code, str(folder)) for _ in range(NUM_ROUNDS)), key=lambda each: each["cpu"])


def measure_run(num_steps: int) -> Point:
    """Write a run, open it and report it."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "run"
        size = write_run(folder, num_steps, every=1)
        opened, reported = best(OPEN, folder), best(REPORT, folder)
    return Point(
        num_steps,
        size,
        opened["seconds"],
        opened["cpu"],
        opened["peak"],
        reported["seconds"],
        reported["cpu"],
        int(reported["bytes"]),
    )


def measure_many(num_runs: int, num_steps: int) -> None:
    """List many runs as `trackside ls` does, and open them all."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_run(folder / "run-0000", num_steps, every=1)
        for number in range(1, num_runs):
            shutil.copytree(folder / "run-0000", folder / f"run-{number:04d}")
        listed, opened = best(LIST, folder), best(OPEN_ALL, folder)
    for what, found in (("listed", listed), ("opened", opened)):
        print(
            f"  {num_runs:5,} runs of {num_steps:5,} steps {what} in {found['seconds']:5.2f} s "
            f"({found['cpu']:5.2f} s of processor time)"
        )


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


def plot(points: list[Point], path: pathlib.Path) -> None:
    """Draw what grows with the rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [point.num_steps for point in points]
    figure, (times, sizes) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    times.loglog(steps, [point.open_cpu_s for point in points], "o-", label="open, with all columns and findings")
    times.loglog(steps, [point.report_cpu_s for point in points], "s-", label="report: terminal and page")
    times.set(xlabel="steps, with a row each", ylabel="processor seconds")
    sizes.loglog(steps, [point.num_bytes / 1e6 for point in points], "o-", label="event file")
    sizes.loglog(steps, [point.peak_bytes / 1e6 for point in points], "s-", label="memory at its peak")
    sizes.loglog(steps, [point.page_bytes / 1e6 for point in points], "^-", label="page of the report")
    sizes.set(xlabel="steps, with a row each", ylabel="MB")
    for axes in (times, sizes):
        axes.legend(frameon=False, fontsize=8)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    print(f"  drawn in {path}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=pathlib.Path, help="draw the curves into this file")
    options = parser.parse_args(arguments or [])
    print(f"runs with {NUM_METRICS} metrics and a row for each step: the best of {NUM_ROUNDS} fresh processes")
    points = []
    for num_steps in NUM_STEPS:
        points.append(point := measure_run(num_steps))
        print(
            f"  {num_steps:9,} steps: {point.num_bytes / 1e6:6.1f} MB, {point.num_bytes / num_steps:5.0f} bytes each; "
            f"opened in {point.open_s:5.2f} s ({point.open_cpu_s:4.2f} s of processor time), peak "
            f"{point.peak_bytes / 1e6:3.0f} MB; reported in {point.report_s:5.2f} s ({point.report_cpu_s:4.2f} s), "
            f"page of {point.page_bytes / 1e6:.1f} MB",
            flush=True,
        )
    if options.plot is not None:
        plot(points, options.plot)
    for num_runs, num_steps in MANY:
        measure_many(num_runs, num_steps)


if __name__ == "__main__":
    main(sys.argv[1:])
