"""Parameters in safetensors files, for other programs and from them."""

import os
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.flax import load_file, save_file

from trackside.errors import CheckpointError
from trackside.files import replacing
from trackside.trainer.saved_training import check_same_form
from trackside.tree_paths import leaf_path


def export_params(params: Any, path: str | os.PathLike[str]) -> None:
    """Write parameters to a file, by their paths such as `Dense_0/kernel`. Written whole or not at all."""
    named = {leaf_path(key): np.asarray(leaf) for key, leaf in jax.tree_util.tree_leaves_with_path(params)}
    with replacing(path) as temporary:
        save_file({name: jax.numpy.asarray(array) for name, array in named.items()}, str(temporary))


def import_params(params: Any, path: str | os.PathLike[str]) -> Any:
    """Read parameters from a file into the form of those given.

    Raises:
        CheckpointError: The file cannot be read, or holds other parameters; every path that differs is named.
    """
    try:
        named = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"path: {path} cannot be read as safetensors: {error}") from error
    paths = [leaf_path(key) for key, _ in jax.tree_util.tree_leaves_with_path(params)]
    check_same_form("params", dict(zip(paths, jax.tree.leaves(params), strict=True)), named)
    return jax.tree.unflatten(jax.tree.structure(params), [named[name] for name in paths])
