"""Batches stacked for one call: copied into buffers that are not written to again before the call has completed.

JAX may read a numpy array until the call that was given it is over, and on a CPU it reads these without a copy. So a
buffer remembers the report of its call, and is used again when that is there.
"""

from collections import deque
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import tree_flatten, tree_structure

from trackside.fusing.loops import is_weak

_ALIGNMENT = 64
"""Bytes to which JAX wants an array aligned that it takes without a copy."""


class BatchForm(NamedTuple):
    """What batches have in common that can be stacked."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    are_weak: tuple[bool, ...]
    """Of each leaf, whether its type gives way to others, as that of `jnp.full(3, 0.5)`. NumPy has no such arrays."""
    is_on_device: bool
    """Whether all leaves are arrays of JAX, which are never written to."""

    @classmethod
    def of(cls, leaves: list[Any], structure: Any) -> "BatchForm | None":
        """The form of a batch; None if it has leaves that cannot be stacked, such as Python's own numbers.

        These have no type of their own in JAX, and would get one.
        """
        if not leaves or not all(_can_be_stacked(leaf) for leaf in leaves):
            return None
        is_on_device = all(isinstance(leaf, jax.Array) for leaf in leaves)
        shapes, dtypes = tuple(leaf.shape for leaf in leaves), tuple(leaf.dtype for leaf in leaves)
        form = cls(structure, shapes, dtypes, tuple(map(is_weak, leaves)), is_on_device)
        return form if is_on_device or form.is_for_numpy else None

    def fits(self, leaves: list[Any], structure: Any) -> bool:
        """Whether a batch has this form."""
        if structure != self.structure:
            return False
        num_on_device = 0
        for leaf, shape, dtype, weak in zip(leaves, self.shapes, self.dtypes, self.are_weak, strict=True):
            if type(leaf) is not np.ndarray:
                if not _can_be_stacked(leaf) or is_weak(leaf) != weak:
                    return False
                num_on_device += isinstance(leaf, jax.Array)
            if leaf.shape != shape or leaf.dtype != dtype:
                return False
        # In which program a batch is used must not depend on the batches before it.
        return self.is_on_device == (num_on_device == len(leaves))

    @property
    def is_for_numpy(self) -> bool:
        """Whether NumPy can hold all leaves as they are: numbers of a type of their own, and no keys of JAX."""
        is_numeric = all(jax.numpy.issubdtype(dtype, np.number) or dtype == np.bool_ for dtype in self.dtypes)
        return is_numeric and not any(self.are_weak)

    def is_listed(self, device_is_host: bool) -> bool:
        """Whether a call takes the batches as they are, instead of all in one array for each leaf.

        Args:
            device_is_host: Whether the device is the host, so that NumPy reads its arrays where they are.
        """
        return self.is_on_device and not (device_is_host and self.is_for_numpy)

    @property
    def num_bytes(self) -> int:
        """The size of a batch."""
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True))


_Buffer = tuple[np.ndarray, tuple[int, ...], Any]
"""An array that batches are copied into, and the shape and type of a batch's leaf."""


