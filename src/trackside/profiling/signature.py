"""What JAX compiles a function for: its arguments leaf by leaf, and which leaf made it compile again.

A compile is good for arguments of one structure, with leaves of one shape, dtype, weak type and sharding each, and for
the values of static arguments. JAX reports that it compiled, not for what. So the arguments of a call are described
here, without keeping them, and compared with those of earlier compiles.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from trackside import jax_internals

Kind = Literal["structure", "static", "shape", "dtype", "weak_type", "sharding", "committed"]

NO_CHANGE = (
    "The arguments are as before. Build the jitted function once and keep it; if it is kept, a JAX setting or a mesh "
    "context has changed, or JAX's caches were cleared"
)
"""The suggestion where nothing about the arguments has changed."""

_ORDER: tuple[Kind, ...] = ("structure", "static", "shape", "dtype", "weak_type", "sharding", "committed")
_ABSENT = "absent"
_MAX_TEXT = 120
_MAX_SHOWN_CHANGES = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One property of one leaf that has changed."""

    path: str
    """Where the leaf is, with the names of the function's arguments: `batch.inputs`, `params['Dense_0']['kernel']`."""
    kind: Kind
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.kind} {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class LeafSignature:
    """What a compile depends on, of one leaf."""

    shape: tuple[int, ...] | None = None
    """None for a value that is not an array."""
    dtype: str = ""
    weak_type: bool = False
    sharding: Any = None
    committed: bool = False
    """Whether it is bound to the devices of its sharding; if not, JAX is free to place it."""
    value: str = ""
    """A Python value as text. A number has one only where it may be static."""
    value_hash: int = 0
    """Distinguishes values that read the same."""

    def __str__(self) -> str:
        if self.shape is None:
            return self.value
        return f"{'weak ' if self.weak_type else ''}{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a call as a compile depends on them. Holds no array."""

    leaves: dict[str, LeafSignature]
    """By path."""
    arguments: dict[str, tuple[Any, bool]]
    """By name, the argument's tree structure (None for a static one) and whether it was passed by keyword."""


def signature_of(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, function: Callable | None = None
) -> Signature:
    """Describe the arguments of a call, before or after it: they may be arrays that the call has consumed.

    Args:
        args: The positional arguments.
        kwargs: The keyword arguments.
        function: What was called, for the names of its arguments and which of them are static. Without it the
            arguments are called `args[0]`, `args[1]` and so on.
    """
    static = jax_internals.static_arguments(function)
    may_be_static = static is None
    leaves: dict[str, LeafSignature] = {}
    arguments: dict[str, tuple[Any, bool]] = {}
    for index, (name, value) in enumerate(named_arguments(args, kwargs or {}, function)):
        is_keyword = index >= len(args)
        if static is not None and (name in static.names or (not is_keyword and index in static.numbers)):
            leaves[name] = _describe_value(value)
            arguments[name] = (None, is_keyword)
            continue
        described, structure = jax.tree_util.tree_flatten_with_path(value)
        arguments[name] = (structure, is_keyword)
        for path, leaf in described:
            leaves[name + jax.tree_util.keystr(path)] = _describe_leaf(leaf, may_be_static)
    return Signature(leaves, arguments)


def diff(old: Signature, new: Signature) -> list[Change]:
    """What is different, what matters most first; nothing if both would have been served by one compile."""
    changes: list[Change] = []
    values: list[Change] = []
    for path in [*old.leaves, *(path for path in new.leaves if path not in old.leaves)]:
        before, after = old.leaves.get(path), new.leaves.get(path)
        if before is None or after is None:
            changes.append(Change(path, "structure", str(before or _ABSENT), str(after or _ABSENT)))
        elif before.shape is None or after.shape is None:
            if before != after:
                changes.append(Change(path, "static", str(before), str(after)))
        else:
            changes.extend(_diff_arrays(path, before, after))
            if before.value != after.value:
                values.append(Change(path, "static", before.value or str(before), after.value or str(after)))
    changes.extend(_diff_arguments(old, new, {change.path for change in changes if change.kind == "structure"}))
    # The value of a number that may or may not be static is to blame only where nothing else is.
    return sorted(changes or values, key=lambda change: _ORDER.index(change.kind))


def diff_to_nearest(earlier: Sequence[Signature], new: Signature) -> list[Change]:
    """What is different from the most similar of earlier signatures, the latest of these.

    Args:
        earlier: The earlier signatures, the latest last. At least one.
        new: The signature to explain.
    """
    return min((diff(old, new) for old in reversed(earlier)), key=len)


def summarize(changes: Sequence[Change]) -> str:
    """The first few changes in one line."""
    shown = "; ".join(map(str, changes[:_MAX_SHOWN_CHANGES]))
    num_more = len(changes) - _MAX_SHOWN_CHANGES
    return f"{shown}; and {num_more} more" if num_more > 0 else shown


def suggest(changes: Sequence[Change]) -> str:
    """How to avoid the compile that the changes have caused; by the first of them, which matters most."""
    return _suggest_for(changes[0]) if changes else NO_CHANGE


def _suggest_for(change: Change) -> str:
    if change.kind == "shape":
        return _suggest_for_shape(change)
    return {
        "structure": f"Pass `{change.path}` in the same way each time: the same keys and containers, arrays for None",
        "static": f"Each value of `{change.path}` compiles again: use few, or make it an array that is not static",
        "dtype": f"Cast `{change.path}` to one dtype before the call",
        "weak_type": f"Give `{change.path}` its dtype before the call: jnp.asarray(x, dtype)",
        "sharding": f"Place `{change.path}` the same way each time: jax.device_put(x, sharding), or jit's in_shardings",
        "committed": f"Commit `{change.path}` from the start: jax.device_put(x, sharding), or jit's in_shardings",
    }[change.kind]


def _suggest_for_shape(change: Change) -> str:
    old, new = ([int(size) for size in re.findall(r"\d+", text)] for text in (change.old, change.new))
    if len(old) == len(new) and old[0] != new[0] and old[1:] == new[1:]:
        return (
            f"If it is the last batch, pad `{change.path}` to {max(old[0], new[0])} or drop the remainder in the "
            "loader; if sizes vary, pad to one of a few"
        )
    return f"Give `{change.path}` one shape: pad it to a fixed size, or to one of a few"


def jitted_name(function: Callable | None) -> str | None:
    """The name under which JAX compiles a function of `jax.jit`; None for anything else."""
    if not jax_internals.is_jit_function(function):
        return None
    wrapped: Any = getattr(function, "__wrapped__", function)
    while not hasattr(wrapped, "__name__") and hasattr(wrapped, "func"):
        wrapped = wrapped.func
    return getattr(wrapped, "__name__", "<unnamed function>")


def named_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], function: Callable | None
) -> Iterator[tuple[str, Any]]:
    """The arguments of a call by the names that the function has for them."""
    names, rest = _parameter_names(function)
    for index, value in enumerate(args):
        yield (names[index] if index < len(names) else f"{rest}[{index - len(names)}]"), value
    yield from kwargs.items()


