"""Whether what trackside reports is true, in one table: `make truth`, or `python -m benchmarks.truth` with some names.

Each part holds figures against a truth that was made or measured in another way, and has a module that tells more about
it and measures more. Parts run one after the other in processes of their own. The exit status is 1 if a figure is
further from its truth than its bound, unless it comes with an interval that holds the truth. The noise is how far the
truth is from itself; if that is more than the bound, as on a busy machine, a figure may be too noisy to tell.
"""

import argparse
import dataclasses
import importlib
import json
import subprocess
import sys
import time

from benchmarks.truth_row import TruthRow, show_rows

PARTS = {
    "delays": "ledger_truth",
    "steps": "step_truth",
    "idle": "idle_truth",
    "scopes": "trace_truth",
    "shares": "share_truth",
    "same": "compare_calibration",
}
"""What is held against its truth, and the module that does; its `truth_rows()` gives the figures."""


def measure(part: str) -> list[TruthRow]:
    """The figures of a part, measured in a process of its own.

    Raises:
        RuntimeError: They could not be measured.
    """
    command = [sys.executable, "-m", "benchmarks.truth", "--measure", part]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(result.stderr.strip().splitlines()[-1] if result.stderr.strip() else "no reason is known")
    rows = json.loads(result.stdout.splitlines()[-1])
    return [TruthRow(**{**row, "interval": row["interval"] and tuple(row["interval"])}) for row in rows]


def measure_all(parts: list[str]) -> int:
    """Measure parts, and print one table.

    Returns:
        How many figures are not true, or could not be measured.
    """
    rows: list[TruthRow] = []
    num_failed = 0
    for part in parts:
        started_s = time.perf_counter()
        print(f"{part} ({PARTS[part]}) ...", end=" ", flush=True)
        try:
            rows += measure(part)
        except RuntimeError as error:
            num_failed += 1
            print(f"FAILED: {error}", flush=True)
        else:
            print(f"{time.perf_counter() - started_s:.0f} s", flush=True)
    print()
    num_untrue = show_rows(rows)
    num_noisy = sum(not row.is_true for row in rows) - num_untrue
    noisy = f", {num_noisy} too noisy to tell" if num_noisy else ""
    print(f"\n{len(rows) - num_untrue - num_noisy} of {len(rows)} figures are true{noisy}")
    return num_untrue + num_failed


def main(arguments: list[str] | None = None) -> int:
    """How many figures are not true."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"all if left out: {', '.join(PARTS)}")
    parser.add_argument("--measure", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; there are {', '.join(PARTS)}")
    if options.measure:
        rows = list(importlib.import_module(f"benchmarks.{PARTS[options.measure]}").truth_rows())
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
        return 0
    return measure_all(options.parts or list(PARTS))


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
