"""The training step is compiled while something else is prepared: the evaluation step, the first batches.

The first call waits for what is left of that. JAX remembers the program with what was lowered, so the call finds it. If
anything is different or fails, the call compiles as if nothing had happened, and errors come from there.
"""

import logging
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from trackside.callbacks import Callback
from trackside.measured_run.in_ledger import ProgramCache
from trackside.profiling.ledger import Ledger
from trackside.trainer.background_program import BackgroundProgram

LOGGER = logging.getLogger(__name__)

EXAMPLE_NAME = "train_step for the example batch"
"""What the program is called unless a call makes use of it."""

_HOOKS = ("on_training_start", "on_training_epoch_start")


class CompileAhead:
    """A program that is being compiled before its first call.

    Args:
        call: The jitted function.
        args: Its arguments, or their forms.
        batch: The batch that it is compiled for, of which a call may take several.
        ledger: Where the time is booked that the first call waits.
        cache: Where compiled programs are kept; None for nowhere.
    """

    def __init__(self, call: Any, args: tuple[Any, ...], batch: Any, ledger: Ledger, cache: ProgramCache | None):
        self._call = call
        self._form = form_of(batch)
        self._program = BackgroundProgram(call, args, EXAMPLE_NAME, ledger, cache)

    def around(self, feed: Any, batch: Any) -> None:
        """Let the next call of a feed, and no later one, wait for the program.

        Args:
            feed: Has the function in `call`, which runs what is jitted in `program`.
            batch: A batch of those that it will be called with.
        """
        if feed.program is not self._call or form_of(batch) != self._form:
            LOGGER.warning(
                "train_step was compiled for the example batch, and the first batch of train_loader has another form, "
                "so that it is compiled twice; build the trainer with a batch of the loader"
            )
            return
        call = feed.call

        def first(*args: Any) -> Any:
            if feed.call is first:
                feed.call = call
            self._program.wait()
            return call(*args)

        feed.call = first


def may_compile_ahead(hooks: Iterable[Callback], own: Any, base: type) -> bool:
    """Whether nothing of the user's comes before the first step that could change what is traced.

    Args:
        hooks: The callbacks.
        own: The trainer, with hooks of its own.
        base: The class whose hooks do nothing.
    """
    if any(getattr(getattr(own, hook), "__func__", None) is not getattr(base, hook) for hook in _HOOKS):
        return False
    return not any(_runs_code_of_user(one) for one in hooks)


def _runs_code_of_user(callback: Callback) -> bool:
    kind = type(callback)
    is_ours = kind.__module__.startswith("trackside.")
    return any(
        hook in vars(callback) or (not is_ours and getattr(kind, hook) is not getattr(Callback, hook))
        for hook in _HOOKS
    )


def batch_form(batch: Any) -> Any:
    """Shapes and types of a batch, as a jitted function sees them."""
    return jax.tree.map(_leaf_form, batch)


def _leaf_form(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf), weak_type=_is_weak(leaf))


def _is_weak(leaf: Any) -> bool:
    """Whether the type of a leaf gives way to others, as that of Python's numbers does, which is part of a program."""
    return not isinstance(leaf, np.ndarray) and jax.typeof(leaf).weak_type


def stacked_form(batch: Any, number: int) -> Any:
    """The same for several batches in one, with one more dimension in front."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype), batch_form(batch))


def form_of(batch: Any) -> tuple[Any, ...]:
    """What a program depends on in a batch, to be compared."""
    leaves, structure = jax.tree.flatten(batch)
    forms = ((tuple(np.shape(leaf)), str(jax.numpy.result_type(leaf)), _is_weak(leaf)) for leaf in leaves)
    return structure, *forms
