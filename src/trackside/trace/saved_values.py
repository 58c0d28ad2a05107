"""What a program's forward pass leaves for its backward pass, by scope, read from its jaxpr without running it.

A value counts once, for the scope that has computed it, if an operation of the backward pass uses it. That is what the
program asks for. The compiler may keep less, by computing some of it again, or more, by copying it.
"""

from collections.abc import Iterator
from typing import Any

from trackside.trace.scopes import parse_op_name

Scope = tuple[str, ...]


def saved_bytes(jaxpr: Any) -> dict[Scope, int]:
    """The bytes of values that are computed in the forward pass and used in the backward pass.

    Inside of a loop, what each turn uses itself counts once, and what all turns leave to a later loop counts for all.

    Args:
        jaxpr: The program: an open jaxpr.

    Returns:
        The bytes by scope, in the order in which the program first enters each; 0 for one that leaves nothing.
    """
    found: dict[Scope, int] = {}
    _walk(jaxpr, "", found)
    return found


def _walk(jaxpr: Any, path: str, found: dict[Scope, int]) -> list[Scope | None]:
    """Add what a jaxpr leaves, and give the scope of each of its outputs that the forward pass computes."""
    maker: dict[Any, Scope] = {}
    for equation in jaxpr.eqns:
        name_stack = str(equation.source_info.name_stack)
        inside = f"{path}{name_stack}/" if name_stack else path
        operation = parse_op_name(inside + equation.primitive.name)
        if operation.phase == "forward":
            found.setdefault(operation.scope, 0)
        elif operation.phase in ("backward", "recompute"):
            for variable in filter(_is_variable, equation.invars):
                if (scope := maker.pop(variable, None)) is not None:
                    found[scope] += _num_bytes(variable.aval)
        scopes = [_walk(inner, inside, found) for inner in inner_jaxprs(equation)]
        if operation.phase == "forward":
            for index, variable in enumerate(equation.outvars):
                inner_scope = next((each[index] for each in scopes if len(each) == len(equation.outvars)), None)
                maker[variable] = inner_scope or operation.scope
    return [maker.get(variable) if _is_variable(variable) else None for variable in jaxpr.outvars]


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs that an equation calls: the body of a loop, the branches of a conditional, a jitted function."""
    for parameter in equation.params.values():
        for value in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield inner


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")  # a literal, which may not even be hashed


def _num_bytes(aval: Any) -> int:
    return int(getattr(aval, "size", 0)) * getattr(getattr(aval, "dtype", None), "itemsize", 0)
