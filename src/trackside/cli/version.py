"""`trackside version`."""

import sys

from trackside import __version__


def version() -> None:
    """Print the version of trackside.

    Examples:
      trackside version
      trackside --version                      the same
    """
    sys.stdout.write(f"trackside {__version__}\n")