def _parameter_names(function: Callable | None) -> tuple[list[str], str]:
    """The names of the positional parameters, and of the one that takes the rest."""
    try:
        parameters = inspect.signature(function).parameters.values() if function is not None else ()
    except (TypeError, ValueError):  # some builtins have no signature
        parameters = ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional]
    rest = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL]
    return names, rest[0] if rest else "args"


def _describe_leaf(leaf: Any, may_be_static: bool) -> LeafSignature:
    is_struct = isinstance(leaf, jax.ShapeDtypeStruct)
    try:
        aval = leaf if is_struct else jax.typeof(leaf)
        shape, dtype, weak_type = tuple(aval.shape), str(aval.dtype), bool(getattr(aval, "weak_type", False))
    except Exception:  # JAX knows no type for it
        return _describe_value(leaf)
    if not hasattr(leaf, "dtype"):
        return LeafSignature(shape, dtype, weak_type, value=_text(leaf) if may_be_static else "")
    if isinstance(leaf, np.ndarray | np.generic | Tracer):
        return LeafSignature(shape, dtype, weak_type)
    sharding = getattr(leaf, "sharding", None)
    committed = sharding is not None if is_struct else bool(getattr(leaf, "committed", False))
    return LeafSignature(shape, dtype, weak_type, sharding if committed else None, committed)


def _describe_value(value: Any) -> LeafSignature:
    try:
        value_hash = hash(value)
    except Exception:  # a user's own __hash__ may raise anything
        value_hash = 0
    return LeafSignature(value=_text(value), value_hash=value_hash)


def _text(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a user's own __repr__ may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


def _diff_arrays(path: str, old: LeafSignature, new: LeafSignature) -> Iterator[Change]:
    if old.shape != new.shape:
        yield Change(path, "shape", str(old.shape), str(new.shape))
    if old.dtype != new.dtype:
        yield Change(path, "dtype", old.dtype, new.dtype)
    if old.weak_type != new.weak_type:
        yield Change(path, "weak_type", str(old.weak_type), str(new.weak_type))
    if old.sharding != new.sharding:
        devices = [leaf.sharding.num_devices for leaf in (old, new) if leaf.committed]
        is_binding = old.committed != new.committed and devices == [1]
        kind: Kind = "committed" if is_binding else "sharding"
        yield Change(path, kind, _describe_placement(old), _describe_placement(new))


def _describe_placement(leaf: LeafSignature) -> str:
    if not leaf.committed:
        return "uncommitted"
    if isinstance(leaf.sharding, jax.NamedSharding):
        return f"{leaf.sharding.spec} on {dict(leaf.sharding.mesh.shape)}"
    if leaf.sharding.num_devices == 1:
        return str(next(iter(leaf.sharding.device_set)))
    return _text(leaf.sharding)


def _diff_arguments(old: Signature, new: Signature, shown: Set[str]) -> Iterator[Change]:
    """What the paths of the leaves do not show: how arguments were passed, and containers of another kind.

    Args:
        old: The signature before.
        new: The signature after.
        shown: The paths of leaves that came or went.
    """
    for name in [name for name in old.arguments if name in new.arguments]:
        (before, was_keyword), (after, is_keyword) = old.arguments[name], new.arguments[name]
        if was_keyword != is_keyword:
            how = {False: "positional", True: "by keyword"}
            yield Change(name, "structure", how[was_keyword], how[is_keyword])
        if before is None or after is None or before == after or any(path.startswith(name) for path in shown):
            continue
        old_node, new_node = _first_different_nodes(before, after)
        yield Change(name, "structure", _describe_node(old_node), _describe_node(new_node))


def _first_different_nodes(old: Any, new: Any) -> tuple[Any, Any]:
    """The topmost nodes of two trees that are not of the same type with the same static data and children."""
    old_children, new_children = old.children(), new.children()
    if old.node_data() == new.node_data() and len(old_children) == len(new_children):
        for before, after in zip(old_children, new_children, strict=True):
            if before != after:
                return _first_different_nodes(before, after)
    return old, new


def _describe_node(tree: Any) -> str:
    node = tree.node_data()
    if node is None:
        return "a leaf"
    kind, data = node
    return kind.__name__ if data is None else f"{kind.__name__} with {_text(data)}"
