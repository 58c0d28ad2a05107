"""What the host does between the calls of a loop that is not ours, written down as it happens.

A loop's own code tells when it begins and ends to do something: get a batch, log, anything that has a name. Writing
that down takes a fraction of a microsecond. It is accounted for together with the calls, several at once.
"""

import threading

from trackside.clock import Clock
from trackside.profiling.call_record import Span
from trackside.profiling.ledger import COMPILE, DISPATCH, OTHER, SETUP, Ledger

MAX_SPANS = 256
"""More are accounted for without waiting for a call."""


class HostTime:
    """The parts that a thread has been in since its last call.

    Args:
        ledger: Accounts for them.
        clock: Where times come from.

    Attributes:
        part: The part that it is in now.
        spans: Those it was in since the last call, each with the time of its end.
        depth: How many parts that the user named it is in.
        num_samples: Examples that were read since the last call.
        before: During a call, the spans before it that are not accounted for yet; None between calls.
        thread_id: Whose time it is.
        call_s: From when on a call is not accounted for yet.
    """

    def __init__(self, ledger: Ledger, clock: Clock):
        self.part = SETUP
        self.spans: list[Span] = []
        self.depth = 0
        self.num_samples = 0
        self.before: list[Span] | None = None
        self.call_s = 0.0
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
        before, self.part, spans = self.part, part, self.spans
        spans.append((before, self._now()))
        if len(spans) > MAX_SPANS and self.before is None:
            self._ledger.account()
            self._ledger.add_spans(spans)
            self.spans = []
        return before

    def end_set_up(self) -> None:
        """The loop begins: what comes between its calls is no longer set-up."""
        if self.part == SETUP:
            self.enter(OTHER)

    def settle(self) -> None:
        """Account for everything up to now."""
        self._ledger.account()
        now_s = self._now()
        if self.before is None:
            self.spans.append((self.part, now_s))
            self._ledger.add_spans(self.spans)
            self.spans = []
        else:
            self._ledger.add_spans([*self.before, (DISPATCH, now_s)])
            self.before, self.call_s = [], now_s

    def begin_compiling(self) -> None:
        """Something begins to be traced or compiled, whatever for."""
        self.settle()
        self._ledger.switch(COMPILE)

    def end_compiling(self) -> None:
        """It is over."""
        self._ledger.switch(OTHER)
        self.call_s = self._now()
