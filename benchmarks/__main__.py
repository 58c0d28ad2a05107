"""The benchmarks, one after the other: `python -m benchmarks` for all (`make bench`), or the names of some."""

import argparse
import importlib

NAMES = (
    "import_time",
    "loop_overhead",
    "library_cost",
    "own_loop",
    "fused_own_loop",
    "looped_convolutions",
    "growth",
    "idle_callbacks",
    "ledger_cost",
    "recompile_sentinel",
    "checkpoint_cost",
    "memory_sample",
    "timer_cost",
    "share_truth",
    "timer_truth",
    "step_truth",
    "idle_truth",
    "decoding_cost",
    "capture_cost",
    "trace_analysis",
    "trace_truth",
    "run_reading",
    "many_hosts",
    "compare_calibration",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run; all if left out: {', '.join(NAMES)}")
    names = parser.parse_args().names
    if unknown := set(names) - set(NAMES):
        parser.error(f"unknown benchmarks {sorted(unknown)}; there are {', '.join(NAMES)}")
    for name in names or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()
        print(flush=True)


if __name__ == "__main__":
    main()
