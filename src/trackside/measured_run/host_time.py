"""What the host does between the calls of a loop that is not ours, written down as it happens.

A loop's own code tells when it begins and ends to do something: get a batch, log, anything that has a name. Writing
that down takes a fraction of a microsecond. It is accounted for together with the calls, several at once.
"""

import threading
import time
from collections.abc import Callable

from trackside.clock import Clock
from trackside.measured_run.call_output import COMPLETE
from trackside.profiling.call_record import CallRecord, Span
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import COMPILE, DATA_WAIT, DISPATCH, OTHER, SETUP
from trackside.profiling.wake_up import Waiter

MAX_SPANS = 256
"""More are accounted for without waiting for a call."""


class HostTime:
    """The parts that a thread has been in since its last call.

    Args:
        ledger: Accounts for them.
        clock: Where times come from.
        thread_time: How long this thread has computed.
        process_time: How long all threads of the process have computed.

    Attributes:
        part: The part that it is in now.
        spans: Those it was in since the last call, each with the time of its end.
        waits_s: Since when it waits for a batch, or has waited for the last one, if nothing else came since the last
            call; None if something did, or no batch.
        batch_s: When it had that batch. If it does not have it yet, a time before `waits_s`.
        depth: How many parts that the user named it is in.
        mode: What is logged there counts as: `train`, or `val` and `test` in parts of these names and those inside.
        num_samples: Examples that were read since the last call.
        stack: The first two lengths of a batch, which may be several in one.
        before: During a call, the spans before it that are not accounted for yet; None between calls.
        thread_id: Whose time it is.
        call_s: From when on a call is not accounted for yet.
        watched: A call after which it is of interest how long the thread computes.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        thread_time: Callable[[], float] = time.thread_time,
        process_time: Callable[[], float] = time.process_time,
    ):
        self.part = SETUP
        self.spans: list[Span] = []
        self.waits_s: float | None = None
        self.batch_s = 0.0
        self.depth = 0
        self.mode = "train"
        self.num_samples = 0
        self.stack: tuple[int, int] = (0, 0)
        self.before: list[Span] | None = None
        self.call_s = 0.0
        self.watched: CallRecord | None = None
        self._has_begun = False
        self._waiter = Waiter(clock)
        self._computed_s = self._late_s = 0.0
        self._thread_time = thread_time
        self._process_time = process_time
        self._by_part: dict[str, float] | None = None
        """What the process has computed since the call that is watched, if the process itself is the device."""
        self._ledger = ledger
        self._now = clock.now
        self.thread_id = threading.get_ident()

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the thread whose time it is."""
        return threading.get_ident() == self.thread_id

    def enter(self, part: str) -> str:
        """From now on, be in another part.

        Returns:
            The part that it was in.
        """
        if self.watched is not None:
            self.note_computing()
        before, self.part, spans = self.part, part, self.spans
        self.end_span(before, self._now())
        if len(spans) > MAX_SPANS:
            self._ledger.account()
            self._ledger.add_spans(spans)
            self.spans = []
        return before

    def end_span(self, part: str, until_s: float) -> None:
        """Write down that it was in a part until now. Inside of a call, nothing is: its time is the call's.

        Args:
            part: The part.
            until_s: What the clock shows.
        """
        if self.before is None:
            if self.waits_s is not None:
                self.write_down_wait()
            self.spans.append((part, until_s))
            if self._by_part is not None:
                self._add_computed(self._by_part, part)

    def write_down_wait(self) -> None:
        """Write down when it waited for a batch, which was not all that came before the next call."""
        assert self.waits_s is not None
        spans = self.spans if self.before is None else self.before
        spans.append((OTHER, self.waits_s))
        if self.batch_s >= self.waits_s:
            spans.append((DATA_WAIT, self.batch_s))
        self.waits_s = None

    def watch_computing(self, call: CallRecord) -> None:
        """From now on, until something else is known of it, see how long the thread computes and how long it waits.

        After a call that was over when it returned, there is nothing to wait for. The process is the device, and it is
        of interest how long it computes in each part until the next call.

        Args:
            call: The call that has just returned.
        """
        self.watched = call
        if call.report is COMPLETE:
            self._by_part, self._computed_s = {}, self._process_time() + self._late()
        else:
            self._late_s, self._computed_s = self._late(), self._thread_time()

    def note_computing(self) -> None:
        """Something is known again of what the thread does: note what it has computed until now."""
        assert self.watched is not None
        if self._by_part is None:
            call, self.watched = self.watched, None
            call.host_cpu_s, call.host_late_s = self._thread_time() - self._computed_s, self._late() - self._late_s
        elif not self.spans:
            self.end_span(self.part, self._now())  # from now on, until the call, each part is written down

    def end_watch(self) -> None:
        """A call begins: all is known of the time since the one that is watched."""
        assert self.watched is not None
        if self._by_part is None:
            self.note_computing()
            return
        self._add_computed(self._by_part, self.part)
        self.watched.computed_after, self._by_part, self.watched = self._by_part, None, None

    def _add_computed(self, by_part: dict[str, float], part: str) -> None:
        """Count for a part what was computed since the last look; a thread that only lacks a core counts as well."""
        before_s, self._computed_s = self._computed_s, self._process_time() + self._late()
        by_part[part] = by_part.get(part, 0.0) + self._computed_s - before_s

    def _late(self) -> float:
        """How long the thread had no core so far, where the kernel says so."""
        cores = self._waiter.read()
        return 0.0 if cores is None else cores.waited_s

    def close(self) -> None:
        """Let go of what is held open, and measure no batches that are still taken."""
        self.watched, self._by_part, self.depth = None, None, 1
        self._waiter.close()

    def begin_call(self, now_s: float) -> None:
        """A call begins, with something before it that is not a batch alone."""
        if self.waits_s is not None:
            self.write_down_wait()
        if self.part != OTHER or not self.spans:  # else the ledger knows: what is left before a call is "other"
            self.spans.append((self.part, now_s))
        self.spans, self.before, self.call_s = [], self.spans, now_s

    def end_failed_call(self, now_s: float) -> None:
        """A call has failed: it is part of what comes before the next one."""
        assert self.before is not None
        if self.waits_s is not None:
            self.write_down_wait()
        self.spans, self.before = [*self.before, (OTHER, self.call_s), (DISPATCH, now_s)], None

    def end_set_up(self) -> None:
        """The loop begins: what comes between its calls is no longer set-up."""
        self._has_begun = True
        if self.part == SETUP:
            self.enter(OTHER)

    def leave(self, before: str) -> None:
        """Go back to the part that it was in before the one that it is in now; to set-up only if that is not over."""
        self.enter(OTHER if before == SETUP and self._has_begun else before)

    def settle(self) -> None:
        """Account for everything up to now."""
        self._ledger.account()
        now_s = self._now()
        if self.waits_s is not None:
            self.write_down_wait()
        if self.before is None:
            self.spans.append((self.part, now_s))
            self._ledger.add_spans(self.spans)
            self.spans = []
        else:
            self._ledger.add_spans([*self.before, (OTHER, self.call_s), (DISPATCH, now_s)])
            self.before, self.call_s = [], now_s
        self._ledger.take_longest()  # what it saw itself says little of what comes before the next call

    def begin_after(self, part: str) -> None:
        """Go on after something that is accounted for, and is why the device waits for the next call, if it does."""
        if self._ledger.is_running:
            (self.spans if self.before is None else self.before).append((part, self._now()))

    def begin_compiling(self) -> None:
        """Something begins to be traced or compiled, whatever for."""
        self.settle()
        self._ledger.switch(COMPILE)

    def end_compiling(self) -> None:
        """It is over. What comes next does not follow the last call: nobody is to take this for a wait for that."""
        self._ledger.switch(OTHER)
        self.begin_after(COMPILE)
        self.call_s = self._now()
