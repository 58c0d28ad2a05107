"""The parameters of a model, for people."""

import io
import math
from typing import Any

import jax
import rich.box
import rich.console
import rich.table

from trackside.trainer.optimizer import OptimizerConfig, decay_mask
from trackside.trainer.parameter_groups import group_of
from trackside.tree_paths import leaf_path


def count_params(params: Any) -> int:
    """The number of parameters."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def tabulate_params(params: Any, optimizer_config: OptimizerConfig, width: int = 140) -> str:
    """A table of all parameters: shape, dtype, sharding, weight decay, group where there are any, and count."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_footer=True)
    total = count_params(params)
    table.add_column("Parameter", footer="Total", overflow="fold")
    for name in ("Shape", "Dtype", "Sharding", "Decay"):
        table.add_column(name)
    has_groups = bool(optimizer_config.groups or optimizer_config.frozen)
    if has_groups:
        table.add_column("Group")
    table.add_column("Count", footer=f"{total:,}", justify="right")
    has_decay = optimizer_config.weight_decay > 0
    decayed = jax.tree.leaves(decay_mask(optimizer_config, params))
    for (path, leaf), decays in zip(jax.tree_util.tree_leaves_with_path(params), decayed, strict=True):
        table.add_row(
            leaf_path(path),
            str(tuple(leaf.shape)),
            str(leaf.dtype),
            _describe_sharding(leaf),
            "yes" if has_decay and decays else "no",
            *([group_of(optimizer_config, leaf_path(path))] if has_groups else []),
            f"{math.prod(leaf.shape):,}",
        )
    console = rich.console.Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()


def _describe_sharding(leaf: Any) -> str:
    sharding = getattr(leaf, "sharding", None)
    spec = getattr(sharding, "spec", None)
    if spec is None or all(axes is None for axes in spec):
        return "replicated"
    return ", ".join("-" if axes is None else str(axes) for axes in spec)