class BatchStack:
    """Stacks numpy batches of one form.

    Args:
        form: The form.
        capacity: How many batches fit.
    """

    def __init__(self, form: BatchForm, capacity: int):
        self.form = form
        self.capacity = capacity
        self.is_listed = False
        """Whether the call takes batches as they are; see `BatchForm.is_listed`."""
        self.room = capacity
        """How many batches the next call may take."""
        self._free: deque[tuple[list[_Buffer], Any]] = deque()
        self._buffers: list[_Buffer] = []
        self._num_held = 0
        self._structures: dict[int, Any] = {}
        """Of a list of so many batches."""

    def begin(self) -> None:
        """Begin with the batches of the next call, in buffers that no call reads."""
        if self._free and self._free[0][1].is_ready():
            self._buffers, _ = self._free.popleft()
        else:
            self._buffers = [
                (_aligned_zeros((self.capacity, *shape), jax.dtypes.canonicalize_dtype(dtype)), shape, dtype)
                for shape, dtype in zip(self.form.shapes, self.form.dtypes, strict=True)
            ]
        self._num_held = 0

    def add(self, leaves: list[Any], structure: Any) -> bool:
        """Copy a batch behind the others, if it has their form. This is paid for at every step.

        Returns:
            Whether it has. If not, nothing was added.
        """
        form, index = self.form, self._num_held
        if structure != form.structure:
            return False
        is_checked = False
        for (buffer, shape, dtype), leaf in zip(self._buffers, leaves, strict=True):
            if not is_checked and (type(leaf) is not np.ndarray or leaf.shape != shape or leaf.dtype is not dtype):
                is_checked = form.fits(leaves, structure)  # some kinds of arrays have that form as well
                if not is_checked:
                    return False
            buffer[index] = leaf if type(leaf) is np.ndarray else np.asarray(leaf)
        self._num_held = index + 1
        return True

    def add_all(self, batches: list[Any]) -> int:
        """Copy batches behind the others, up to the first that has another form.

        Together they take a third of the time that they take one by one.

        Returns:
            How many were added.
        """
        if self._add_together(batches):
            return len(batches)
        return _add_each(self, batches)

    def _add_together(self, batches: list[Any]) -> bool:
        """Copy batches that are alike, as most are; whether they are, or else nothing was added."""
        if not batches:
            return True
        leaves, structure = tree_flatten(batches)
        expected = self._structure_of(batches[0], len(batches))
        if expected is None or structure != expected:
            return False
        if self.form.is_on_device:
            if any(map(is_weak, leaves)):
                return False
            leaves = [np.asarray(leaf) for leaf in leaves]
        columns = [leaves[place :: len(self._buffers)] for place in range(len(self._buffers))]
        for (_, shape, dtype), column in zip(self._buffers, columns, strict=True):
            if not _can_be_joined(column, shape, dtype):
                return False
        begin, end = self._num_held, self._num_held + len(batches)
        for (buffer, shape, _), column in zip(self._buffers, columns, strict=True):
            joined = buffer[begin:end].reshape(len(batches) * shape[0], *shape[1:])
            np.concatenate(column, out=joined)
        self._num_held = end
        return True

    def _structure_of(self, batch: Any, number: int) -> Any:
        """The structure of a list of batches like this one; None if it has another form."""
        if number not in self._structures:
            if tree_structure(batch) != self.form.structure:
                return None
            self._structures[number] = tree_structure([batch] * number)
        return self._structures[number]

    def stacked(self) -> Any:
        """The batches as one, whose leaves have one more dimension in front."""
        return jax.tree.unflatten(self.form.structure, [array for array, _, _ in self._buffers])

    def hold_until(self, report: Any) -> None:
        """Keep the buffers as they are until a report is there."""
        self._free.append((self._buffers, report))


class BatchList:
    """Collects batches that are on the device, for a program that stacks them there.

    A loader may give up the arrays of a batch when it makes the next, as a jitted function does with what it donates.
    So the first batch is a call of its own, and so are all others of a loader that has done so.

    Args:
        form: The form.
        capacity: How many batches fit.
        stack: Where they are stacked if the device is the host, once all are collected: they may still be computed.
            That is faster than a program with an argument for each.
    """

    def __init__(self, form: BatchForm, capacity: int, stack: BatchStack | None = None):
        self.form = form
        self.capacity = capacity
        self.is_listed = stack is None
        self._stack = stack
        self.room = 1
        """How many batches the next call may take."""
        self._is_given_up = False
        self._batches: list[Any] = []

    def begin(self) -> None:
        """Begin with the batches of the next call, of which the first has been fetched."""
        if self._batches:
            self._is_given_up |= any(leaf.is_deleted() for leaf in jax.tree.leaves(self._batches[-1]))
            self.room = 1 if self._is_given_up else self.capacity
        self._batches = []

    def add(self, leaves: list[Any], structure: Any) -> bool:
        """Add a batch, if it has the form of the others; see `BatchStack.add`."""
        if not self.form.fits(leaves, structure):
            return False
        self._batches.append(jax.tree.unflatten(structure, leaves))
        return True

    def add_all(self, batches: list[Any]) -> int:
        """Add batches, up to the first that has another form; see `BatchStack.add_all`."""
        return _add_each(self, batches)

    def stacked(self) -> Any:
        """As many batches as the program takes; the last one fills the places of those that are not there."""
        if self._stack is None:
            return (*self._batches, *[self._batches[-1]] * (self.capacity - len(self._batches)))
        self._stack.begin()
        self._stack.add_all(self._batches)
        return self._stack.stacked()

    def hold_until(self, report: Any) -> None:
        """Keep what the call reads until a report is there. JAX does that for its own arrays."""
        if self._stack is not None:
            self._stack.hold_until(report)


def _add_each(stack: BatchStack | BatchList, batches: list[Any]) -> int:
    """Add batches one by one, and give how many came before the first that has another form."""
    for index, batch in enumerate(batches):
        if not stack.add(*tree_flatten(batch)):
            return index
    return len(batches)


def _can_be_joined(leaves: list[Any], shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether leaves are plain arrays of one form, with a first dimension to join them along."""
    for leaf in leaves:
        if type(leaf) is not np.ndarray or leaf.shape != shape or leaf.dtype is not dtype:
            return False
    return bool(shape)


def _can_be_stacked(leaf: Any) -> bool:
    """Whether copying a leaf keeps all of it: a masked array would lose its mask, which JAX refuses to do."""
    return isinstance(leaf, np.ndarray | np.generic | jax.Array) and not isinstance(leaf, np.ma.MaskedArray)


def _aligned_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(num_bytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes].view(dtype).reshape(shape)
