"""A thread notes in records when their calls completed."""

import math
import threading

import pytest

from trackside.clock import ManualClock
from trackside.profiling.call_record import CallRecord
from trackside.profiling.completion_watch import LOOK_EVERY_S, CompletionWatch
from trackside.profiling.wake_up import Waiter


class Report:
    """A report that is ready after `set_ready`, and then raises an error if it has one."""

    def __init__(self, error: Exception | None = None):
        self.is_awaited = threading.Event()
        self._ready = threading.Event()
        self._error = error

    def set_ready(self) -> None:
        self._ready.set()

    def is_ready(self) -> bool:
        return self._ready.is_set()

    def block_until_ready(self) -> None:
        self.is_awaited.set()
        self._ready.wait()
        if self._error is not None:
            raise self._error


def record(report: Report) -> CallRecord:
    return CallRecord(1, 1, 1, 1, 0.0, 0.0, 0.0, 0.0, 0.0, False, False, report, None)


@pytest.fixture
def watch() -> CompletionWatch:
    watch = CompletionWatch(ManualClock(7.0))
    yield watch
    watch.close()


def test_completion_is_noted(watch: CompletionWatch) -> None:
    """Each call gets the time at which it completed; one that failed gets none, and those after it still do."""
    calls = [record(Report()), record(Report(ValueError("failed"))), record(Report())]
    for call in calls:
        watch.watch(call)
        call.report.is_awaited.wait()
        call.report.set_ready()
    watch.close()
    assert [call.seen_s for call in calls] == [7.0, math.inf, 7.0]


def test_late_thread_notes_the_latest_time(watch: CompletionWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the thread cannot say how late it was, the call completed at the latest when it noticed."""
    monkeypatch.setattr(Waiter, "wait_for", lambda self, array: (9.0, False))
    call = record(Report())
    watch.watch(call)
    watch.close()
    assert (call.seen_s, call.found_s) == (math.inf, 9.0)


def test_call_that_is_complete_already(watch: CompletionWatch) -> None:
    """Of a call that completed before the thread looked, it has seen only that it is complete."""
    call = record(Report())
    call.report.set_ready()
    watch.watch(call)
    watch.close()
    assert call.seen_s == math.inf
    assert call.found_s < math.inf


def test_last_call_is_looked_for(watch: CompletionWatch) -> None:
    """A loop that gives no calls to watch loses nothing: the thread finds the last one, and the next after it."""
    calls = [record(Report()), record(Report())]
    last = calls[0]
    watch.look_for(lambda: last)
    for last in calls:
        assert last.report.is_awaited.wait(60)
        last.report.set_ready()
    watch.close()
    assert [call.seen_s for call in calls] == [7.0, 7.0]


def test_nobody_looks_any_longer(watch: CompletionWatch) -> None:
    """Once the last call is not to be looked for, only calls that are given are noted."""
    last, given, unseen = record(Report()), record(Report()), record(Report())
    watch.look_for(lambda: last)
    assert last.report.is_awaited.wait(60)
    watch.look_for(None)
    last.report.set_ready()
    watch.watch(given)
    assert given.report.is_awaited.wait(60)
    last = unseen  # the thread is busy with the call that it was given, and does not look after it
    given.report.set_ready()
    was_looked_for = unseen.report.is_awaited.wait(5 * LOOK_EVERY_S)
    unseen.report.set_ready()
    watch.close()
    assert not was_looked_for
    assert given.seen_s == 7.0
