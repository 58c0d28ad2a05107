"""When an array was ready, whoever noticed it late."""

from pathlib import Path

import jax.numpy as jnp
import pytest

from trackside.clock import SYSTEM_CLOCK, ManualClock
from trackside.profiling import wake_up
from trackside.profiling.wake_up import Cores, Waiter, late_by


def test_late_by_what_the_kernel_counted() -> None:
    """A thread that got a core once since it began to wait is late by as long as it had none."""
    assert late_by(Cores(1.0, 5), Cores(1.25, 6)) == 0.25
    assert late_by(Cores(1.0, 5), Cores(1.0, 5)) == 0.0


def test_not_known_after_several_waits() -> None:
    """A thread that got a core several times had to wait for something else, too: how late it is cannot be told."""
    assert late_by(Cores(1.0, 5), Cores(1.25, 7)) is None


def test_in_time_where_nobody_counts() -> None:
    """Without the kernel's figures a thread is taken to be in time."""
    assert late_by(None, None) == 0.0


class _Late:
    """An array that is ready at 2.0; the thread that waits for it notices at 2.5."""

    def __init__(self, clock: ManualClock):
        self._clock = clock

    def block_until_ready(self) -> None:
        self._clock.advance(2.5 - self._clock.now())


@pytest.mark.parametrize(("num_given", "expected"), [(1, (2.0, True)), (2, (2.5, False))])
def test_delay_is_taken_off(monkeypatch: pytest.MonkeyPatch, num_given: int, expected: tuple[float, bool]) -> None:
    """The time is that at which the array was ready, or else the time at which that was noticed, and says so."""
    clock = ManualClock(1.0)
    readings = iter([Cores(3.0, 10), Cores(3.5, 10 + num_given)])
    monkeypatch.setattr(Waiter, "read", lambda self: next(readings))
    assert Waiter(clock).wait_for(_Late(clock)) == expected


def test_waits_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An array that is waited for was ready between then and now, also where the kernel's file is missing."""
    for path in (wake_up._SCHEDSTAT, str(tmp_path / "none")):
        monkeypatch.setattr(wake_up, "_SCHEDSTAT", path)
        waiter, before_s = Waiter(SYSTEM_CLOCK), SYSTEM_CLOCK.now()
        ready_s, _ = waiter.wait_for(jnp.ones(3) + 1)
        waiter.close()
        assert before_s <= ready_s <= SYSTEM_CLOCK.now()
