"""The configuration of a run and what it ran on, as the run wrote them."""

import json
from pathlib import Path
from typing import Any

from trackside.files import read_regular
from trackside.runs.row_collector import RowCollector

_MAX_CONFIG_BYTES = 1 << 26


def config_of(rows: RowCollector, file: Path) -> dict[str, Any]:
    """The configuration; empty if there is none that can be read.

    Args:
        rows: The rows of the run. Those of kind `config` add up.
        file: Where to read it from if there are no such rows.
    """
    merged: dict[str, Any] = {}
    for row in rows.events("config"):
        merged.update(row.get("config") or {})
    if merged:
        return merged
    try:
        return dict(json.loads(read_regular(file, _MAX_CONFIG_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def environment_of(rows: RowCollector) -> dict[str, Any]:
    """What the rows of kind `environment` say together."""
    merged: dict[str, Any] = {}
    for row in rows.events("environment"):
        merged.update(row)
    return {name: value for name, value in merged.items() if name not in ("kind", "t")}
