"""The one way in which trackside imports packages that it can do without."""

import importlib
import types

from trackside.errors import MissingExtraError

# Import name of each optional package -> the extra that brings it.
EXTRAS = {
    "tensorboardX": "tensorboard",
    "wandb": "wandb",
    "torch": "torch",
    "equinox": "equinox",
    "sklearn": "demo",
    "pandas": "pandas",
    "pyarrow": "parquet",
}


def require(module: str, needed_for: str) -> types.ModuleType:
    """Import an optional package, or say how to install it.

    Args:
        module: Import name, one of `EXTRAS` (a submodule such as `sklearn.datasets` is fine).
        needed_for: What the caller wants it for, as it should read in the error.

    Returns:
        The imported module.
    """
    extra = EXTRAS[module.partition(".")[0]]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the package is there and something that it needs is not: its own message says more
        raise MissingExtraError(
            f"{needed_for} needs the package {module.partition('.')[0]!r}, which is not installed. "
            f"Install it with: pip install 'trackside[{extra}]'"
        ) from error
