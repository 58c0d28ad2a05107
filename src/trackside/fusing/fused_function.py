"""A training step of the user's own, made for several batches in one call of a compiled program.

As in the trainer, the program is a loop over stacked batches with a length that is given at each call. So it serves any
number of batches up to its capacity, nothing compiles for a remainder, and any division of the same batches into calls
gives the same result, to the last bit.
"""

import functools
from collections.abc import Callable
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from trackside.errors import ConfigError, DataError
from trackside.fusing.batch_stack import BatchForm, BatchStack
from trackside.fusing.looped_convolutions import fast_in_loops
from trackside.fusing.loops import is_weak, item_at, places_for, with_outputs
from trackside.fusing.step_state import NumbersChangeError, StateForm, check_kept, take_apart
from trackside.text import a_type

MAX_PROGRAMS = 16
"""For how many forms of states and batches programs are kept at a time."""


def fuse_steps(function: Callable[..., Any], steps_per_call: int, donate: bool = False) -> "FusedSteps":
    """Let a training step be made for several batches in one call: `(*state, batches) -> (*state, *outputs)`.

    Args:
        function: The step, jitted or not: `function(*state, batch) -> (*state, *outputs)`, such as
            `train_step(params, opt_state, batch) -> params, opt_state, loss`. Models and optimizers of Flax NNX are
            changed in place and not returned.
        steps_per_call: For how many batches at most.
        donate: Whether a call may overwrite the arrays of the state that it is given.

    Returns:
        A function that takes a list of batches in the place of one, and gives each output for all steps: in arrays with
        one more dimension in front.

    Raises:
        ConfigError: An argument is not as described.
    """
    if not callable(function):
        raise ConfigError(f"fuse_steps: expected a function, got {function!r}; give the step itself")
    if not isinstance(donate, bool):
        raise ConfigError(f"donate: expected True or False, got {donate!r}")
    return FusedSteps(function, checked_steps_per_call(steps_per_call), donate)


