"""Where the batches of a training come from: a loader that is opened, put to a position, and read to its end.

No batch is used ahead of its step, and the position that is saved is that of the last step: where a look ahead was
needed to see whether an epoch is over, the position from before it is saved. Where batches are read ahead
(`read_ahead.py`), each comes with its position.
"""

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from threading import get_ident
from typing import Any

from trackside.errors import DataError
from trackside.profiling.timers.timed_loader import TimedIterator, without_timers
from trackside.trainer.buffer_guard import AheadGuard, BufferGuard
from trackside.trainer.cursor import Cursor
from trackside.trainer.first_look import FirstLook
from trackside.trainer.goal import Goal
from trackside.trainer.loaders import (
    decode_position,
    get_position,
    has_position,
    is_repeatable,
    set_epoch,
    set_position,
)
from trackside.trainer.read_ahead import NOT_AHEAD, STOP_TIMEOUT_S, AheadPlan, ReadAhead

LOGGER = logging.getLogger(__name__)

_END = object()
_PLAIN_ITERATORS = (type(iter([])), type(iter(())))


class TrainData:
    """The loader of a training, and where it is. Outlives a call of the training, which may continue later."""

    def __init__(self) -> None:
        self._ahead: ReadAhead | None = None
        self.forget()

    def forget(self) -> None:
        """Begin with a loader from its start."""
        self._let_go()
        self.batches: Iterator = iter(())
        """The batches to come."""
        self.guard = BufferGuard((), 1)
        """Protects batches from being overwritten by the loader."""
        self.follows_training = False
        """Whether the loader has looked at the training to make a batch, so that each waits for the step before."""
        self._fetching_thread: int | None = None
        self._loader: Any = None
        self._iterator: Any = None
        self._goal: Goal | None = None
        self._is_stream = False
        self._gives_at_once = False
        self._plan = NOT_AHEAD
        self._first_look = FirstLook()
        self._was_finished = False
        self._num_passes = 0  # of a stream, those that were begun
        self._num_in_flight = self._most_in_flight = 1
        self._opened_at_step = -1
        self._is_exhausted = False
        self._looked_ahead: tuple[int, Any] | None = None  # after which step, and the position before that
        self._saved: Any = None
        self._is_restored = False
        self._has_warned = False

    # --- saving and restoring -----------------------------------------------------------------------------------------

    def position(self, step: int) -> Any:
        """Where the loader is after `step`, as JSON can hold it; None if it cannot say."""
        if self._looked_ahead is not None and self._looked_ahead[0] == step:
            return self._looked_ahead[1]
        is_of_loader = not has_position(self._iterator)
        position = get_position(self._positioned) if self._ahead is None else self._ahead.position()
        if position is None:
            return None
        of = {"of": "loader"} if is_of_loader else {}
        passes = (
            {"num_passes": self._num_passes} if self._is_stream else {"is_over": True} if self._is_exhausted else {}
        )
        return {**position, **of, **passes}

    @property
    def _positioned(self) -> Any:
        """Who has the position."""
        return self._iterator if has_position(self._iterator) else self._loader

    def restore(self, saved: Any) -> None:
        """Put the loader, once it is there, to a saved position, or skip the batches that were trained on."""
        self.forget()
        self._saved, self._is_restored = saved, True

    # --- opening ------------------------------------------------------------------------------------------------------

    def connect(
        self,
        loader: Iterable,
        goal: Goal,
        num_in_flight: int,
        most_in_flight: int,
        plan: AheadPlan,
        first_look: FirstLook,
    ) -> None:
        """Say which loader the training reads.

        Args:
            loader: The loader. One that was read before continues where it is.
            goal: How far the training goes.
            num_in_flight: How many calls may be under way while the loader makes the next batch.
            most_in_flight: How many may be later, when all batches are copied that the loader could write into.
            plan: How many batches to read ahead.
            first_look: Who has looked at the loader before.
        """
        if loader is not self._loader:
            self._let_go()
            self._iterator, self.follows_training = None, False
        self._loader, self._plan, self._first_look = loader, plan, first_look
        self._num_in_flight, self._most_in_flight = num_in_flight, most_in_flight
        self._goal, self._is_stream = goal, goal.is_stream

    def rest(self) -> None:
        """Read no more until the training continues. What was read ahead is kept for that."""
        if self._ahead is not None:
            self._ahead.stop(STOP_TIMEOUT_S)

    def _let_go(self) -> None:
        """Read no more from a loader that is done with."""
        if self._ahead is not None:
            self._ahead.stop(STOP_TIMEOUT_S)
            self._ahead = None

    def open_epoch(self, cursor: Cursor, is_new: bool) -> None:
        """Have batches for an epoch that begins, or that continues."""
        if self._is_restored:
            self._is_restored = False
            self._resume(cursor, is_new)
        elif self._iterator is None or (is_new and not self._is_stream):
            self._open(cursor)
        self._begin_to_read(cursor)

    def start_again(self, cursor: Cursor) -> bool:
        """Start the loader again when it has run out.

        Returns:
            False if the epoch is over with it.
        """
        self._is_exhausted = True
        if cursor.step == self._opened_at_step:
            raise DataError(
                f"train_loader: gave no batch at step {cursor.step + 1} in epoch {cursor.epoch}. An iterator can be "
                "read only once: pass a loader that starts again each time, or fewer epochs"
            )
        if not self._is_stream:
            return False
        self._open(cursor)
        self._begin_to_read(cursor)
        return True

    def _begin_to_read(self, cursor: Cursor) -> None:
        """Read ahead, up to where the training or the pass is to end: what a loader does then, it does in time."""
        if self._ahead is not None and not self._is_exhausted:
            assert self._goal is not None
            end = self._goal.last_step if self._is_stream else self._goal.epoch_end(cursor)
            self._ahead.allow(end - cursor.step)

    def _open(self, cursor: Cursor) -> None:
        """Begin the next pass."""
        if self._ahead is not None:
            self._hand_back(self._ahead)
        self._num_passes += 1
        self._tell_epoch(cursor)
        self._open_iterator(cursor)

    def _tell_epoch(self, cursor: Cursor) -> None:
        """Tell the loader which epoch it is, from 0; of a stream, which pass, so that no two have the same order."""
        set_epoch(self._loader, max((self._num_passes if self._is_stream else cursor.epoch) - 1, 0))

    def _open_iterator(self, cursor: Cursor) -> None:
        before = self._iterator
        self._iterator, batches = self._first_look.open(self._loader, "train_loader")
        is_same = self._iterator is before and not self._is_exhausted
        # A batch that was looked at belongs to an iterator that has no end of its own and is read on.
        is_held = is_same and self._looked_ahead is not None
        if self._plan.num_batches:
            self._open_ahead(batches, is_same)
        elif not is_held:
            self._let_go()
            self.batches = batches
        self._looked_ahead = self._looked_ahead if is_held else None
        self._gives_at_once = self._ahead is None and type(without_timers(self._iterator)) in _PLAIN_ITERATORS
        self.guard = BufferGuard(() if self._ahead is not None else self._loader, self._num_in_flight)
        self._opened_at_step, self._is_exhausted, self._was_finished = cursor.step, False, False

    def _open_ahead(self, batches: Iterator, is_same: bool) -> None:
        """Have somebody who reads ahead.

        Args:
            batches: Where the batches come from.
            is_same: Whether the iterator was read before, so that what was read ahead of it comes first.
        """
        if self._ahead is None or not is_same or not self._ahead.has_unread:
            source = self._positioned
            get = partial(get_position, source) if has_position(source) else None
            guard = AheadGuard(self._loader, self._most_in_flight + self._plan.num_batches)
            self._ahead = ReadAhead(batches, get, guard, self._plan, self.follows_training)
        self.batches = self._ahead

    def _hand_back(self, ahead: ReadAhead) -> None:
        """Put the loader of a pass that was left early to where the training has left it, if it can be put there."""
        ahead.stop()
        is_live = self._iterator is self._loader or not has_position(self._iterator)
        if self._is_exhausted or self._was_finished or not is_live or not ahead.has_unread:
            return
        if has_position(self._positioned):
            set_position(self._positioned, decode_position(ahead.position()))
            ahead.drop_unread()

    def listen(self, thread: int | None) -> None:
        """Listen to `note_look` while batches are fetched.

        Args:
            thread: The thread that fetches them: others may look at the training whenever they like. None when it is
                done.
        """
        self._fetching_thread = thread

    def note_look(self) -> None:
        """Somebody looks at the training's state or step, which may be the loader."""
        is_fetching = self._fetching_thread is not None and self._fetching_thread == get_ident()
        if is_fetching or (self._ahead is not None and self._ahead.note_look(get_ident())):
            self.follows_training = True

    @property
    def is_read_ahead(self) -> bool:
        """Whether batches are made before they are asked for, as far as the loader lets them be."""
        return self._ahead is not None

    @property
    def gives_at_once(self) -> bool:
        """Whether several batches can be taken at a time, since the loader runs no code to make them."""
        return self._gives_at_once

    def take_some(self, most: int) -> list[Any]:
        """The next batches of a loader that gives them at once: as many as are wanted, or fewer at its end."""
        batches = self.batches
        return batches.take_some(most) if isinstance(batches, TimedIterator) else list(islice(batches, most))

    def note_end(self) -> None:
        """The loader has said that the pass is over, which an iterator need not say twice."""
        self._is_exhausted, self.batches = True, iter(())

    @property
    def is_exhausted(self) -> bool:
        """Whether the pass over the loader is known to be over."""
        return self._is_exhausted

    # --- the end of an epoch ------------------------------------------------------------------------------------------

    def is_over(self, step: int) -> bool:
        """Whether the pass over the loader is over, which may take a look at the next batch.

        Args:
            step: The step that was made last. All steps have to be complete: the loader may overwrite their batches.
        """
        if self._ahead is not None and not self._is_exhausted:
            if self._ahead.is_over():
                self.note_end()
        elif not self._is_exhausted and (self._looked_ahead is None or self._looked_ahead[0] != step):
            before = self.position(step)
            batch = next(self.batches, _END)
            self._is_exhausted = batch is _END
            self._looked_ahead = step, (self.position(-1) if self._is_exhausted else before)
            self.batches = iter(()) if self._is_exhausted else chain((batch,), self._iterator)
        return self._is_exhausted

    def finish_pass(self, step: int) -> None:
        """Read a loader with a length to its end, so that what it does after its last batch happens."""
        self._was_finished = True
        if self._is_stream or self.is_over(step) or self._has_warned:
            return
        self._has_warned = True
        LOGGER.info(
            "train_loader gives more batches than its length says; an epoch is as many as the length, and the rest are "
            "used only if the loader continues with them"
        )

    # --- resuming -----------------------------------------------------------------------------------------------------

    def _resume(self, cursor: Cursor, is_new: bool) -> None:
        """Put the loader to where a restored training is, as if it had never stopped."""
        saved, self._saved = self._saved, None
        continues = self._is_stream or not is_new
        if saved is None:
            self._skip(cursor, is_new)
        elif continues:
            self._num_passes = saved.get("num_passes", 1)
            self._tell_epoch(cursor)  # first: some loaders begin an epoch when they are told
            if saved.get("of") == "loader":
                self._set(self._loader, saved, cursor)
            self._open_iterator(cursor)
            if saved.get("of") != "loader":
                self._set(self._iterator, saved, cursor)
            if saved.get("is_over") and not self._is_stream:
                self.note_end()  # the epoch has no more batches, wherever the loader is since then
        else:
            if saved.get("of") == "loader" or isinstance(self._loader, Iterator):
                self._set(self._loader, saved, cursor)  # where the last epoch has left it
            self._open(cursor)
        self._opened_at_step = -1 if continues else cursor.step

    def _set(self, source: Any, saved: Any, cursor: Cursor) -> None:
        if not set_position(source, decode_position(saved)):
            raise DataError(
                f"train_loader: a position was saved for step {cursor.step}, and {type(source).__name__} has no way to "
                "be put there; use the kind of loader that the training was started with"
            )

    def _skip(self, cursor: Cursor, is_new: bool) -> None:
        """Skip the batches that were trained on, of a loader that has no position."""
        if isinstance(self._loader, Iterator) and not self._is_stream and cursor.epoch > 1:
            self._read_earlier_epochs(cursor)
        self._open(cursor)
        num_skipped = cursor.step if self._is_stream else 0 if is_new else cursor.step - cursor.epoch_start_step
        num_left = num_skipped - self._pass_over(num_skipped)
        while num_left > 0:
            self._open(cursor)
            if not (num_read := self._pass_over(num_left)):
                break  # there are none to train on either, which is an error of its own
            num_left -= num_read
        if cursor.step and not is_repeatable(self._loader):
            LOGGER.warning(
                "train_loader (%s) has no position that can be restored: %s skipped. The training continues exactly "
                "only if the loader gives the same batches in each epoch; otherwise give it set_epoch(epoch), or "
                "get_state and set_state",
                type(self._loader).__name__,
                "1 batch was" if num_skipped == 1 else f"{num_skipped} batches were",
            )

    def _read_earlier_epochs(self, cursor: Cursor) -> None:
        """Read an iterator, which cannot be started again, up to the epoch that begins or continues."""
        epoch, num_left = 1, cursor.epoch_start_step
        self._open(Cursor(epoch=epoch))
        while epoch < cursor.epoch:
            num_left -= self._pass_over(num_left)
            if num_left <= 0:
                break
            epoch += 1
            self._open(Cursor(epoch=epoch))
        self.is_over(cursor.epoch_start_step)  # what it does after its last batch belongs to the epoch before

    def _pass_over(self, number: int) -> int:
        """Read past batches, and give how many there were: fewer at the loader's end, which is then known."""
        ahead = self._ahead
        num_read = sum(1 for _ in islice(self.batches, number)) if ahead is None else ahead.skip(number)
        self._is_exhausted = self._is_exhausted or num_read < number
        return num_read
