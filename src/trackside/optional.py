"""The only way in which trackside imports optional packages."""

import importlib
import types

from trackside.errors import MissingExtraError

# Import name of each optional package -> the extra that installs it.
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
    """Import an optional package, or raise an error that says how to install it.

    Args:
        module: Import name of a package in `EXTRAS`, or of a submodule such as `sklearn.datasets`.
        needed_for: What needs it, as the subject of the error message.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: If the package is not installed.
    """
    extra = EXTRAS[module.partition(".")[0]]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the package is there, but something that it needs is not; its own message says more
        raise MissingExtraError(
            f"{needed_for} needs the package {module.partition('.')[0]!r}, which is not installed. "
            f"Install it with: pip install 'trackside[{extra}]'"
        ) from error
