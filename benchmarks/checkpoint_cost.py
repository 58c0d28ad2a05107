"""What a checkpoint costs: how long the loop is blocked, and how long until it is on disk, next to Orbax by hand."""

import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from trackside.trainer.checkpoint_store import CheckpointStore


def make_state(num_bytes: int, num_leaves: int = 16) -> dict[str, Any]:
    rows = num_bytes // (num_leaves * 4 * 1024)
    # Random numbers, since equal ones are compressed to nothing.
    return {f"layer_{at}": jax.random.normal(jax.random.key(at), (rows, 1024)) for at in range(num_leaves)}


def time_orbax(state: Any, root: pathlib.Path, index: int) -> tuple[float, float]:
    start = time.perf_counter()
    response = ocp.save_checkpointables_async(str(root / str(index)), {"params": state})
    blocked = time.perf_counter() - start
    response.result()
    return blocked, time.perf_counter() - start


def time_store(state: Any, root: pathlib.Path, index: int) -> tuple[float, float]:
    store = CheckpointStore(root)
    start = time.perf_counter()
    store.save(index, {"params": state}, {})
    blocked = time.perf_counter() - start
    store.wait()
    return blocked, time.perf_counter() - start


def measure(num_bytes: int, num_rounds: int) -> dict[str, list[tuple[float, float]]]:
    state = jax.block_until_ready(make_state(num_bytes))
    contestants: dict[str, Callable] = {"orbax by hand": time_orbax, "trackside": time_store}
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for index in range(1, num_rounds + 2):
        for name, run in contestants.items():
            with tempfile.TemporaryDirectory() as folder:
                taken = run(state, pathlib.Path(folder), index)
                shutil.rmtree(folder, ignore_errors=True)
                pathlib.Path(folder).mkdir(exist_ok=True)
            if index > 1:  # the first is for warm-up
                figures[name].append(taken)
    return figures


def main() -> None:
    for num_megabytes, num_rounds in ((10, 9), (500, 5)):
        figures = measure(num_megabytes * 2**20, num_rounds)
        print(f"checkpoint of {num_megabytes} MB: medians of {num_rounds}")
        for name, taken in figures.items():
            blocked, total = (statistics.median(column) * 1e3 for column in zip(*taken, strict=True))
            print(f"  {name:14} blocked {blocked:7.1f} ms, on disk after {total:7.1f} ms")
        pairs = zip(figures["trackside"], figures["orbax by hand"], strict=True)
        print(f"  blocked, as a ratio: {statistics.median(ours[0] / theirs[0] for ours, theirs in pairs):.2f}x")


if __name__ == "__main__":
    main()
