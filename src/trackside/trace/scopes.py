"""From an operation's name to the user's scope, the phase of the step and the primitive.

JAX writes where an operation comes from into its HLO metadata, as one path:
`jit(train_step)/transpose(jvp(loss))/Net/Dense_0/dot_general`. The user's own names (`jax.named_scope`, module names)
are mixed in it with transformations (`jvp(...)`), control flow (`while/body`) and the jitted functions of `jax.numpy`
(`jit(silu)`). Here they are told apart, so that a layer has one scope path wherever its operations run.

The phase of an operation:

- `optimizer` under a scope `optimizer`, or where the outermost scope is `update`, opened outside of any gradient. A
  gradient that is taken in there, as by a line search, belongs to it.
- `recompute` in what `jax.checkpoint` computes again (`rematted_computation`).
- `backward` under a transposition.
- `forward` under a `jvp` that is not transposed: all that is traced inside of `grad`. Outside of any gradient, what
  is under an outermost scope `loss`.
- `other`: all else. Metrics, gradient synchronization, data movement, what the compiler made up without a name, and all
  operations of a program that takes no gradient.
"""

import re
from functools import lru_cache
from typing import NamedTuple

PHASES = ("forward", "backward", "recompute", "optimizer", "other")
"""The phases of a step, in the order in which they are shown."""

_JIT = ("jit", "pjit")
_WRAPPERS = re.compile(
    r"(jvp|transpose|vmap|jit|pjit|pmap|xmap|custom_jvp|custom_vjp|remat|checkpoint)\((.*)\)", re.DOTALL
)
CALLS = frozenset(
    {
        "checkpoint",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "jit",
        "pjit",
        "remat",
        "remat2",
        "shard_map",
    }
)
"""Primitives that only call what they hold."""
_RECOMPUTATION = "rematted_computation"
_STRUCTURE = CALLS | {_RECOMPUTATION}
_BRANCH = re.compile(r"branch_\d+_fun")


class OpName(NamedTuple):
    """What an operation's name says."""

    scope: tuple[str, ...]
    """The user's scopes, outermost first; empty where there are none."""
    phase: str
    """One of `PHASES`."""
    primitive: str
    """The JAX primitive, such as `dot_general`; for a parameter its path in the arguments."""
    functions: tuple[str, ...] = ()
    """The jitted functions it was traced in, outermost first, those of `jax.numpy` and `jax.nn` among them."""


class _Part(NamedTuple):
    """One component of a path: `transpose(jvp(loss))` is the name `loss` under two transformations."""

    name: str
    transforms: frozenset[str]
    functions: tuple[str, ...]

    @property
    def is_transposed(self) -> bool:
        return "transpose" in self.transforms

    @property
    def is_differentiated(self) -> bool:
        return "jvp" in self.transforms


@lru_cache(maxsize=1 << 17)
def parse_op_name(op_name: str) -> OpName:
    """Take an operation's name apart.

    Of names that the compiler joined by `;` the first counts: only that one is sure to be a full path. A name that is
    not a path, such as a parameter's, has no scope.

    Args:
        op_name: The `op_name` of an instruction's metadata, or a name stack of a jaxpr followed by the primitive.

    Returns:
        Scope, phase, primitive and functions. Never fails: what has no meaning here is taken as a scope's name.
    """
    *path, last = _split(op_name.partition(";")[0])
    parts = [_unwrap(component) for component in path]
    final = _unwrap(last)
    functions = tuple(function for part in (*parts, final) for function in part.functions)
    primitive = final.name
    if final.functions and not final.name:
        primitive = "jit"  # the call of a jitted function
    if final.transforms:
        parts.append(final._replace(name=""))
    parts = _without_repetition(parts)
    scope = tuple(name for part in _without_structure(parts) for name in part.name.split("/") if name)
    return OpName(scope, _phase(parts, scope), primitive, functions)


def _split(path: str) -> list[str]:
    """The components of a path; a slash in brackets does not part them."""
    components, depth, start = [], 0, 0
    for index, character in enumerate(path):
        if character in "([":
            depth += 1
        elif character in ")]":
            depth = max(depth - 1, 0)
        elif character == "/" and depth == 0:
            components.append(path[start:index])
            start = index + 1
    return [*components, path[start:]]


def _unwrap(component: str) -> _Part:
    transforms, functions = set(), ()
    while match := _WRAPPERS.fullmatch(component):
        wrapper, component = match.groups()
        if wrapper in _JIT:
            functions, component = (component,), ""
        else:
            transforms.add(wrapper)
    if "<locals>" in component:  # JAX names some operations after the function that called it; no scope is called that
        functions, component = (*functions, component), ""
    return _Part(component, frozenset(transforms), functions)


def _without_repetition(parts: list[_Part]) -> list[_Part]:
    """Drop the path that stands twice.

    The gradient of a rematerialized function carries its own path once more:
    `transpose(jvp(loss))/Net/jvp(loss)/Net/checkpoint/...`. Both have the same components, so all between the
    transposed one and its likeness can go.
    """
    kept: list[_Part] = []
    for part in parts:
        if part.is_differentiated and not part.is_transposed:
            origin = _last_transposed(kept, part.name)
            if origin is not None:
                del kept[origin + 1 :]
                continue
        kept.append(part)
    return kept


def _last_transposed(parts: list[_Part], name: str) -> int | None:
    found = (index for index in reversed(range(len(parts))) if parts[index].is_transposed and parts[index].name == name)
    return next(found, None)


def _without_structure(parts: list[_Part]) -> list[_Part]:
    """Drop control flow and calls. A user's scope that happens to be named `while` or `cond` alone stays."""
    kept = []
    for index, part in enumerate(parts):
        before = parts[index - 1].name if index else ""
        after = parts[index + 1].name if index + 1 < len(parts) else ""
        is_loop = (part.name == "while" and after in ("body", "cond")) or (
            part.name in ("body", "cond") and before == "while"
        )
        is_branch = (part.name == "cond" and _BRANCH.fullmatch(after)) or (
            before == "cond" and _BRANCH.fullmatch(part.name)
        )
        if not (is_loop or is_branch or part.name in _STRUCTURE):
            kept.append(part)
    return kept


def _phase(parts: list[_Part], scope: tuple[str, ...]) -> str:
    outside = _names_outside_gradient(parts)
    if "optimizer" in outside or outside[:1] == ("update",):
        return "optimizer"
    if any(part.name == _RECOMPUTATION for part in parts):
        return "recompute"
    if any(part.is_transposed for part in parts):
        return "backward"
    if any(part.is_differentiated for part in parts) or scope[:1] == ("loss",):
        return "forward"
    return "other"


def _names_outside_gradient(parts: list[_Part]) -> tuple[str, ...]:
    """The scopes that were opened before any gradient."""
    inside = (index for index, part in enumerate(parts) if part.is_differentiated or part.is_transposed)
    return tuple(part.name for part in _without_structure(parts[: next(inside, len(parts))]) if part.name)
