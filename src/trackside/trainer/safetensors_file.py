"""Parameters in safetensors files, for other programs and from them.

Batch statistics and other variables that a model needs as well have the name of their collection before their path,
such as `batch_stats/BatchNorm_0/mean`. Keys of random streams are left out.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.flax import load_file, save_file

from trackside.errors import CheckpointError, ConfigError
from trackside.files import replacing
from trackside.processes import whole
from trackside.trainer.saved_training import check_same_form
from trackside.trainer.train_state import Carry
from trackside.tree_paths import leaf_path

LOGGER = logging.getLogger(__name__)

_MAX_NAMES = 10


def export_weights(carry: Carry, path: str | os.PathLike[str], with_state: bool, is_main: bool) -> None:
    """Write the weights of a training to a file. All processes have to call this.

    Args:
        carry: The state of the training.
        path: The file.
        with_state: Whether to write batch statistics and other variables of the model, too.
        is_main: Whether this is the process that writes.
    """
    weights = whole(name_weights(carry.params, carry.mutable_variables if with_state else {}))
    if is_main:
        export_params(weights, path)


def import_weights(
    carry: Carry,
    shardings: Carry,
    path: str | os.PathLike[str],
    strict: bool,
    rename: Callable[[str], str | None] | None,
) -> tuple[Carry, "ImportReport | None"]:
    """Put weights from a file in place of those of a training, whose optimizer stays as it is.

    Args:
        carry: The state of the training.
        shardings: How its arrays are spread over the mesh.
        path: The file.
        strict: Whether the file must hold exactly the model's parameters. Other variables it may lack.
        rename: Without `strict`: from a name in the file, the path in the model; None leaves the parameter out.

    Returns:
        The state, and without `strict` what was taken and what was not, which the log says, too.
    """
    if strict and rename is not None:
        raise ConfigError("rename: it needs strict=False, since a strict file has the model's own names")
    weights, report = name_weights(carry.params, carry.mutable_variables), None
    if strict:
        optional = frozenset(weights.keys() - name_weights(carry.params, {}).keys())
        weights = import_params(weights, path, optional)
    else:
        weights, report = import_matching_params(weights, path, rename)
        LOGGER.info("%s: %s", path, report)
    params, state = place_weights(weights, carry.params, carry.mutable_variables)
    placed = carry._replace(
        params=jax.device_put(params, shardings.params),
        mutable_variables=jax.device_put(state, shardings.mutable_variables),
    )
    return placed, report


def name_weights(params: Any, mutable_variables: Any) -> dict[str, Any]:
    """Parameters and the model's other variables, by their names in a file."""
    named = {leaf_path(key): leaf for key, leaf in jax.tree_util.tree_leaves_with_path(params)}
    for key, leaf in jax.tree_util.tree_leaves_with_path(mutable_variables or {}):
        if not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            named.setdefault(leaf_path(key), leaf)
    return named


def place_weights(named: dict[str, Any], params: Any, mutable_variables: Any) -> tuple[Any, Any]:
    """Parameters and other variables with what `name_weights` gave in place of what they had."""
    own = {leaf_path(key) for key, _ in jax.tree_util.tree_leaves_with_path(params)}

    def placed(key: Any, leaf: Any) -> Any:
        return leaf if leaf_path(key) in own else named.get(leaf_path(key), leaf)

    params = jax.tree_util.tree_map_with_path(lambda key, _: named[leaf_path(key)], params)
    return params, jax.tree_util.tree_map_with_path(placed, mutable_variables)


def export_params(params: Any, path: str | os.PathLike[str]) -> None:
    """Write parameters to a file, by their paths such as `Dense_0/kernel`. Written whole or not at all."""
    named = {leaf_path(key): np.asarray(leaf) for key, leaf in jax.tree_util.tree_leaves_with_path(params)}
    with replacing(path) as temporary:
        save_file({name: jax.numpy.asarray(array) for name, array in named.items()}, str(temporary))


@dataclass(frozen=True)
class ImportReport:
    """What became of the parameters in a file."""

    loaded: tuple[str, ...]
    """Parameters of the model that were taken from the file."""
    missing: tuple[str, ...]
    """Parameters of the model that the file does not have; they stay as they were."""
    unexpected: tuple[str, ...]
    """Parameters of the file that the model does not have."""
    misfits: tuple[str, ...]
    """Parameters that both have, in other shapes: `path: (8, 3) in the file, (8, 4) in the model`."""

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} of {len(self.loaded) + len(self.missing) + len(self.misfits)} parameters loaded"]
        for title, names in (
            ("not in the file", self.missing),
            ("not in the model", self.unexpected),
            ("of another shape", self.misfits),
        ):
            if names:
                more = f", and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
                lines.append(f"{title}: {', '.join(names[:_MAX_NAMES])}{more}")
        return "; ".join(lines)


def import_params(params: Any, path: str | os.PathLike[str], optional: frozenset[str] = frozenset()) -> Any:
    """Read parameters from a file into the form of those given.

    Args:
        params: The parameters of the model.
        path: The file.
        optional: Those that stay as they are if the file has none of them.

    Raises:
        CheckpointError: The file cannot be read, or holds other parameters; every path that differs is named.
    """
    named = _read(path)
    if not optional & named.keys():
        current = {leaf_path(key): leaf for key, leaf in jax.tree_util.tree_leaves_with_path(params)}
        named.update({name: current[name] for name in optional})
    paths = [leaf_path(key) for key, _ in jax.tree_util.tree_leaves_with_path(params)]
    check_same_form("params", dict(zip(paths, jax.tree.leaves(params), strict=True)), named)
    return jax.tree.unflatten(jax.tree.structure(params), [named[name] for name in paths])


def import_matching_params(
    params: Any, path: str | os.PathLike[str], rename: Callable[[str], str | None] | None = None
) -> tuple[Any, ImportReport]:
    """Read those parameters from a file that fit; the others stay as they are.

    Args:
        params: The parameters of the model.
        path: The file.
        rename: From a name in the file, the path in the model; None for a parameter to leave out.

    Returns:
        The parameters in the dtypes of the model, and what became of those in the file.

    Raises:
        CheckpointError: The file cannot be read, or not a single parameter fits.
    """
    renamed = {name if rename is None else rename(name): array for name, array in _read(path).items()}
    named = {name: array for name, array in renamed.items() if name is not None}
    current = {leaf_path(key): leaf for key, leaf in jax.tree_util.tree_leaves_with_path(params)}
    fitting = [name for name in current if name in named and named[name].shape == current[name].shape]
    report = ImportReport(
        loaded=tuple(fitting),
        missing=tuple(name for name in current if name not in named),
        unexpected=tuple(sorted(named.keys() - current.keys())),
        misfits=tuple(
            f"{name}: {named[name].shape} in the file, {current[name].shape} in the model"
            for name in current
            if name in named and name not in fitting
        ),
    )
    if not fitting:
        raise CheckpointError(f"path: nothing in {path} fits the model; {report}")
    leaves = [named[name].astype(leaf.dtype) if name in fitting else leaf for name, leaf in current.items()]
    return jax.tree.unflatten(jax.tree.structure(params), leaves), report


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"path: {path} cannot be read as safetensors: {error}") from error
