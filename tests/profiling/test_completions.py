"""What calls took, worked out from the completions that were seen."""

import pytest

from trackside.profiling.completions import Call, CallSeries, CompletionAccount


@pytest.fixture
def account():
    return CompletionAccount()


class Records:
    """Calls to be told of, and what they were said to take."""

    def __init__(self, series=None):
        self.taken = []
        self._series = series

    def call(self, start_s, returned_s, is_after_pause=False):
        return Call(start_s, returned_s, (), self._record, self._series, is_after_pause)

    def _record(self, seconds, num_calls):
        self.taken += [seconds] * num_calls


def test_idle_time_between_calls_is_no_part_of_them(account):
    """A call that starts after the one before was complete is counted from its own start."""
    records = Records()
    account.add([records.call(0.0, 0.1)])
    account.settle(1.0)
    account.add([records.call(5.0, 5.1)])
    account.settle(7.0)
    assert records.taken == [1.0, 2.0]


def test_a_call_inside_of_another_is_part_of_it(account):
    """The outer call is counted from its own start, not from the completion of the inner one."""
    records = Records()
    account.add([records.call(1.0, 1.5)])
    account.settle(4.0)
    account.add([records.call(0.0, 2.0)])
    account.settle(6.0)
    assert records.taken == [3.0, 6.0]


def test_calls_without_a_pause_share_the_time(account):
    """Of three calls one after the other only the last was seen: together they take until then, from the first on."""
    records = Records()
    account.add([records.call(0.0, 0.1)])
    account.settle(2.0)
    account.add([records.call(0.1, 0.2), records.call(0.2, 0.3), records.call(0.3, 0.4)])
    account.settle(8.0)
    assert records.taken == [2.0, 2.0, 2.0, 2.0]


def test_calls_before_a_pause_count_as_those_after_it(account):
    """When the device had nothing to do between calls, that is no part of any; what was not seen is as what was."""
    records = Records(CallSeries())
    account.add([records.call(0.0, 0.1), records.call(0.1, 0.2), records.call(10.0, 10.1, is_after_pause=True)])
    account.settle(11.5)
    assert records.taken == [1.5, 1.5, 1.5]


def test_calls_before_a_pause_do_not_take_longer_than_until_its_end(account):
    """Where the ones seen took longer, those before the pause were over when it ended."""
    records = Records(CallSeries())
    account.add([records.call(0.0, 0.1), records.call(1.0, 1.1, is_after_pause=True)])
    account.settle(6.0)
    assert records.taken == [1.0, 5.0]


def test_calls_that_nobody_saw_count_as_those_seen_before(account):
    """They were complete some time before now; how long ago is not known, what such calls take is."""
    records = Records(CallSeries())
    account.add([records.call(0.0, 0.1)])
    account.settle(2.0)
    account.add([records.call(3.0, 3.1, is_after_pause=True)])
    account.settle_unseen(60.0)
    assert records.taken == [2.0, 2.0]


def test_without_anything_to_go_by_they_last_until_now(account):
    """Calls of which none was ever seen share the time up to when they were given up."""
    records = Records()
    account.add([records.call(0.0, 0.1), records.call(0.1, 0.2)])
    account.settle_unseen(6.0)
    assert records.taken == [3.0, 3.0]


def test_calls_of_several_functions_are_recorded_for_each(account):
    """Those that share the time up to a completion each go to their own record."""
    first, second = Records(), Records()
    account.add([first.call(0.0, 0.1), second.call(0.1, 0.2)])
    account.settle(4.0)
    assert (first.taken, second.taken) == ([2.0], [2.0])


def test_calls_from_before_a_reset_are_left_out(account):
    """Of calls that share the time, only those that returned after the reset are recorded."""
    records = Records()
    account.add([records.call(0.0, 0.1), records.call(1.0, 1.1)])
    account.forgotten_s = 0.5
    account.settle(4.0)
    assert records.taken == [2.0]


def test_arrays_are_let_go(account):
    """A call that is not recorded yet keeps no memory of the device."""
    call = Records().call(0.0, 0.1)
    call.arrays = [object()]
    account.add([call])
    assert call.arrays == ()
