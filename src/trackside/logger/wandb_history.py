"""What a W&B run has of a training already, and what it should have: read from files, without a server."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trackside.errors import EventFileError
from trackside.events import read_events
from trackside.optional import require

_HEADER = 7
_BLOCK = 32768
_WHOLE, _LAST = 1, 4


def last_steps(directory: Path) -> dict[str, int]:
    """The last step of each mode in the files of a run that was logged offline.

    Args:
        directory: The folder with W&B's own folder `wandb` in it.
    """
    found: dict[str, int] = {}
    for path in sorted(directory.glob("wandb/offline-run-*/*.wandb")):
        for keys, step in _rows(path):
            for mode in {key.split("/")[0] for key in keys if "/" in key}:
                found[mode] = max(step, found.get(mode, step))
    return found


def _rows(path: Path) -> Iterator[tuple[list[str], int]]:
    """The keys and the step of each history row in a run file."""
    record_class = require("wandb.proto.wandb_internal_pb2", "WandBLoggerConfig").Record
    for data in _records(path.read_bytes()):
        record = record_class()
        try:
            record.ParseFromString(data)
        except Exception:  # what a killed process has left behind
            return
        if record.WhichOneof("record_type") == "history":
            values = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            step = record.history.step.num if record.history.HasField("step") else int(values.get("_step", 0))
            yield list(values), step


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a run file, a log in LevelDB's format: blocks, with records split where a block ends."""
    position, part = _HEADER, b""
    while position + _HEADER <= len(data):
        left_in_block = _BLOCK - position % _BLOCK
        if left_in_block < _HEADER:
            position += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        part += data[position + _HEADER : position + _HEADER + length]
        position += _HEADER + length
        if kind in (_WHOLE, _LAST):
            yield part
            part = b""


def rows_up_to(event_file: Path, step: int) -> list[dict[str, Any]]:
    """The metrics rows of a run up to a step, one per step and mode, in the order of their steps.

    Several rows of a step and mode are merged: callbacks log their own. Of what was logged twice, the last counts.
    """
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    try:
        for row in read_events(event_file):
            if row["kind"] == "metrics" and row["step"] <= step:
                earlier = rows.get((row["step"], row["mode"]), {"values": {}})
                rows[row["step"], row["mode"]] = {**row, "values": {**earlier["values"], **row["values"]}}
    except EventFileError:
        return []
    return [rows[key] for key in sorted(rows, key=lambda key: key[0])]
