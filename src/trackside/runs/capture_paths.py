"""Where the files of a capture lie now, also if the run was moved since."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def locate_capture(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The row with the path at which the capture lies now.

    Args:
        row: The row `capture`.
        folder: The run's folder.
    """
    written = Path(str(row.get("path") or ""))
    parts = written.parts
    # What lies in the run's folder belongs to it, also if the folder that it was copied from is still there.
    for begin in range(1, len(parts) - 1):
        inside = folder.absolute().joinpath(*parts[begin:])
        if inside.exists():
            return {**row, "path": str(inside)}
    return dict(row)
