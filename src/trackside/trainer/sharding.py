"""The device mesh, and which part of every array is on which device.

Models are written as for one device. The batch is split over the axes `dp` and `fsdp`; parameters follow the model's
own partitioning metadata where it has any, and an automatic rule otherwise: a large enough parameter is split over
`fsdp` along its longest dimension that divides. Optimizer state is placed as the parameter that it belongs to.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.trainer.parameter_groups import check_patterns, matches, warn_of_unmatched
from trackside.tree_paths import leaf_path

LOGGER = logging.getLogger(__name__)

AXES = ("dp", "fsdp", "pp", "tp")
BATCH_AXES = ("dp", "fsdp")


@dataclass
class ParallelConfig(ConfigDict):
    """The size of each axis of the device mesh, and how parameters are spread over it."""

    data_axis_size: int = -1
    """Devices along `dp`, over which the batch is split; -1 takes all that the other axes leave."""
    fsdp_axis_size: int = 1
    """Devices along `fsdp`, over which batch and parameters are split."""
    pipeline_axis_size: int = 1
    """Devices along `pp`; more than 1 is not supported yet."""
    model_axis_size: int = 1
    """Devices along `tp`, over which the model's own metadata may split parameters."""
    fsdp_min_weight_size: int = 2**18
    """Parameters with fewer elements are kept whole on every device."""
    logical_axis_rules: dict[str, str | list[str] | None] = field(default_factory=dict)
    """Mesh axes for the logical axis names of a Linen model's metadata, such as {"embed": "fsdp", "mlp": "tp"}."""
    param_axes: dict[str, list[str | None]] = field(default_factory=dict)
    """For parameters without metadata: by a regular expression searched in their paths, a mesh axis or None for each
    dimension, such as {"up/kernel": [None, "tp"]}. The first expression that matches counts."""

    def __post_init__(self) -> None:
        check_patterns("param_axes", list(self.param_axes))
        if self.pipeline_axis_size != 1:
            raise ConfigError(
                f"pipeline_axis_size: pipeline parallelism is not supported yet, got {self.pipeline_axis_size}; "
                "set it to 1 and use fsdp_axis_size or model_axis_size"
            )
        for name, size in self.axis_sizes.items():
            if size == 0 or size < -1:
                raise ConfigError(f"axis {name!r}: expected a positive size, or -1 for what is left; got {size}")
        if list(self.axis_sizes.values()).count(-1) > 1:
            raise ConfigError(f"only one axis may be -1, got {self.axis_sizes}")

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The sizes by the axes' names."""
        sizes = (self.data_axis_size, self.fsdp_axis_size, self.pipeline_axis_size, self.model_axis_size)
        return dict(zip(AXES, sizes, strict=True))

    @property
    def rules(self) -> tuple[tuple[str, Any], ...]:
        """The logical axis rules as Flax takes them."""
        return tuple(
            (name, tuple(axes) if isinstance(axes, list) else axes) for name, axes in self.logical_axis_rules.items()
        )


def build_mesh(config: ParallelConfig, mesh: Mesh | None = None) -> Mesh:
    """The mesh of a config, or the user's own, with axes that leave sharding to the compiler."""
    if mesh is not None:
        if not set(mesh.axis_names) & set(BATCH_AXES):
            raise ConfigError(f"mesh: expected at least one of the axes {BATCH_AXES}, got {mesh.axis_names}")
        return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    devices = jax.devices()
    sizes = _fill_in(config.axis_sizes, len(devices))
    num_used = math.prod(sizes.values())
    if num_used < len(devices):
        LOGGER.warning("the mesh %s uses %d of %d devices", sizes, num_used, len(devices))
    return jax.make_mesh(
        tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[:num_used]
    )


