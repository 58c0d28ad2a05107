"""What the loop gives to the compiled call: one batch for one step, or several batches for as many.

No batch is taken that is not trained on before the next boundary, so that a loader's position there is that of the
last step. What comes up while several are fetched waits until they are trained on: the loader's end, an error in it,
or a batch of another form, which begins the next call. A request to stop ends the fetching. A loader that looks at the
training to make a batch is asked for the next one when the step before is made.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_flatten

from trackside.fusing.batch_copies import copied_batch
from trackside.fusing.batch_stack import BatchForm, BatchList, BatchStack
from trackside.measured_run.interrupts import StopRequest
from trackside.metrics import MetricLayout
from trackside.trainer.batch import check_leaves
from trackside.trainer.buffer_guard import BufferGuard
from trackside.trainer.compile_ahead import batch_form, stacked_form
from trackside.trainer.engine import Engine, FusedCall, TrainCall
from trackside.trainer.fused_steps import plan_steps
from trackside.trainer.steps_per_call import Pace, StepsPerCall
from trackside.trainer.train_data import TrainData

LOGGER = logging.getLogger(__name__)

_MAX_FORMS = 4
"""For how many forms of batches there are buffers at a time."""
_MAX_PLANS = 512


class PlainFeed:
    """One batch for one step.

    Args:
        call: The compiled step.
        engine: What it runs on.
        data: Where batches come from.
    """

    num_steps = 1
    """How many steps the call makes for which a batch was taken last."""
    holds_batch = False
    """Whether the loader gave something that the next call of `take` is about, so that it must not stop here."""

    def __init__(self, call: TrainCall, engine: Engine, data: TrainData):
        self.call = call
        """`call(carry, vector, placed) -> (carry, vector)`, for what was taken last."""
        self.program: Callable = call
        """The jitted function that this runs."""
        self.place = engine.placement.place_train
        """Brings what was taken on its way to the device."""
        self.latest: Any = None
        """A batch of the call for which one was taken last, as the loader gave it."""
        self.guard = data.guard
        """Who knows whether batches have to be trained on one by one."""
        self._data = data
        self._batches: Iterator = iter(())

    def open(self, is_traced: bool) -> None:
        """Begin or continue to take batches, after something else was done.

        Args:
            is_traced: Whether the calls to come are traced.
        """
        self._batches, self.guard = self._data.batches, self._data.guard

    def take(self, step: int, room: float) -> Any:
        """The next batch.

        Args:
            step: The last step.
            room: How many steps may be made up to the next boundary.

        Raises:
            StopIteration: There is none.
        """
        batch, guard = next(self._batches), self.guard
        self.latest = batch = batch if guard.trusted else guard.protect(batch)
        return batch

    def counting(self, count: Callable[[Any], int]) -> Callable[[Any], int]:
        """What counts the examples that were taken last, given what `place` has made of them.

        Args:
            count: Counts those of a batch.
        """
        return count


class FusedFeed:
    """Several batches for as many steps.

    Args:
        call: The compiled step alone, for batches that cannot be stacked.
        engine: What it runs on.
        data: Where batches come from.
        layout: The metrics of the step.
        chosen: How many steps a call may make.
        stop: Who asks for a stop.
        log_every_n_steps: After how many steps there is a log row; -1 for never.
        now: What the clock shows.
    """

    def __init__(
        self,
        call: TrainCall,
        engine: Engine,
        data: TrainData,
        layout: MetricLayout,
        chosen: StepsPerCall,
        stop: StopRequest,
        log_every_n_steps: int,
        now: Callable[[], float],
    ):
        self.call: Callable = call
        self.num_steps = 1
        self.latest: Any = None
        self.holds_batch = False
        self.guard = BufferGuard((), 1)  # batches are copied, so that nobody can overwrite them
        self._plain = call
        self._engine = engine
        self._placement = engine.placement
        self._is_shared = engine.processes.are_several
        self._data = data
        self._layout = layout
        self._fresh_vector = engine.fresh_vector(layout)
        self._begins_anew = False
        self._chosen = chosen
        self._stop = stop
        self._log_every_n_steps = log_every_n_steps
        self._pace = Pace(chosen, now)
        self._max_length = chosen.capacity
        self._batches: Iterator = iter(())
        self._held: deque[Any] = deque()
        """Batches that were fetched, and wait for the calls to come."""
        self._failure: Exception | SystemExit | None = None
        self._stacks: dict[BatchForm, BatchStack | BatchList | None] = {}
        self._stack: BatchStack | BatchList | None = None
        self._plans = engine.plans
        self._plan: Any = None
        self._fused: FusedCall | None = None
        self._thread: int | None = None

    def open(self, is_traced: bool) -> None:
        """Begin or continue to take batches; see `PlainFeed.open`."""
        self._batches = self._data.batches
        # What one of several processes notices alone must not change its calls.
        self._thread = None if self._is_shared else get_ident()
        self._pace.break_off()
        # Nobody asked for several: so a trace shows step by step, in the same program.
        self._max_length = 1 if is_traced and self._chosen.is_timed else self._chosen.capacity

    def take(self, step: int, room: float) -> Any:
        """The next batches, as many as can be trained on in one call.

        Args:
            step: The last step.
            room: How many steps may be made up to the next boundary.

        Raises:
            StopIteration: There are none.
        """
        self._data.listen(self._thread)
        try:
            return self._collect(step, room)
        finally:
            self._data.listen(None)

    def _collect(self, step: int, room: float) -> Any:
        batch = self._held.popleft() if self._held else self._fetch()
        self.holds_batch = bool(self._held)
        leaves, structure = tree_flatten(batch)
        stack = self._stack_of(batch, leaves, structure)
        self.latest = batch
        if stack is None:
            self._stack, self.num_steps = None, 1
            self._begins_anew = self._log_every_n_steps > 0 and step % self._log_every_n_steps == 0
            self.call = self._call_plain
            return copied_batch(batch)
        stack.begin()
        stack.add(leaves, structure)
        self.num_steps = self._fill(stack, min(room, self._max_length, self._pace.length(self.num_steps), stack.room))
        self._stack, self._plan = stack, self._plan_of(stack.capacity, step)
        self._fused = self._engine.fused_call(self._layout, stack.capacity, stack.is_listed)
        self.call = self._call_fused
        return stack.stacked()

    @property
    def program(self) -> Callable | None:
        """The jitted function that `call` runs, for what was taken last."""
        return self._plain if self._stack is None else self._fused

    def place(self, batches: Any) -> Any:
        """Bring what was taken on its way to the device."""
        if self._stack is None:
            return self._placement.place_train(batches)
        if self._stack.is_listed:
            return tuple(self._placement.place_train(batch) for batch in batches)
        if self._stack.form.is_on_device:  # and stays so for those who guard against transfers that nobody asked for
            return jax.device_put(batches)
        return self._placement.place_stacked(batches)

    def counting(self, count: Callable[[Any], int]) -> Callable[[Any], int]:
        """What counts the examples that were taken last; see `PlainFeed.counting`."""
        return lambda _: count(self.latest) * self.num_steps * self._placement.num_parts(self.latest)

    def _call_plain(self, carry: Any, vector: Any, batch: Any) -> tuple[Any, Any]:
        return self._plain(carry, self._fresh_vector if self._begins_anew else vector, batch)

    def _call_fused(self, carry: Any, vector: Any, batches: Any) -> tuple[Any, Any, Any]:
        assert self._fused is not None
        assert self._stack is not None
        result = self._fused(carry, vector, self._plan, batches)
        self._stack.hold_until(result[2])
        return result

    def _fetch(self) -> Any:
        """The loader's next batch, or what came up when it was asked for that before."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        batch = next(self._batches)
        if self._is_shared:
            self._placement.check_train_size(batch)
        return batch

    def _fill(self, stack: BatchStack | BatchList, length: float) -> int:
        """Add the loader's next batches to the first, as many as fit.

        Returns:
            How many there are now.
        """
        if self._data.gives_at_once and not self._is_shared:
            return self._fill_at_once(stack, int(length))
        return self._fill_one_by_one(stack, length)

    def _fill_at_once(self, stack: BatchStack | BatchList, length: int) -> int:
        held, num_wanted, is_over = self._held, length - 1, False
        batches = [held.popleft() for _ in range(min(num_wanted, len(held)))]
        if not self._stop.status:
            batches += self._data.take_some(num_wanted - len(batches))
            is_over = len(batches) < num_wanted
        if is_over:
            self._note_end()
        num_added = stack.add_all(batches)
        held.extendleft(reversed(batches[num_added:]))
        self.holds_batch = is_over or bool(held)
        if num_added:
            self.latest = batches[num_added - 1]
        return 1 + num_added

    def _note_end(self) -> None:
        """The loader has no more batches, which is said when those that it gave are trained on."""
        self._data.note_end()
        self._batches, self.holds_batch = self._data.batches, True

    def _fill_one_by_one(self, stack: BatchStack | BatchList, length: float) -> int:
        """What is in this loop is paid for at every step."""
        data, stop, is_shared, batches, add = self._data, self._stop, self._is_shared, self._batches, stack.add
        num_held = 1
        while num_held < length and not stop.status and (is_shared or not data.follows_training):
            try:
                batch = self._fetch() if is_shared else next(batches)
            except StopIteration:
                self._note_end()
                break
            except (Exception, SystemExit) as error:
                self._failure = error
                break
            if data.follows_training and not data.is_read_ahead:  # who reads ahead has said so
                self._warn_of_late_look(num_held)
            leaves, structure = tree_flatten(batch)
            if not add(leaves, structure):
                self._held.append(batch)
                self.holds_batch = True
                break
            self.latest, num_held = batch, num_held + 1
        return num_held

    def _warn_of_late_look(self, num_steps: int) -> None:
        """Say that the batch fetched last was made by a loader that looks at the training, which was not known yet.

        Args:
            num_steps: How many steps are to be made before the one with that batch.
        """
        LOGGER.warning(
            "train_loader looked at the trainer while it made a batch, and saw it as it was %d steps before; steps are "
            "made one by one from here on, and with steps_per_call=1 from the beginning",
            num_steps,
        )

    def _stack_of(self, batch: Any, leaves: list[Any], structure: Any) -> BatchStack | BatchList | None:
        """Where batches of this form are collected; None for those that are trained on one by one."""
        if self._stack is not None and self._stack.form.fits(leaves, structure):
            return self._stack
        form = BatchForm.of(leaves, structure)
        if form is None:
            return None
        if form not in self._stacks:
            check_leaves(batch)  # JAX itself takes some for what they are not, once it has compiled the call
            while len(self._stacks) >= _MAX_FORMS:
                del self._stacks[next(iter(self._stacks))]
            self._stacks[form] = self._build_stack(form)
        return self._stacks[form]

    def _build_stack(self, form: BatchForm) -> BatchStack | BatchList | None:
        is_listed = form.is_listed(self._engine.device_is_host)
        capacity = self._chosen.capacity_for(form.num_bytes, is_listed)
        if capacity == 1:
            return None
        if not form.is_on_device:
            return BatchStack(form, capacity)
        return BatchList(form, capacity, None if is_listed else BatchStack(form, capacity))

    def _plan_of(self, capacity: int, step: int) -> Any:
        """The plan of the call, on the device, where equal ones are made once."""
        every, num_steps = self._log_every_n_steps, self.num_steps
        since_row = step % every if every > 0 else 0
        has_row = every > 0 and -step % every < num_steps
        key = (capacity, num_steps, *((since_row, every) if has_row else (-1, -1)))
        if key not in self._plans:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = self._engine.on_all_devices(plan_steps(capacity, num_steps, step, every))
        return self._plans[key]


def first_call(
    engine: Engine, layout: MetricLayout, chosen: StepsPerCall, batch: Any
) -> tuple[Callable, tuple[Any, ...]]:
    """The jitted function that the first call will run, and what it takes beside the state and the metrics.

    Args:
        engine: What it runs on.
        layout: The metrics of the step.
        chosen: How many steps a call may make.
        batch: An example of the loader's batches.
    """
    form = None if chosen.program == "plain" else BatchForm.of(*tree_flatten(_with_values(batch)))
    is_listed = form is not None and form.is_listed(engine.device_is_host)
    capacity = 1 if form is None else chosen.capacity_for(form.num_bytes, is_listed)
    if capacity == 1:
        return engine.train_call(layout), (batch_form(batch),)
    plan = engine.on_all_devices(plan_steps(capacity, 1, 0, -1))
    batches = (batch_form(batch),) * capacity if is_listed else stacked_form(batch, capacity)
    return engine.fused_call(layout, capacity, is_listed), (plan, batches)


def _with_values(batch: Any) -> Any:
    """A batch that may give shapes only, with arrays of the host in their place, which take no memory."""

    def filled(leaf: Any) -> Any:
        is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape) if is_shape else leaf

    return jax.tree.map(filled, batch)
