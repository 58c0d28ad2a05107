"""Whose the arrays of a call are: those that it was given, by the names of its arguments, and those that it returned.

What a step returns in place of an argument has the same structure and the same shapes, such as a state, and is its own
array. An optimizer's state has the shapes of the parameters, too, so that shapes alone do not tell whose an array is.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax

_MAX_DEPTH = 2
"""How deep in what was returned arguments are looked for, as in `(params, opt_state), loss`."""


def owners_of(arguments: Mapping[str, Any], result: Any) -> dict[str, list[Any]]:
    """Trees of arrays by the name of the argument that they are, or stand for.

    Args:
        arguments: What a call was given, by name.
        result: What it returned.
    """
    owners = {name: [tree] for name, tree in arguments.items()}
    free = {name: _form(tree) for name, tree in arguments.items()}
    for part in _parts(result, _MAX_DEPTH):
        form = _form(part)
        name = next((name for name, own in free.items() if own == form and own is not None), None)
        if name is not None:
            owners[name].append(part)
            del free[name]
    return owners


def _parts(result: Any, depth: int) -> Iterator[Any]:
    """What was returned, and what it is made of, the whole first."""
    yield result
    if depth and isinstance(result, Mapping):
        for part in result.values():
            yield from _parts(part, depth - 1)
    elif depth and isinstance(result, tuple | list):
        for part in result:
            yield from _parts(part, depth - 1)


def _form(tree: Any) -> Any:
    """What two trees have in common that stand for each other; None for one without arrays."""
    leaves, structure = jax.tree.flatten(tree)
    shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves if isinstance(leaf, jax.Array))
    return (structure, shapes) if shapes else None
