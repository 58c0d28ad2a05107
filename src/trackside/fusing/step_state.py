"""What a training step is given and gives back changed: its state, taken apart into arrays and everything else.

The arrays are what a compiled loop carries from step to step. Everything else has to stay as it is: the structure, and
what is no array, as the functions in models of Equinox. A number of Python's may be one or the other: a rate of dropout
stays, the step of a `TrainState` is counted. Which it is shows when the step is traced. Models and optimizers of Flax
NNX are changed in place, so they are put together again inside of the loop, and get their new values after it.
"""

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from trackside.errors import ConfigError
from trackside.profiling.signature import named_arguments
from trackside.text import a_type


class StateForm(NamedTuple):
    """Everything about a state but its arrays. Two that are equal serve the same program."""

    are_objects: tuple[bool, ...]
    """Of each argument, whether it holds objects of NNX, which the step changes in place."""
    objects: Hashable
    """The structure of these; None if there are none."""
    objects_tree: Any
    tree: Any
    """The structure of the others."""
    fixed: tuple[tuple[int, Any], ...]
    """The leaves of the others that are no arrays, with their places."""

    def join(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments, with other arrays. Objects are new ones.

        Args:
            leaves: The arrays, as `take_apart` gave them.
        """
        num_own, others = self._num_leaves, dict(self.fixed)
        rest = iter(leaves[num_own:])
        plain = jax.tree.unflatten(
            self.tree, [others[at] if at in others else next(rest) for at in range(self.tree.num_leaves)]
        )
        objects: Sequence[Any] = ()
        if self.objects is not None:
            objects = _nnx().merge(self.objects, jax.tree.unflatten(self.objects_tree, leaves[:num_own]))
        each, each_object = iter(plain), iter(objects)
        return [next(each_object) if is_object else next(each) for is_object in self.are_objects]

    def update_objects(self, args: Sequence[Any], leaves: Sequence[Any]) -> None:
        """Give the objects among the arguments their new values.

        Args:
            args: The arguments.
            leaves: The arrays, of which theirs come first.
        """
        if self.objects is not None:
            values = jax.tree.unflatten(self.objects_tree, leaves[: self._num_leaves])
            _nnx().update(self._objects_of(args), values)

    def put_in(self, args: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """The arguments that are no objects, with other arrays.

        Args:
            args: The arguments.
            leaves: The arrays of all.
        """
        joined = self._replace(are_objects=(False,) * (len(args) - sum(self.are_objects)), objects=None)
        return joined.join(leaves[self._num_leaves :])

    @property
    def _num_leaves(self) -> int:
        return 0 if self.objects is None else self.objects_tree.num_leaves

    def _objects_of(self, args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(arg for arg, is_object in zip(args, self.are_objects, strict=True) if is_object)


class NumbersChangeError(Exception):
    """A step changes numbers of Python's in its state, so that they have to be arrays.

    Args:
        places: Which leaves they are of those that are not in objects.
    """

    def __init__(self, places: frozenset[int]):
        super().__init__(places)
        self.places = places


Counted = Mapping[Any, frozenset[int]]
"""By the structure of a state, which of its leaves are numbers of Python's that steps change."""


def take_apart(args: Sequence[Any], counted: Counted = MappingProxyType({})) -> tuple[list[Any], StateForm]:
    """The arrays of a state, and its form.

    Args:
        args: The arguments that are the state.
        counted: Which numbers are arrays.
    """
    are_objects = tuple(_holds_objects(arg) for arg in args)
    objects, objects_tree, own = None, None, []
    if any(are_objects):
        held = tuple(arg for arg, is_object in zip(args, are_objects, strict=True) if is_object)
        objects, values = _nnx().split(held)
        own, objects_tree = jax.tree.flatten(values)
    plain = tuple(arg for arg, is_object in zip(args, are_objects, strict=True) if not is_object)
    leaves, tree = jax.tree.flatten(plain)
    for at in counted.get(tree, ()):
        leaves[at] = _as_array(leaves[at])
    fixed = tuple((at, leaf) for at, leaf in enumerate(leaves) if not is_array(leaf))
    form = StateForm(are_objects, objects, objects_tree, tree, fixed)
    return [*own, *(leaf for leaf in leaves if is_array(leaf))], form


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _as_array(leaf: Any) -> Any:
    if not _is_number(leaf):
        return leaf
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex)


def check_kept(
    function: Callable, args: Sequence[Any], new: tuple[list[Any], StateForm], old: tuple[list[Any], StateForm]
) -> None:
    """Raise if a step gives back a state of another form than it was given.

    Args:
        function: The step.
        args: The state that it was given.
        new: What it gave back, taken apart.
        old: What it was given, taken apart.

    Raises:
        NumbersChangeError: Only numbers of Python's are different.
        ConfigError: Anything else is.
    """
    name = getattr(function, "__name__", "the step")
    if new[1] != old[1]:
        after = dict(new[1].fixed)
        changed = {at: value for at, value in old[1].fixed if at not in after or after[at] != value}
        is_same_else = new[1]._replace(fixed=()) == old[1]._replace(fixed=())
        if changed and is_same_else and all(map(_is_number, changed.values())):
            raise NumbersChangeError(frozenset(changed))
        what = f"{next(iter(changed.values()))!r}" if changed else "its structure"
        raise ConfigError(
            f"{name}: several steps in one call have to keep the form of the state, and a step changes {what}; return "
            "the same containers, with arrays where something changes"
        )
    for path, before, after in zip(_paths(function, args, old[1]), old[0], new[0], strict=True):
        if (np.shape(after), after.dtype) != (np.shape(before), before.dtype):
            raise ConfigError(
                f"{name}: several steps in one call have to keep the form of the state, and {path} is "
                f"{_form_of(before)} before a step and {_form_of(after)} after it; cast it back in the step"
            )


def _form_of(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, np.shape(leaf)))}]"


def _paths(function: Callable, args: Sequence[Any], form: StateForm) -> list[str]:
    """Where the arrays are, in the order of `take_apart`."""
    own = [f"a variable of {a_type(arg)}" for arg, is_one in zip(args, form.are_objects, strict=True) if is_one]
    named = list(named_arguments(args, {}, function))
    plain = [
        name + jax.tree_util.keystr(path)
        for (name, value), is_object in zip(named, form.are_objects, strict=True)
        if not is_object
        for path, _ in jax.tree_util.tree_leaves_with_path(value)
    ]
    fixed = {at for at, _ in form.fixed}
    return [*(own[:1] * form._num_leaves), *(path for at, path in enumerate(plain) if at not in fixed)]


def _holds_objects(arg: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return False
    kinds = (nnx.Pytree, nnx.Variable)
    return any(isinstance(leaf, kinds) for leaf in jax.tree.leaves(arg, is_leaf=lambda leaf: isinstance(leaf, kinds)))


def _nnx() -> Any:
    return sys.modules["flax.nnx"]