def _fill_in(sizes: dict[str, int], num_devices: int) -> dict[str, int]:
    fixed = math.prod(size for size in sizes.values() if size > 0)
    if -1 in sizes.values():
        if num_devices % fixed:
            raise ConfigError(f"mesh: axes {sizes} do not divide the {num_devices} devices; change an axis size")
        return {name: num_devices // fixed if size == -1 else size for name, size in sizes.items()}
    if fixed > num_devices or (jax.process_count() > 1 and fixed != num_devices):
        raise ConfigError(f"mesh: axes {sizes} need {fixed} devices, and there are {num_devices}")
    return sizes


@contextmanager
def use_mesh_in_trace(mesh: Mesh) -> Iterator[None]:
    """Let sharding constraints inside the function that is being traced refer to the mesh by axis name."""
    if mesh.size == 1:
        yield
        return
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        yield


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes over which a batch is split."""
    return tuple(axis for axis in BATCH_AXES if axis in mesh.axis_names)


def num_batch_shards(mesh: Mesh) -> int:
    """Into how many parts a batch is split."""
    return math.prod(mesh.shape[axis] for axis in batch_axes(mesh))


def num_own_batch_shards(mesh: Mesh) -> int:
    """How many of those parts lie on devices of this process."""
    whole = (num_batch_shards(mesh),)
    parts = NamedSharding(mesh, PartitionSpec(batch_axes(mesh))).addressable_devices_indices_map(whole).values()
    return len({part[0].indices(*whole) for part in parts if part is not None})


def batch_specs(mesh: Mesh, batch: Any) -> Any:
    """The partition specs of a batch: every leaf is split along its first dimension; scalars are not."""
    spec = PartitionSpec(batch_axes(mesh))
    return jax.tree.map(lambda leaf: spec if np.ndim(leaf) else PartitionSpec(), batch)


def to_shardings(mesh: Mesh, specs: Any) -> Any:
    """Partition specs as shardings on a mesh."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )


def param_specs(
    mesh: Mesh,
    params: Any,
    wanted: Any,
    min_weight_size: int,
    param_axes: Mapping[str, Sequence[str | None]] | None = None,
) -> Any:
    """The partition spec of every parameter.

    Args:
        mesh: The mesh.
        params: The parameters, or their shapes.
        wanted: What the model asks for: a spec, or None to leave it to the automatic rule.
        min_weight_size: Parameters with fewer elements are not split automatically.
        param_axes: By patterns of their paths, how parameters are split of which the model says nothing.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    asked = structure.flatten_up_to(wanted)
    warn_of_unmatched("ParallelConfig.param_axes", param_axes, params)
    specs = []
    for (key_path, leaf), spec in zip(paths, asked, strict=True):
        path = leaf_path(key_path)
        spec = _spec_by_path(path, param_axes) if spec is None else spec
        if spec is None:
            specs.append(auto_spec(mesh, leaf.shape, min_weight_size))
        else:
            _check_spec(mesh, path, leaf.shape, spec)
            specs.append(spec)
    return structure.unflatten(specs)


def _spec_by_path(path: str, param_axes: Mapping[str, Sequence[str | None]] | None) -> PartitionSpec | None:
    found = (axes for pattern, axes in (param_axes or {}).items() if matches([pattern], path))
    return next((PartitionSpec(*axes) for axes in found), None)


def auto_spec(mesh: Mesh, shape: Sequence[int], min_weight_size: int) -> PartitionSpec:
    """Split along `fsdp`, by the longest dimension that it divides, if the array is large enough."""
    num_shards = mesh.shape.get("fsdp", 1)
    if num_shards == 1 or math.prod(shape) < min_weight_size:
        return PartitionSpec()
    for dim in sorted(range(len(shape)), key=lambda dim: -shape[dim]):
        if shape[dim] % num_shards == 0:
            return PartitionSpec(*("fsdp" if at == dim else None for at in range(len(shape))))
    return PartitionSpec()


def _check_spec(mesh: Mesh, path: str, shape: Sequence[int], spec: PartitionSpec) -> None:
    if len(spec) > len(shape):
        raise ConfigError(f"parameter {path}: its metadata names {len(spec)} dimensions, its shape is {tuple(shape)}")
    for size, axes in zip(shape, spec, strict=False):
        names = axes if isinstance(axes, tuple) else (axes,) if axes is not None else ()
        for name in names:
            if name not in mesh.axis_names:
                raise ConfigError(
                    f"parameter {path}: its metadata names the axis {name!r}, the mesh has {mesh.axis_names}; "
                    "map it in ParallelConfig.logical_axis_rules"
                )
        num_shards = math.prod(mesh.shape[name] for name in names)
        if size % num_shards:
            raise ConfigError(
                f"parameter {path}: dimension {size} of shape {tuple(shape)} does not divide over {num_shards} "
                f"devices along {names}; change the dimension or the axis size"
            )


def optimizer_specs(mesh: Mesh, opt_state: Any, params: Any, specs: Any, min_weight_size: int) -> Any:
    """The partition spec of every array of the optimizer's state.

    jit does not hand the parameters' sharding on to what is computed from them. Moments and the like are found by
    their path, which ends in the parameter's own, and their equal shape; anything else follows the automatic rule.
    """
    by_path = {
        _names(path): (leaf.shape, spec)
        for (path, leaf), spec in zip(
            jax.tree_util.tree_leaves_with_path(params),
            jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)),
            strict=True,
        )
    }

    def spec_of(path: Any, leaf: Any) -> PartitionSpec:
        names = _names(path)
        for start in range(len(names) + 1):
            shape, spec = by_path.get(names[start:], (None, None))
            if spec is not None and shape == leaf.shape:
                return spec
        return auto_spec(mesh, leaf.shape, min_weight_size)

    return jax.tree_util.tree_map_with_path(spec_of, opt_state)


def _names(path: Any) -> tuple[str, ...]:
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
