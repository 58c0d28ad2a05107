"""The floating-point operations of a program by scope and phase, counted on its jaxpr without running it.

The compiler's own figure counts the body of a loop once and has no split. The jaxpr has the lengths of scans and the
name of every operation in the form that `trackside.trace.scopes` reads, so that this table and one of device time have
the same rows.

What is counted:

- Figures are those of the whole program on all devices. A jaxpr has the global shapes; the body of a `shard_map`, which
  has the shapes of one device, is multiplied by the number of devices it is mapped over.
- The body of a scan is multiplied by its length. How often a `while` loop runs is not known: its body is counted once,
  and the table says that it is a lower bound.
- Of the branches of a `cond`, the most expensive one is counted.
- What no output needs is not counted, as the compiler drops it: the loss itself, where only its gradient is asked for.
- What recomputation adds is in the phase `recompute`; `model_flops` leaves it out.
- Kernels, Fourier transforms, factorisations and the like are named with their number of calls and not counted.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
from jax.interpreters import partial_eval

from trackside.trace.flop_table import FlopRow, FlopTable
from trackside.trace.primitive_costs import matrix_flops, other_flops
from trackside.trace.saved_values import inner_jaxprs
from trackside.trace.scopes import CALLS, parse_op_name


def count_flops(function: Any, *args: Any, **kwargs: Any) -> FlopTable:
    """Count the operations of a function, without running it on any device.

    Args:
        function: A function, jitted or not; or a jaxpr, or what `jitted.trace(...)` returned.
        *args: Its arguments: arrays or `jax.ShapeDtypeStruct`. None for a jaxpr.
        **kwargs: Its keyword arguments.

    Returns:
        The operations by scope and phase.
    """
    count = _Count()
    _add_jaxpr(count, needed_jaxpr(function, *args, **kwargs), path="", times=1)
    return count.table()


def has_primitive(jaxpr: Any, name: str) -> bool:
    """Whether a program contains a primitive, also within loops, branches and calls.

    Args:
        jaxpr: A jaxpr.
        name: The primitive's name.
    """
    return any(
        equation.primitive.name == name or any(has_primitive(inner, name) for inner in inner_jaxprs(equation))
        for equation in jaxpr.eqns
    )


def needed_jaxpr(function: Any, *args: Any, **kwargs: Any) -> Any:
    """The open jaxpr of a function, without what no output needs; the arguments are those of `count_flops`."""
    jaxpr = _jaxpr_of(function, args, kwargs)
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _jaxpr_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if hasattr(function, "eqns"):
        # A closed jaxpr has equations, too, but only the open one is taken apart.
        return getattr(function, "jaxpr", function)
    if hasattr(function, "jaxpr"):
        return _jaxpr_of(function.jaxpr, (), {})
    # A jitted function knows which of its arguments are static.
    trace = function.trace if hasattr(function, "trace") else jax.make_jaxpr(function)
    return _jaxpr_of(trace(*args, **kwargs), (), {})


@dataclass
class _Count:
    """What has been counted so far."""

    flops: Counter[tuple[tuple[str, ...], str]] = field(default_factory=Counter)
    other_flops: Counter[tuple[tuple[str, ...], str]] = field(default_factory=Counter)
    flops_by_dtype: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)
    num_while_loops: int = 0
    num_conditionals: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """By what branches are compared."""
        return self.flops.total(), self.other_flops.total()

    def merge(self, other: "_Count") -> None:
        self.flops.update(other.flops)
        self.other_flops.update(other.other_flops)
        self.flops_by_dtype.update(other.flops_by_dtype)
        self.uncounted.update(other.uncounted)
        self.num_while_loops += other.num_while_loops
        self.num_conditionals += other.num_conditionals

    def table(self) -> FlopTable:
        keys = sorted(self.flops.keys() | self.other_flops.keys())
        rows = [
            FlopRow(scope, phase, self.flops[scope, phase], self.other_flops[scope, phase]) for scope, phase in keys
        ]
        return FlopTable(
            rows=tuple(sorted(rows, key=lambda row: (-row.flops, -row.other_flops))),
            flops_by_dtype=dict(self.flops_by_dtype),
            uncounted=dict(self.uncounted),
            num_while_loops=self.num_while_loops,
            num_conditionals=self.num_conditionals,
        )


def _add_jaxpr(count: _Count, jaxpr: Any, path: str, times: int) -> None:
    for equation in jaxpr.eqns:
        name_stack = str(equation.source_info.name_stack)
        _add_equation(count, equation, f"{path}{name_stack}/" if name_stack else path, times)


def _add_equation(count: _Count, equation: Any, path: str, times: int) -> None:
    name = equation.primitive.name
    if name == "cond":
        _add_conditional(count, equation, path, times)
    elif name == "while":
        count.num_while_loops += 1
        _add_jaxpr(count, equation.params["cond_jaxpr"].jaxpr, path, times)
        _add_jaxpr(count, equation.params["body_jaxpr"].jaxpr, path, times)
    elif name == "scan":
        _add_jaxpr(count, equation.params["jaxpr"].jaxpr, path, times * equation.params["length"])
    elif name in CALLS:
        for jaxpr in inner_jaxprs(equation):
            _add_jaxpr(count, jaxpr, path, times * _num_mapped_devices(equation))
    else:
        _add_operation(count, equation, path, times)


def _add_operation(count: _Count, equation: Any, path: str, times: int) -> None:
    name = equation.primitive.name
    operation = parse_op_name(path + name)
    key = operation.scope, operation.phase
    flops = matrix_flops(equation)
    if flops is not None:
        count.flops[key] += times * flops
        count.flops_by_dtype[str(equation.invars[0].aval.dtype)] += times * flops
        return
    others = other_flops(equation)
    if others is None:
        count.uncounted[name] += times
    elif others:
        count.other_flops[key] += times * others


def _add_conditional(count: _Count, equation: Any, path: str, times: int) -> None:
    branches = []
    for branch in equation.params["branches"]:
        branches.append(_Count())
        _add_jaxpr(branches[-1], branch.jaxpr, path, times)
    count.num_conditionals += 1
    count.merge(max(branches, key=lambda branch: branch.size))


def _num_mapped_devices(equation: Any) -> int:
    """How many devices run the equation's body each on their own part; 1 for all but `shard_map`."""
    if equation.primitive.name != "shard_map":
        return 1
    sizes = dict(equation.params["mesh"].shape)
    return prod(sizes[axis] for axis in equation.params["newly_manual_axes"])
