"""Reading a large event file by several processes, each a part of it.

They are fresh interpreters, not forks: a program that reads runs may have threads, such as JAX's, that do not survive
a fork, and a main module that must not run twice.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from trackside.runs.event_file import EventFile
from trackside.runs.metric_blocks import Block, DenseBlock, SparseBlock
from trackside.runs.metric_store import MetricStore
from trackside.runs.row_collector import RowCollector

MIN_PART_BYTES = 1 << 27
"""A part that is read faster than an interpreter starts is not worth one."""
MAX_PARTS = 8
HEAD_START_BYTES = 1 << 27
"""How much more the process that is there already reads than one that has to start, and to hand over what it found."""

_WORKER = "trackside.runs.part_worker"


class _Rows(msgspec.Struct):
    """Some rows of metrics on their way from one process to another: the arrays of a dense or a sparse block."""

    is_dense: bool
    arrays: list[memoryview]


class _Metrics(msgspec.Struct):
    """The metrics of one mode, on their way from one process to another."""

    names: list[str]
    blocks: list[_Rows]


class _Part(msgspec.Struct):
    """What a process has gathered; the fields that `RowCollector` has, too."""

    rows: list[dict[str, Any]]
    metrics: dict[str, _Metrics]
    started_at: float | None
    ended_at: float | None
    step: int
    epoch: int
    version: int | None
    before_legs: list[tuple[int, float | None]]
    cut_step: int | None
    num_damaged: int
    num_incomplete: int


_OTHER_FIELDS = [name for name in _Part.__struct_fields__ if name != "metrics"]


def part_starts(
    file: EventFile, min_bytes: int = MIN_PART_BYTES, head_start_bytes: int = HEAD_START_BYTES
) -> list[int]:
    """Where the parts of what is unread begin: one for a file that one process reads best.

    Args:
        file: The file.
        min_bytes: What a part has at least.
        head_start_bytes: What the last part has beyond the others.
    """
    num_bytes = max(file.num_unread() - head_start_bytes, 0)
    num_parts = max(min(num_bytes // min_bytes, _num_processors(), MAX_PARTS), 1)
    starts = [file.line_end_after(file.offset + num_bytes * part // num_parts) for part in range(1, num_parts)]
    return [file.offset, *starts]


def read_parts(file: EventFile, starts: list[int]) -> RowCollector:
    """Read what is unread of a file: the last part here, the others at the same time by other processes.

    Args:
        file: The file.
        starts: Where its parts begin.

    Raises:
        OSError: The file cannot be read.
    """
    workers = [_Worker.start(file.path, begin, end) for begin, end in pairwise(starts)]
    tail = EventFile(file.path, starts[-1])
    try:
        last = RowCollector()
        for block in tail.blocks():
            last.add_block(block)
        collected = RowCollector()
        for worker in workers:
            collected.add_later(worker.result())
        collected.add_later(last)
    finally:
        for worker in workers:
            worker.close()
    file.go_to(tail)
    return collected


@dataclass
class _Worker:
    """A process that reads a part."""

    path: Path
    begin: int
    end: int
    output: IO[bytes] | None = None
    process: subprocess.Popen | None = None

    @classmethod
    def start(cls, path: Path, begin: int, end: int) -> "_Worker":
        worker = cls(path, begin, end)
        command = [sys.executable, "-P", "-m", _WORKER, str(path), str(begin), str(end)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        with contextlib.suppress(OSError, ValueError):  # no interpreter, or no room for what it finds
            worker.output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
            worker.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=worker.output,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        return worker

    def result(self) -> RowCollector:
        """What it found; found here, if it was not able to."""
        if self.process is not None and self.output is not None and self.process.wait() == 0:
            self.output.seek(0)
            return _unpack(self.output.read())
        return read_part(self.path, self.begin, self.end)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.output is not None:
            self.output.close()


def read_part(path: Path, begin: int, end: int) -> RowCollector:
    """What lies between two line ends of a file."""
    collected = RowCollector()
    for block in EventFile(path, begin).blocks(until=end):
        collected.add_block(block)
    return collected


def pack(collected: RowCollector) -> bytes:
    """All that was gathered, for another process; the metrics are given up."""
    metrics = {}
    for mode, store in collected.metrics.items():
        names, blocks = store.pop()
        metrics[mode] = _Metrics(names, [_pack_block(block) for block in blocks])
    others = {name: getattr(collected, name) for name in _OTHER_FIELDS}
    return msgspec.msgpack.encode(_Part(metrics=metrics, **others))


def _unpack(data: bytes) -> RowCollector:
    part = msgspec.msgpack.decode(data, type=_Part)
    collected = RowCollector()
    for name in _OTHER_FIELDS:
        setattr(collected, name, getattr(part, name))
    for mode, metrics in part.metrics.items():
        blocks = [_unpack_block(rows, len(metrics.names)) for rows in metrics.blocks]
        collected.metrics[mode] = MetricStore.of(metrics.names, blocks)
    return collected


def _pack_block(block: Block) -> _Rows:
    if isinstance(block, DenseBlock):
        rows = slice(block.num_rows)
        arrays = [block.index[:, rows], block.t[rows], block.values[:, rows]]
    else:
        arrays = [block.index, block.t, block.row, block.name, block.value]
    data = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    return _Rows(isinstance(block, DenseBlock), data)


def _unpack_block(rows: _Rows, num_names: int) -> Block:
    # Copies: a column that is kept would keep all of the data.
    index = np.frombuffer(rows.arrays[0], np.int64).reshape(2, -1).copy()
    t = np.frombuffer(rows.arrays[1], float).copy()
    if not rows.is_dense:
        row, name = (np.frombuffer(array, np.int64).copy() for array in rows.arrays[2:4])
        return SparseBlock(index, t, row, name, np.frombuffer(rows.arrays[4], float).copy())
    values = np.frombuffer(rows.arrays[2], float)
    block = DenseBlock(0, 0)
    block.index, block.t, block.num_rows = index, t, len(t)
    block.values = values.reshape(-1, len(t)).copy() if len(t) else np.empty((num_names, 0))
    return block


def _num_processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
