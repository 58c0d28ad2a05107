"""A process that reads a part of an event file for another: `python -m trackside.runs.part_worker FILE BEGIN END`."""

import sys
from pathlib import Path

from trackside.runs.parallel import pack, read_part


def main() -> None:
    """Write what the part holds to the standard output."""
    path, begin, end = sys.argv[1:]
    sys.stdout.buffer.write(pack(read_part(Path(path), int(begin), int(end))))


if __name__ == "__main__":
    main()