def checked_steps_per_call(value: Any) -> int:
    """How many steps a call makes at most.

    Raises:
        ConfigError: It is no number of steps.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"steps_per_call: expected a number of steps, 1 or more; got {value!r}")
    return int(value)


class FusedSteps:
    """A training step for several batches. Made by `fuse_steps`."""

    def __init__(self, function: Callable[..., Any], steps_per_call: int, donate: bool):
        functools.update_wrapper(self, function, updated=())
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.steps_per_call = steps_per_call
        self.num_steps = 0
        """How many steps the last call made."""
        self.outline: Any = None
        """The jaxpr of a step, as it was traced last."""
        self._function = function
        self._donate = donate
        self._programs: dict[Any, _Program] = {}
        self._stacks: dict[BatchForm, BatchStack] = {}
        self._counted: dict[Any, frozenset[int]] = {}
        """Which numbers of Python's in the state are changed by steps."""

    def __call__(self, *args: Any) -> Any:
        """Make a step for each batch.

        Args:
            *args: The state, then a list of batches of one form.

        Returns:
            What the step returns: the new state, and the outputs of all steps.

        Raises:
            DataError: The batches are not as described.
            ConfigError: The step does not keep the form of its state.
        """
        batches = self._checked(args)
        state, num_steps = args[:-1], len(batches)
        form, is_listed = self._form_of(batches[0])
        placed, stack = self._place(batches, form, is_listed)
        leaves, state_form = take_apart(state, self._counted)
        try:
            program = self._program_for(state, leaves, state_form, batches[0], (form, is_listed))
        except NumbersChangeError as error:
            self._counted[state_form.tree] = self._counted.get(state_form.tree, frozenset()) | error.places
            leaves, state_form = take_apart(state, self._counted)
            program = self._program_for(state, leaves, state_form, batches[0], (form, is_listed))
        leaves, outputs, made = program.call(leaves, jax.device_put(np.int32(num_steps)), placed)
        if stack is not None:
            stack.hold_until(made)
        self.num_steps = num_steps
        if num_steps < self.steps_per_call:
            outputs = jax.tree.map(lambda leaf: leaf[:num_steps], outputs)
        state_form.update_objects(state, leaves)
        return program.result_of(state_form.put_in(state, leaves), outputs)

    def describe(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call as those of a single step, by which a compile is explained.

        Args:
            args: The arguments.
        """
        return (*args[:-1], args[-1][0])

    def _checked(self, args: tuple[Any, ...]) -> list[Any]:
        batches = args[-1] if args else None
        if not isinstance(batches, list):
            got = "nothing" if not args else a_type(batches)
            raise DataError(
                f"{self.__name__}: expected a list of up to {self.steps_per_call} batches as last argument, got {got}; "
                f"iterate over run.batches(loader, steps_per_call={self.steps_per_call})"
            )
        if not 1 <= len(batches) <= self.steps_per_call:
            raise DataError(
                f"{self.__name__}: expected 1 to {self.steps_per_call} batches, got {len(batches)}; a larger "
                "steps_per_call of fuse_steps takes more"
            )
        return batches

    def _form_of(self, batch: Any) -> tuple[BatchForm, bool]:
        """The form of a batch, and whether batches are arguments of the program each by itself."""
        leaves, structure = jax.tree.flatten(batch)
        form = BatchForm.of(leaves, structure)
        if form is None:
            raise DataError(
                f"{self.__name__}: a batch has to consist of arrays, to be put together with others; got "
                f"{batch!r:.200}. Make arrays of numbers, as with np.float32(0.5)"
            )
        return form, form.is_listed(form.is_on_device and all(map(_is_on_host, leaves)))

    def _place(self, batches: list[Any], form: BatchForm, is_listed: bool) -> tuple[Any, BatchStack | None]:
        if is_listed:
            self._check_alike(form, batches)
            return (*batches, *[batches[-1]] * (self.steps_per_call - len(batches))), None
        stack = self._stacks.get(form)
        if stack is None:
            while len(self._stacks) >= MAX_PROGRAMS:
                del self._stacks[next(iter(self._stacks))]
            stack = self._stacks[form] = BatchStack(form, self.steps_per_call)
        stack.begin()
        if stack.add_all(batches) < len(batches):
            self._check_alike(form, batches)
        stacked = stack.stacked()
        return jax.device_put(stacked) if form.is_on_device else stacked, stack

    def _check_alike(self, form: BatchForm, batches: list[Any]) -> None:
        for index, batch in enumerate(batches):
            if not form.fits(*jax.tree.flatten(batch)):
                raise DataError(
                    f"{self.__name__}: batches[{index}] has another form than batches[0], and a call takes batches of "
                    f"one form; iterate over run.batches(loader, steps_per_call={self.steps_per_call}), which "
                    "divides them so"
                )

    def _program_for(
        self, state: tuple[Any, ...], leaves: list[Any], state_form: StateForm, batch: Any, batch_form: Any
    ) -> "_Program":
        key = state_form, tuple(map(_kind_of, leaves)), batch_form
        try:
            program = self._programs.get(key)
        except TypeError:
            odd = next(value for _, value in state_form.fixed if not _is_hashable(value))
            raise ConfigError(
                f"{self.__name__}: the state holds {a_type(odd)}, which is no array and cannot be compared with that "
                "of the next call; make it an array, or leave it out of the state"
            ) from None
        if program is None:
            while len(self._programs) >= MAX_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            program = self._programs[key] = self._build(state, leaves, state_form, batch, is_listed=batch_form[1])
        return program

    def _build(
        self, state: tuple[Any, ...], leaves: list[Any], state_form: StateForm, batch: Any, is_listed: bool
    ) -> "_Program":
        """Trace the step, and make a loop of it."""
        reader = _ResultReader(self._function, state_form)

        def make_step(leaves: list[Any], batch: Any) -> tuple[list[Any], Any]:
            args = state_form.join(leaves)
            carried, outputs = reader.read(self._function(*args, batch), args)
            new = take_apart(carried, self._counted)
            check_kept(self._function, state, new, (leaves, state_form))
            return [jnp.asarray(leaf) for leaf in new[0]], jax.tree.map(jnp.asarray, outputs)

        forms = jax.tree.map(_form_of_array, (leaves, batch))
        jaxpr, shapes = jax.make_jaxpr(make_step, return_shape=True)(*forms)
        tree, capacity = jax.tree.structure(shapes), self.steps_per_call
        self.outline = jaxpr

        def replay(leaves: list[Any], batch: Any) -> tuple[list[Any], Any]:
            results = core.jaxpr_as_fun(jaxpr)(*jax.tree.leaves((leaves, batch)))
            return jax.tree.unflatten(tree, list(map(jnp.asarray, results)))

        step = fast_in_loops(replay, jaxpr, is_looped=True)

        def call(leaves: list[Any], num_steps: jax.Array, batches: Any) -> tuple[list[Any], Any, jax.Array]:
            if is_listed:
                batches = jax.tree.map(lambda *each: jnp.stack(each), *batches)

            def next_step(loop: tuple) -> tuple:
                index, leaves, outputs = loop
                leaves, found = step(leaves, item_at(batches, index))
                return index + 1, leaves, with_outputs(outputs, found, index)

            first = jnp.int32(0), leaves, places_for(shapes[1], capacity)
            index, leaves, outputs = jax.lax.while_loop(lambda loop: loop[0] < num_steps, next_step, first)
            return leaves, outputs, index

        call.__name__ = call.__qualname__ = self.__name__
        return _Program(jax.jit(call, donate_argnums=(0,) if self._donate else ()), reader)


class _Program:
    """A compiled loop, and how what it gives becomes what the step returns."""

    def __init__(self, call: Callable[..., Any], reader: "_ResultReader"):
        self.call = call
        self.result_of = reader.write


class _ResultReader:
    """Tells the state in what a step returns from its outputs.

    Args:
        function: The step.
        form: The form of its state.
    """

    def __init__(self, function: Callable[..., Any], form: StateForm):
        self._name = getattr(function, "__name__", "the step")
        self._form = form
        self._num_returned = len(form.are_objects) - sum(form.are_objects)
        """How many arguments are returned, and not changed in place."""
        self._is_state_alone = False
        self._is_tuple = True

    def read(self, result: Any, args: list[Any]) -> tuple[list[Any], Any]:
        """The new state, and the outputs.

        Args:
            result: What the step returned.
            args: What it was given; objects in it are changed.
        """
        num_returned, are_objects = self._num_returned, self._form.are_objects
        own = [arg for arg, is_object in zip(args, are_objects, strict=True) if not is_object]
        self._is_tuple = type(result) is tuple
        returned = result[:num_returned] if type(result) is tuple else ()
        outputs = result[num_returned:] if type(result) is tuple else result
        if num_returned and not _have_same_structure(list(returned), own):
            self._is_state_alone = num_returned == 1 and _have_same_structure([result], own)
            if not self._is_state_alone:
                raise ConfigError(
                    f"{self._name}: expected it to return its new state first, {num_returned} values of the structure "
                    "of those that it is given before the batch, and then its outputs; got "
                    f"{jax.tree.structure(result)}. All arguments but the last are the state: put several parts of a "
                    "batch into one"
                )
            returned, outputs = (result,), ()
        each = iter(returned)
        new = [arg if is_object else next(each) for arg, is_object in zip(args, are_objects, strict=True)]
        return new, outputs

    def write(self, state: list[Any], outputs: Any) -> Any:
        """What the step would return.

        Args:
            state: The part of the new state that is returned.
            outputs: The outputs.
        """
        if self._is_state_alone:
            return state[0]
        return (*state, *outputs) if self._is_tuple else outputs


def _have_same_structure(one: list[Any], other: list[Any]) -> bool:
    return jax.tree.structure(one) == jax.tree.structure(other)


def _is_on_host(leaf: jax.Array) -> bool:
    """Whether NumPy reads an array where it is."""
    devices = leaf.sharding.device_set
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _kind_of(leaf: Any) -> tuple[Any, ...]:
    return np.shape(leaf), leaf.dtype, is_weak(leaf)


def _form_of_array(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=is_weak(leaf))
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(leaf.dtype))
