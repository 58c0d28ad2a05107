"""What a model holds and what a training step costs, by module, before the first step.

Parameters are counted from the training's state, operations and saved values from the step as it is traced. Nothing is
compiled or run.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax

from trackside.config.declared_types import check_types
from trackside.errors import ConfigError
from trackside.measured_run.batch_size import batch_size
from trackside.text import percent
from trackside.trace.flop_table import FlopTable
from trackside.trace.flops import count_flops, needed_jaxpr
from trackside.trace.saved_values import saved_bytes
from trackside.trainer.array_forms import device_bytes, forms_of
from trackside.trainer.engine import Engine
from trackside.trainer.model_summary_text import render_summary
from trackside.trainer.models.named_leaves import path_of
from trackside.trainer.module_tree import Module, ModuleTree
from trackside.trainer.train_state import Carry

_LOSS = "loss"
OUTSIDE = "(outside of modules)"
"""The name of the row with what the model and the loss compute outside of any module."""


@dataclass(frozen=True)
class ModuleRow:
    """A module with all of its parts."""

    name: str
    """Its name within the module around it, as profiles show it."""
    depth: int
    """How many modules are around it; 0 for the whole model with its loss."""
    scope: str | None
    """What profiles call it; None if no operation runs under its name, so that its operations are not known."""
    num_params: int
    """The number of its parameters."""
    param_bytes: int
    """Their bytes."""
    state_bytes: int
    """Bytes of its parameters, of what the optimizer keeps for them, and of its batch statistics and the like."""
    forward_flops: int | None
    """Operations of matrix products and convolutions in the forward pass of one batch; None if not known."""
    step_flops: int | None
    """The same in a training step: forward, backward and recomputation."""
    other_flops: int | None
    """Elementwise operations and reductions in a training step."""
    saved_bytes: int | None
    """Bytes of values that the forward pass leaves for the backward pass, before the compiler has its say."""


@dataclass(frozen=True)
class ModelSummary:
    """A model and its training step, by module. `print` shows it as a table."""

    rows: tuple[ModuleRow, ...]
    """The modules, each with its parts after it; the first is the whole model with its loss."""
    batch_size: int
    """The examples of the batch that the figures are for."""
    num_devices: int
    """Over how many devices the training is spread. Figures are of all together, except where a name says otherwise."""
    optimizer_flops: int | None
    """Matrix products of the optimizer in a step."""
    state_bytes_per_device: int
    """Bytes of parameters, optimizer state and the like on the fullest device."""
    notes: tuple[str, ...] = ()
    """What to know of the figures."""

    @property
    def total(self) -> ModuleRow:
        """The whole model."""
        return self.rows[0]

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain data, as JSON can hold them."""
        return {**asdict(self), "rows": [asdict(row) for row in self.rows], "notes": list(self.notes)}

    def __str__(self) -> str:
        return render_summary(self)


def summarise_model(
    engine: Engine, carry: Carry, batch: Any, num_unrolled: int = 1, depth: int | None = None
) -> ModelSummary:
    """Count what a model holds and what its training step does.

    Args:
        engine: What the training runs on.
        carry: Its state.
        batch: A batch, or its form.
        num_unrolled: How many microbatches follow each other in a step, outside of a scan; saved values are those of
            one of them.
        depth: How deep modules are shown; None for all.
    """
    check_types(summarise_model, depth=depth)
    if depth is not None and depth < 0:
        raise ConfigError(f"depth: expected 0 or more, or None for all; got {depth}")
    tree = ModuleTree(_root_name(engine))
    _add_arrays(tree, carry)
    table, notes = _add_program(tree, engine, carry, batch, num_unrolled)
    notes += _unattributed(tree, table)
    return ModelSummary(
        rows=tuple(_rows(tree, table is not None, math.inf if depth is None else depth)),
        batch_size=batch_size(batch),
        num_devices=engine.mesh.size,
        optimizer_flops=None if table is None else table.by_phase().get("optimizer", 0),
        state_bytes_per_device=device_bytes(carry, engine.carry_shardings),
        notes=tuple(notes),
    )


def _root_name(engine: Engine) -> str:
    """Linen opens a scope for the whole model; the other libraries do not."""
    model = engine.adapter.model
    return (getattr(model, "name", None) or type(model).__name__) if engine.adapter.library == "linen" else ""


