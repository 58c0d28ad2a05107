"""A run of 1,024 processes, simulated, read and reported: how long it takes, and whether the slow host is named.

Each process's event file is what the trainer writes: a row of training and a row on where the time went every ten
steps, and totals every ten seconds. All processes make each step together: it takes as long as the slowest of them
needs, and the others wait for the device meanwhile. One host is planted that takes longer to load its data, and one
that dies a while before the end.
"""

import pathlib
import tempfile
import time

import numpy as np

from benchmarks.fresh_process import measure
from trackside.clock import ManualClock
from trackside.events import EventWriter
from trackside.run_layout import event_file_name

NUM_STEPS = 10_000
LOG_EVERY = 10
CASES = (16, 128, 1024)
"""Processes."""
DEVICE_S = 0.150
OWN_S = 0.020
"""What a host does itself for a step, in the mean, while the device computes."""
SLOW_S = 0.060
LIMIT_S = 60.0
LIMIT_BYTES = 2e9
"""For the report: from opening the run to the page that is written, and the peak of the process that does so."""
METRICS = ("loss_mean", "accuracy_mean", "grad_norm_mean", "param_norm_mean", "learning_rate", "tokens_mean")

MEASURE = """
import json, os, resource, sys, time
from trackside.runs import open_run
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start = time.perf_counter()
run = open_run(sys.argv[1])
hosts, findings = run.hosts, run.findings
facts = run.status, run.ledger, run.legs, run.step_times, run.metrics, run.problems
read = time.perf_counter()
cpu, read_peak = sum(os.times()[:4]), peak()
# Only now, or its memory would be counted with the reading; the time to import it is a part of the report's.
from trackside.report import render_summary, summarise_run, write_html_report
text = render_summary(summarise_run(run)).plain
printed = time.perf_counter()
page = write_html_report(run)
written = time.perf_counter()
print(json.dumps({"seconds": read - start, "peak": read_peak, "cpu": cpu, "terminal_s": printed - read,
                  "page_s": written - printed, "report_s": written - start, "report_peak": peak(),
                  "page_bytes": page.stat().st_size, "num_hosts": len(hosts),
                  "slow": [each.process_index for each in hosts.slow],
                  "silent": [each.process_index for each in hosts.silent],
                  "titles": [finding.title for finding in findings]}))
"""


def write_process(folder: pathlib.Path, index: int, own_s: np.ndarray, step_s: np.ndarray, last_step: int) -> int:
    """Write the event file of one process; its size is returned.

    Args:
        folder: The run's folder.
        index: Which process it is.
        own_s: What it does itself per step, for each interval of `LOG_EVERY` steps.
        step_s: What a step takes, for all processes.
        last_step: Where it stops.
    """
    clock = ManualClock(1.7e9 + 0.01 * index)
    writer = EventWriter(folder / event_file_name(index), clock)
    writer.write("environment", hostname=f"node-{index:04}", process_index=index, pid=1000 + index)
    writer.write("config", config={"trainer": {"seed": 0, "logger": {"log_every_n_steps": LOG_EVERY}}})
    writer.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
    parts = {
        "data_wait": 0.0,
        "host_to_device": 0.0,
        "dispatch": 0.0,
        "device_wait": 0.0,
        "compile": 30.0,
        "other": 0.0,
    }
    saved_s = clock.now()
    for number, (own, step_time) in enumerate(zip(own_s.tolist(), step_s.tolist(), strict=True), 1):
        step = number * LOG_EVERY
        if step > last_step:
            break
        clock.advance(step_time * LOG_EVERY)
        recent = {"data_wait": own - 0.004, "host_to_device": 0.001, "dispatch": 0.002, "device_wait": step_time - own}
        recent |= {"compile": 0.0, "other": 0.001}
        for part, seconds in recent.items():
            parts[part] += seconds * LOG_EVERY
        values = {name: 1.0 / (step + place) for place, name in enumerate(METRICS)}
        writer.write_metrics({**values, "epoch": 1, "step_time": step_time}, step, 1, "train")
        times = {f"{part}_ms": 1e3 * seconds for part, seconds in recent.items()}
        writer.write_metrics({**times, "steps_per_second": 1 / step_time, "device_idle_share": 0.0}, step, 1, "time")
        if clock.now() - saved_s >= 10.0:
            saved_s = clock.now()
            writer.write("ledger", step=step, wall_s=sum(parts.values()), parts=parts, num_steps=step)
    else:
        writer.write("ledger", step=step, wall_s=sum(parts.values()), parts=parts, num_steps=step)
        writer.write("leg_end", leg=1, step=last_step, epoch=1, train_time_s=clock.now() - 1.7e9, goodput=0.9)
        writer.write("status", status="success", step=last_step, epoch=1)
    writer.close()
    return writer.path.stat().st_size


def write_run(folder: pathlib.Path, num_processes: int) -> tuple[int, int, int]:
    """Write a run; its size, the slow process and the one that died are returned."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    slow, dead = (int(index) for index in rng.choice(np.arange(1, num_processes), 2, replace=False))
    shape = num_processes, NUM_STEPS // LOG_EVERY
    own_s = OWN_S * (1 + 0.1 * rng.standard_normal(shape)) * (1 + 0.05 * rng.standard_normal((num_processes, 1)))
    own_s[slow] += SLOW_S - OWN_S
    step_s = DEVICE_S + own_s.max(axis=0)
    last_steps = [NUM_STEPS if index != dead else int(0.7 * NUM_STEPS) for index in range(num_processes)]
    size = sum(write_process(folder, index, own_s[index], step_s, last_steps[index]) for index in range(num_processes))
    return size, slow, dead


def main() -> None:
    print(f"a run of many processes over {NUM_STEPS:,} steps, a row every {LOG_EVERY}: simulated, read and reported")
    for num_processes in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder, start = pathlib.Path(name) / "run", time.perf_counter()
            size, slow, dead = write_run(folder, num_processes)
            write_s = time.perf_counter() - start
            found = measure(MEASURE, str(folder))
        is_right = found["slow"] == [slow] and found["silent"] == [dead]
        print(
            f"  {num_processes:5,} processes: {size / 1e6:6.0f} MB (written in {write_s:3.0f} s): read in "
            f"{found['seconds']:5.2f} s ({found['cpu']:5.2f} s of processor time), peak {found['peak'] / 1e6:4.0f} MB; "
            f"planted slow {slow}, dead {dead}: named slow {found['slow']}, silent {found['silent']}"
            f"{'' if is_right else '  WRONG'}"
        )
        is_within = found["report_s"] < LIMIT_S and found["report_peak"] < LIMIT_BYTES
        print(
            f"        report: {found['report_s']:5.2f} s with the reading, of it {found['terminal_s']:.2f} s for the "
            f"terminal and {found['page_s']:.2f} s for a page of {found['page_bytes'] / 1e6:.1f} MB, peak "
            f"{found['report_peak'] / 1e6:4.0f} MB (limits {LIMIT_S:.0f} s, {LIMIT_BYTES / 1e6:,.0f} MB)"
            f"{'' if is_within else '  BEYOND'}"
        )
    for title in found["titles"]:
        print(f"    {title}")


if __name__ == "__main__":
    main()
