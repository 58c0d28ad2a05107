"""The ledger: where the wall time of a thread goes, all of it.

Exactly one part is running at any moment, so the parts add up to the whole. What happens inside another part counts for
itself only: a checkpoint that a callback saves counts as checkpointing, not for the callback.
"""

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.profiling.call_record import CallRecord, Span
from trackside.profiling.ledger_totals import (
    COMPILE,
    DATA_WAIT,
    DEVICE_WAIT,
    DISPATCH,
    HOST_TO_DEVICE,
    OTHER,
    PARTS,
    VALIDATION,
    LedgerTotals,
    is_once,
)

NOTED_STRETCH_S = 0.1
"""A stretch of a part that is longer is remembered, as what may have stalled the loop."""
_MAX_COMPILES = 1024  # that are remembered until the call that they were part of is accounted for


class Ledger:
    """Keeps account of a thread's time. Costs nothing while it is stopped.

    For hand-written loops:

        ledger = Ledger()
        with ledger:
            for _ in range(num_steps):
                with ledger.spend("data_wait"):
                    batch = next(batches)
                with ledger.spend("dispatch"):
                    state, loss = step(state, batch)
                ledger.num_steps += 1
        print(ledger.totals().parts)

    Args:
        clock: Where times come from.

    Attributes:
        calls: Calls of a training step that are not accounted for yet. A loop adds to it; they are accounted for
            several at once, which costs less than one by one, and before anything else is.
        num_steps: Training steps so far.
        num_samples: Examples so far.
        num_tokens: Tokens so far.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK):
        self._now = clock.now
        self._part = OTHER
        self._since_s: float | None = None
        self._stopped_s: float | None = None
        self._thread_id = 0  # whose time it is
        self._compiling: tuple[str, float] | None = None  # the part that a compile interrupts, and when it began
        self._gc = _GarbageWatch(clock, lambda: not is_once(self._part))
        self._take_calls: Callable[[list[CallRecord]], None] = self.add_calls
        self.calls: list[CallRecord] = []
        self.reset()

    def reset(self, since: LedgerTotals | None = None) -> None:
        """Begin again, also if it is running.

        Args:
            since: What was accounted for elsewhere. What was spent after it is kept; by default nothing is.
        """
        kept = None if since is None else self.totals().since(since)
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._compiles: deque[tuple[float, float]] = deque(maxlen=_MAX_COMPILES)
        self._longest, self._longest_s = OTHER, 0.0
        self._outside_s = 0.0
        if kept is not None:
            self._seconds.update(kept.parts)
            self._outside_s = kept.outside_s
        self._since_s = None if self._since_s is None else self._now()
        self._gc.seconds = 0.0
        self.calls.clear()
        self.num_steps = self.num_samples = self.num_tokens = 0
        self._stretches: dict[str, float] = {}

    @property
    def is_running(self) -> bool:
        """Whether account is kept now."""
        return self._since_s is not None

    def start(self, take_calls: Callable[[list[CallRecord]], None] | None = None) -> None:
        """Begin to keep account, or continue. The time since it was stopped was spent outside.

        Args:
            take_calls: Accounts for calls by `add_calls`, and does what else has to be done with them; by default
                they are accounted for and that is all.
        """
        if self._since_s is None:
            self._since_s, self._part, self._thread_id = self._now(), OTHER, threading.get_ident()
            if self._stopped_s is not None:
                self._outside_s += self._since_s - self._stopped_s
            self._take_calls = self.add_calls
            self._gc.start()
        if take_calls is not None:
            self._take_calls = take_calls

    def stop(self) -> None:
        """Stop. `start` continues."""
        if self._since_s is not None:
            self.switch(OTHER)
            self._stopped_s, self._since_s = self._since_s, None
            self._gc.stop()

    def account(self) -> None:
        """Account for the calls in `calls`."""
        if self.calls:
            calls = self.calls[:]
            self.calls.clear()
            self._take_calls(calls)

    def __enter__(self) -> "Ledger":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def switch(self, part: str) -> str:
        """From now on, time counts for another part.

        Returns:
            The part that it counted for until now.
        """
        if self.calls:
            self.account()
        before, since_s = self._part, self._since_s
        if since_s is not None:
            now_s = self._now()
            seconds, elapsed_s = self._seconds, now_s - since_s
            seconds[before] = seconds.get(before, 0.0) + elapsed_s
            self._since_s = now_s
            self._part = part
            if elapsed_s > self._longest_s and before not in (OTHER, DEVICE_WAIT, VALIDATION):
                self._longest, self._longest_s = before, elapsed_s
            if elapsed_s > NOTED_STRETCH_S:
                self._note_stretch(before, elapsed_s)
        return before

    @contextmanager
    def spend(self, part: str) -> Iterator[None]:
        """The time of a block counts for a part, unless it is another thread's."""
        if threading.get_ident() != self._thread_id:
            yield
            return
        before = self.switch(part)
        try:
            yield
        finally:
            self.switch(before)

    def begin_compiling(self) -> None:
        """From now on, something is traced or compiled, whatever for."""
        before = self.switch(COMPILE)
        self._compiling = None if self._since_s is None else (before, self._since_s)

    def end_compiling(self) -> None:
        """From now on, time counts again for the part that was interrupted."""
        if self._compiling is None or self._since_s is None:
            return
        (before, began_s), self._compiling = self._compiling, None
        self.switch(before)
        self._compiles.append((began_s, self._since_s))

    def add_calls(self, calls: Sequence[CallRecord]) -> None:
        """Account for calls of the training step, from the times that the loop has taken anyway."""
        since_s = self._since_s
        if since_s is None:
            return
        other_s = data_wait_s = host_to_device_s = device_wait_s = dispatch_s = 0.0
        num_steps = num_samples = 0
        for call in calls:
            for part, until_s in call.before:  # as `_add_spans` does; most are of these two parts, at every step
                elapsed_s = until_s - since_s
                if part == DATA_WAIT:
                    data_wait_s += elapsed_s
                elif part == OTHER and elapsed_s < NOTED_STRETCH_S:
                    other_s += elapsed_s
                else:
                    self._add_spans(((part, until_s),), since_s)
                since_s = until_s
            started_s, ready_s, dispatched_s = call.started_s, call.ready_s, call.dispatched_s
            other_s += started_s - since_s
            if started_s - since_s > NOTED_STRETCH_S:
                self._note_stretch(OTHER, started_s - since_s)
            if started_s != ready_s:  # a loop that is not ours may have these in what came before
                batch_s, placed_s = call.batch_s, call.placed_s
                data_wait_s += batch_s - started_s
                host_to_device_s += placed_s - batch_s
                if call.was_blocked:
                    device_wait_s += ready_s - placed_s
                else:
                    other_s += ready_s - placed_s
            dispatch_s += dispatched_s - ready_s
            since_s = dispatched_s
            num_steps += call.num_steps
            num_samples += call.num_samples
        self.num_steps += num_steps
        self.num_samples += num_samples
        seconds, self._since_s = self._seconds, since_s
        seconds[OTHER] += other_s
        seconds[DATA_WAIT] += data_wait_s
        seconds[HOST_TO_DEVICE] += host_to_device_s
        seconds[DEVICE_WAIT] += device_wait_s
        seconds[DISPATCH] += dispatch_s
        if self._compiles:
            self._leave_out_compiles(calls)

    def add_spans(self, spans: Sequence[Span]) -> None:
        """Account for what the host did without a call, from the time up to which everything is accounted for.

        Args:
            spans: The parts it was in, one after the other, each with the time of its end.
        """
        if self._since_s is not None:
            self._since_s = self._add_spans(spans, self._since_s)

    def _add_spans(self, spans: Sequence[Span], since_s: float) -> float:
        seconds, long_s = self._seconds, NOTED_STRETCH_S
        for part, until_s in spans:
            elapsed_s = until_s - since_s
            try:
                seconds[part] += elapsed_s
            except KeyError:  # one that the user named, for the first time
                seconds[part] = elapsed_s
            if elapsed_s > long_s and part != DATA_WAIT:
                self._note_stretch(part, elapsed_s)
            since_s = until_s
        return since_s

    def _note_stretch(self, part: str, elapsed_s: float) -> None:
        self._stretches[part] = max(self._stretches.get(part, 0.0), elapsed_s)

    def _leave_out_compiles(self, calls: Sequence[CallRecord]) -> None:
        """Take compiles out of the calls that they were part of.

        When a compile began and ended, nothing was known of the call around it yet. So the time before the compile was
        counted for the part in force, and once more, with the compile, for the parts of the call.
        """
        for call in calls:
            for began_s, ended_s in self._compiles:
                if call.started_s <= began_s and ended_s <= call.dispatched_s:
                    self.move(_part_at(call, ended_s), OTHER, ended_s - began_s)
        accounted_s = calls[-1].dispatched_s if calls else 0.0
        while self._compiles and calls and self._compiles[0][0] < accounted_s:
            self._compiles.popleft()

    def longest_stretches(self) -> dict[str, float]:
        """The longest time that it was in a part without interruption, by part, where it was long."""
        return dict(self._stretches)

    def take_longest(self) -> str:
        """The part with the longest uninterrupted stretch since the last call of this, apart from steps."""
        longest, self._longest, self._longest_s = self._longest, OTHER, 0.0
        return longest

    def move(self, source: str, target: str, seconds: float) -> None:
        """Move time that was counted for one part to another."""
        self._seconds[source] -= seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def parts(self) -> dict[str, float]:
        """The seconds by part, up to what was accounted for last."""
        return dict(self._seconds)

    def totals(self) -> LedgerTotals:
        """What the ledger shows now."""
        self.switch(self._part)
        parts = dict(self._seconds)
        return LedgerTotals(
            sum(parts.values()),
            parts,
            self.num_steps,
            self.num_samples,
            self.num_tokens,
            self._gc.seconds,
            outside_s=self._outside_s,
        )


def _part_at(call: CallRecord, end_s: float) -> str:
    """The part of a call in which something ended."""
    ends = (
        (DATA_WAIT, call.batch_s),
        (HOST_TO_DEVICE, call.placed_s),
        (DEVICE_WAIT if call.was_blocked else OTHER, call.ready_s),
    )
    return next((part for part, part_end_s in ends if end_s <= part_end_s), DISPATCH)


class _GarbageWatch:
    """How long Python's garbage collection has taken, in any thread, at times that count."""

    def __init__(self, clock: Clock, counts_now: Callable[[], bool]):
        self.seconds = 0.0
        self._now = clock.now
        self._counts_now = counts_now
        self._started_s = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started_s = self._now()
        elif self._counts_now():
            self.seconds += self._now() - self._started_s