# --- what the state holds ---------------------------------------------------------------------------------------------


def _add_arrays(tree: ModuleTree, carry: Carry) -> None:
    params = dict(_leaves(carry.params))
    for path, leaf in params.items():
        size = _num_bytes(leaf)
        tree.add_array(path, num_params=math.prod(leaf.shape), param_bytes=size, state_bytes=size)
    for path, leaf in _leaves(carry.mutable_variables):
        tree.add_array(path[1:], state_bytes=_num_bytes(leaf))  # the first name is that of the collection
    for path, leaf in _leaves(carry.opt_state):
        tree.add_array(_owner(path, params), state_bytes=_num_bytes(leaf))


def _leaves(tree: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield path_of(path), leaf


def _owner(path: tuple[str, ...], params: dict[tuple[str, ...], Any]) -> tuple[str, ...]:
    """The parameter that a part of the optimizer's state is kept for; the model itself for what is kept once."""
    return next((path[start:] for start in range(len(path)) if path[start:] in params), ())


def _num_bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


# --- what the step does -----------------------------------------------------------------------------------------------


def _add_program(
    tree: ModuleTree, engine: Engine, carry: Carry, batch: Any, num_unrolled: int
) -> tuple[FlopTable | None, list[str]]:
    """Add the operations of the step; its table, and what to know of it."""
    if engine.debug:
        return None, ["operations are not counted with debug=True, in which nothing is traced"]
    layout = engine.train_layout(carry, batch)
    step = engine.compile_step(layout, "summary")
    jaxpr = needed_jaxpr(step, *forms_of((carry, layout.initial)), forms_of(batch))
    for scope, size in saved_bytes(jaxpr).items():  # first, since it has the order of the program
        _add_scope(tree, scope, saved_bytes=size // num_unrolled)
    table = count_flops(jaxpr)
    for row in table.rows:
        if row.phase in ("forward", "backward", "recompute"):
            forward = row.flops if row.phase == "forward" else 0
            _add_scope(tree, row.scope, forward_flops=forward, step_flops=row.flops, other_flops=row.other_flops)
    return table, list(table.notes[1:])


def _add_scope(tree: ModuleTree, scope: tuple[str, ...], **figures: int) -> None:
    is_in_loss = scope[:1] == (_LOSS,)
    tree.add_scope(scope[1:] if is_in_loss else scope, (_LOSS,) if is_in_loss else (), **figures)


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(tree: ModuleTree, is_traced: bool, depth: float) -> Iterator[ModuleRow]:
    for at, name, module in tree.visible():
        if at > depth:
            continue
        if at == 0:
            yield _row(_LOSS, 0, _LOSS, module.totals(), is_traced)
            outside = {name: value for name, value in module.figures.items() if value}
            if module.parts and depth > 0 and (outside.get("step_flops") or outside.get("num_params")):
                yield _row(OUTSIDE, 1, _LOSS, module.figures, is_traced)
        elif any((totals := module.totals()).values()):
            yield _row(name, at, _scope_of(module), totals, is_traced and module.is_scoped)


def _row(name: str, depth: int, scope: str | None, figures: Mapping[str, int], is_known: bool) -> ModuleRow:
    def counted(figure: str) -> int | None:
        return figures[figure] if is_known else None

    return ModuleRow(
        name=name,
        depth=depth,
        scope=scope,
        num_params=figures["num_params"],
        param_bytes=figures["param_bytes"],
        state_bytes=figures["state_bytes"],
        forward_flops=counted("forward_flops"),
        step_flops=counted("step_flops"),
        other_flops=counted("other_flops"),
        saved_bytes=counted("saved_bytes"),
    )


def _scope_of(module: Module) -> str | None:
    return None if module.scope is None else "/".join(module.scope)


def _unattributed(tree: ModuleTree, table: FlopTable | None) -> list[str]:
    own, total = tree.root.figures["step_flops"], tree.root.totals()["step_flops"]
    if table is None or not own or not total:
        return []
    return [
        f"{percent(own / total)} of the operations are in no module's scope; give parts of the model a name with "
        "`with jax.named_scope(...)`"
    ]
