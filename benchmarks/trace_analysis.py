"""How fast traces are analysed, in how much memory, and how much of the device time gets a name.

The captures are taken in a process of their own, with two CPU devices, so that the analysis is measured without JAX.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

NUM_STEPS = 1_000
NUM_ROUNDS = 3
MIN_REPLICATED_BYTES = 120_000_000

MEASURE = """
import json, resource, sys, time
from trackside.trace import analyse_trace
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before, start = resident(), time.perf_counter()
report = analyse_trace(sys.argv[1])
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "bytes": report.size_bytes, "events": report.num_events,
                  "steps": report.num_steps, "factor": (peak - before) / report.size_bytes}))
"""

READ_BY_JAX = """
import json, sys, time
from jax.profiler import ProfileData
start = time.perf_counter()
data, num = ProfileData.from_file(sys.argv[1]), 0
for plane in data.planes:
    for line in plane.lines:
        for event in line.events:
            found = (event.name, event.start_ns, event.duration_ns, dict(event.stats))
            num += 1
print(json.dumps({"seconds": time.perf_counter() - start, "events": num}))
"""

READ_BY_US = """
import json, sys, time
from trackside.trace.xspace import read_xspace
data = open(sys.argv[1], "rb").read()
start = time.perf_counter()
space = read_xspace(data)
print(json.dumps({"seconds": time.perf_counter() - start, "events": space.num_events}))
"""

CAPTURE = """
import sys
from benchmarks import trace_models
trace_models.capture(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def run(code: str, *arguments: str) -> dict:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}


def capture(model: str, folder: pathlib.Path, num_steps: int) -> pathlib.Path:
    run(CAPTURE, model, str(folder / model), str(num_steps))
    return next((folder / model).rglob("*.xplane.pb"))


def replicate(file: pathlib.Path, target: pathlib.Path) -> None:
    """Write the events of a capture over and over, each time later, until the file is large."""
    from tests.trace.synthetic import field
    from trackside.trace import wire

    data = file.read_bytes()
    num_copies = MIN_REPLICATED_BYTES // len(data) + 1

    def copies(line: wire.Span) -> Iterator[bytes]:
        starts, ends, rest = wire.split_repeated(data, line, 4)
        parts = [(data[a:b], next(wire.fields(data, (a, b)))) for a, b in rest]
        # The events lie together, so all that is left out is the timestamp.
        others = b"".join(raw for raw, (number, _) in parts if number != 3)
        timestamp = next((value for _, (number, value) in parts if number == 3), 0)
        events = data[_first_key(data, int(starts[0])) : int(ends[-1])] if len(starts) else b""
        for copy in range(num_copies):
            yield others + field(3, int(timestamp) + copy * 10**11) + events

    with target.open("wb") as out:
        for number, span in wire.spans(data):
            if number != 1:
                continue
            plane = b""
            for inner, value in wire.spans(data, span):
                lines = copies(value) if inner == 3 else [data[value[0] : value[1]]]
                plane += b"".join(field(inner, line) for line in lines)
            out.write(field(1, plane))


def _first_key(data: bytes, start: int) -> int:
    """Where the key of the first event lies: before its length of one or two bytes."""
    return start - 2 if data[start - 2] == 4 << 3 | 2 else start - 3


def print_speed(name: str, file: pathlib.Path) -> None:
    rounds = [run(MEASURE, str(file)) for _ in range(NUM_ROUNDS)]
    best = min(rounds, key=lambda each: each["seconds"])
    megabytes = best["bytes"] / 1e6
    rates = [each["bytes"] / 1e6 / each["seconds"] for each in rounds]
    print(
        f"  {name:34} {megabytes:6.1f} MB, {best['events']:9,} events: {best['seconds']:5.2f} s, "
        f"{statistics.median(rates):5.1f} MB/s (median), peak memory {max(r['factor'] for r in rounds):.1f}x the file"
    )


def print_readers(file: pathlib.Path) -> None:
    ratios = []
    for _ in range(NUM_ROUNDS):
        ours, theirs = run(READ_BY_US, str(file)), run(READ_BY_JAX, str(file))
        ratios.append(theirs["seconds"] / ours["seconds"])
    print(f"  all events with stats, next to jax.profiler.ProfileData: {statistics.median(ratios):.1f}x as fast")


def print_coverage(name: str, model: str, folder: pathlib.Path) -> None:
    from trackside.trace import analyse_trace

    try:
        file = capture(model, folder, 20)
    except RuntimeError as error:
        if "No module named 'equinox'" not in str(error):
            raise
        print(f"  {name:34} skipped: equinox is not installed")
        return
    report = analyse_trace(file, program="jit_train_step")
    coverage, busy = report.coverage, report.device_busy or 0.0
    shares = [coverage.resolved_s, coverage.inferred_s, coverage.estimated_s, coverage.scoped_s]
    resolved, inferred, estimated, scoped = (100 * seconds / coverage.busy_s for seconds in shares)
    print(
        f"  {name:34} {resolved:5.1f} % resolved ({inferred:4.1f} % inferred, {estimated:4.1f} % split by estimate), "
        f"{scoped:5.1f} % under a scope; device busy {100 * busy:5.1f} %"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        print("trace analysis")
        large = capture("deep", folder, NUM_STEPS)
        print_speed(f"capture of {NUM_STEPS:,} steps", large)
        replicated = folder / "replicated.xplane.pb"
        replicate(large, replicated)
        print_speed("the same, replicated", replicated)
        replicated.unlink()
        print_readers(large)
        print("attribution: share of the device's busy time")
        print_coverage("Linen MLP", "linen", folder)
        print_coverage("scan + remat on two devices", "scan", folder)
        print_coverage("Equinox transformer", "equinox", folder)


if __name__ == "__main__":
    main()
