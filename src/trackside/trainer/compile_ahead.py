"""The training step is compiled while something else is prepared: the evaluation step, the first batches.

It is traced and lowered on the training's thread, as it would be by its first call. XLA then compiles it on another
one, without the interpreter's lock, and the first call waits for what is left of that. JAX remembers the program with
what was lowered, so the call finds it. If anything is different or fails, the call compiles as if nothing had happened,
and errors come from there.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from trackside.callbacks import Callback
from trackside.jax_internals import config_value
from trackside.measured_run.in_ledger import ProgramCache
from trackside.profiling.compiles import CompileEvent, compile_counter
from trackside.profiling.ledger import Ledger

LOGGER = logging.getLogger(__name__)

THREAD_NAME = "trackside-compile"
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
        self._ledger = ledger
        self._counter = compile_counter()
        self._event: CompileEvent | None = None
        self._name = call.__name__
        lowered = call.lower(*args)
        spent = self._counter.hand_over(self._name)
        # Not a daemon: XLA must not be cut off when the interpreter ends.
        self._thread = threading.Thread(target=self._compile, args=(lowered, spent, cache), name=THREAD_NAME)
        self._thread.start()

    def _compile(self, lowered: Any, spent: tuple[float, float], cache: ProgramCache | None) -> None:
        counter, number = self._counter, self._counter.num_compiles
        counter.take_over(self._name, spent, EXAMPLE_NAME)
        try:
            with contextlib.nullcontext() if cache is None else cache.in_use():
                lowered.compile()
        except Exception:  # the first call fails too, where the user expects it
            LOGGER.debug("%s could not be compiled ahead of its first call", self._name, exc_info=True)
        own = (one for one in counter.events_after(number) if one.thread_id == threading.get_ident())
        self._event = next((one for one in own if one.function == self._name), None)

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
            self._wait()
            return call(*args)

        feed.call = first

    def _wait(self) -> None:
        if self._thread.is_alive():
            self._ledger.begin_compiling()
            try:
                self._thread.join()
            finally:
                self._ledger.end_compiling()
        if self._event is not None:
            self._counter.adopt(self._event)


def may_compile_ahead(hooks: Iterable[Callback], own: Any, base: type) -> bool:
    """Whether nothing of the user's comes before the first step that could change what is traced.

    Args:
        hooks: The callbacks.
        own: The trainer, with hooks of its own.
        base: The class whose hooks do nothing.
    """
    if config_value("jax_disable_jit"):
        return False
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
