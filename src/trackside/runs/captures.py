"""The captures of a run, and where their files are now if the run was moved since."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackside.trace.capture_row import CaptureRow


def locate_capture(row: Mapping[str, Any], folder: Path) -> CaptureRow:
    """The row, with the path at which the capture is now.

    Args:
        row: The row `capture`.
        folder: The run's folder.
    """
    parts = Path(str(row.get("path") or "")).parts
    # What is in the run's folder belongs to it, even if the folder that it was copied from is still there.
    for begin in range(1, len(parts) - 1):
        inside = folder.absolute().joinpath(*parts[begin:])
        if os.path.exists(inside):
            return CaptureRow({**row, "path": str(inside)})
    return CaptureRow(row)
