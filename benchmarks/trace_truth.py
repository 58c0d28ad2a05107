"""Whether the tables tell the truth: shares of scopes in a trace, next to each scope's work compiled and timed alone.

`python -m benchmarks.trace_truth [--rounds 12] [program ...]`

What else a machine does only adds to a time, so that the shortest of many is taken, of parts and of traced steps. One
thread computes: a second core that is taken away for a while would make some parts slower than others.

The bound: a fused kernel has no true split. Its parts share loads, registers and the scheduler's window, so that a part
takes another time alone than inside: on one kernel, the cost of a function per element was seen to double with what
else the loop held. A share within 10 points of the part timed alone orders scopes rightly wherever they differ by more
than that. Beyond 10 points and the noise, the exit status is 1.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
os.environ["NPROC"] = "1"

import jax
from jax.profiler import ProfileOptions, StepTraceAnnotation

from benchmarks.truth_programs import PROGRAMS, Program
from benchmarks.truth_row import TruthRow
from trackside.compare.traced_steps import read_traced_steps
from trackside.trace import analyse_trace

NUM_CALLS = 10
MAX_ERROR = 0.10

Times = dict[str, float]
"""Seconds by scope."""


class Row(NamedTuple):
    """One scope of one program; all are shares of the time of the program's scopes."""

    scope: str
    truth: float
    reported: float
    noise: float
    """How far the two halves of the rounds are apart, in truth and in report."""

    @property
    def error(self) -> float:
        return self.reported - self.truth

    @property
    def is_bad(self) -> bool:
        return abs(self.error) > MAX_ERROR + self.noise


def measure(program: Program, num_rounds: int) -> tuple[list[Row], float]:
    """The rows of a program, and how much of its traced time was split by estimate."""
    whole = _compiled(program.function, program.arguments)
    parts = {scope: _compiled(part.function, part.arguments) for scope, part in program.parts.items()}
    alone: list[Times] = []
    traced: list[Times] = []
    estimated = 0.0
    # Parts and whole take turns, so that what else the machine does disturbs all of them alike.
    for _ in range(num_rounds):
        alone.append({scope: _seconds(call) / program.parts[scope].repeats for scope, call in parts.items()})
        times, estimated = _trace(whole, parts)
        traced.append(times)
    rows = []
    for scope in parts:
        halves = [(_share(each[::2], scope), _share(each[1::2], scope)) for each in (alone, traced)]
        noise = sum(abs(first - second) for first, second in halves)
        rows.append(Row(scope, _share(alone, scope), _share(traced, scope), noise))
    return rows, estimated


def _compiled(function: Callable, arguments: tuple) -> Callable[[], object]:
    jitted = jax.jit(function)
    jax.block_until_ready(jitted(*arguments))
    return lambda: jax.block_until_ready(jitted(*arguments))


def _seconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(NUM_CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _trace(call: Callable[[], object], scopes: Iterable[str]) -> tuple[Times, float]:
    """The shortest time of each scope in some traced steps, and how much was split by estimate."""
    options = ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for step in range(NUM_CALLS):
                with StepTraceAnnotation("train", step_num=step):
                    call()
        steps, coverage = read_traced_steps(folder).scopes, analyse_trace(folder).coverage
    times = dict.fromkeys(scopes, 0.0)
    for scope in times:
        found = (per_step.samples for (path, _), per_step in steps.items() if f"/{scope}/" in f"/{path}/")
        times[scope] = sum(float(samples.min()) for samples in found if samples is not None)
    return times, coverage.estimated_share or 0.0


def _share(rounds: Sequence[Times], scope: str) -> float:
    shortest = {name: min(times[name] for times in rounds) for name in rounds[0]}
    return shortest[scope] / (sum(shortest.values()) or 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold a trace's shares of scopes against each scope timed alone.")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    print(f"shares of scopes: timed alone, and as the trace says; fails beyond {100 * MAX_ERROR:.0f} points and noise")
    print(f"  {'program':12} {'scope':12} {'truth':>8} {'reported':>9} {'error':>8} {'noise':>7}")
    is_bad = False
    for name in options.programs:
        rows, estimated = measure(PROGRAMS[name](), options.rounds)
        for row in rows:
            figures = f"{row.truth:8.1%} {row.reported:9.1%} {row.error:+8.1%} {row.noise:7.1%}"
            print(f"  {name:12} {row.scope:12} {figures}{'  BEYOND THE BOUND' if row.is_bad else ''}", flush=True)
        print(f"  {name:12} {estimated:.0%} of its time was split by estimate", flush=True)
        is_bad |= any(row.is_bad for row in rows)
    return int(is_bad)


def truth_rows(num_rounds: int = 6) -> Iterator[TruthRow]:
    """The shares of scopes in each program."""
    for name, build in PROGRAMS.items():
        for row in measure(build(), num_rounds)[0]:
            what = f"scope {row.scope} of {name}"
            yield TruthRow(what, row.truth, row.reported, MAX_ERROR + row.noise, row.noise, is_relative=False)


if __name__ == "__main__":
    sys.exit(main())
