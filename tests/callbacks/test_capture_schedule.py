"""When captures are planned, and what else asks for one."""

from pathlib import Path

from trackside.callbacks.capture_schedule import Periodic, StepWindow
from trackside.callbacks.capture_triggers import LookAround, OnDemand, OnSlowStep
from trackside.clock import ManualClock
from trackside.profiling.call_record import CallRecord
from trackside.profiling.recent_steps import RecentStepTimes
from trackside.schedule import NEVER


def test_window_starts_before_its_first_step() -> None:
    """Steps 10 to 19 are planned at the end of step 9; what is left of them is asked for inside, and nothing after."""
    window = StepWindow(10, 20)
    window.begin(0)
    assert window.next_start(0) == 9
    assert (bool(window.ask(8)), bool(window.ask(9)), bool(window.ask(12)), bool(window.ask(19))) == (0, 1, 1, 0)
    assert (window.num_steps(9), window.num_steps(12)) == (10, 7)
    window.ended(19)
    assert (window.next_start(0), window.ask(9)) == (NEVER, "")


def test_window_behind_a_resumed_training_moves() -> None:
    """A training that begins beyond the window gets one of the same length, as many steps later."""
    window = StepWindow(10, 20)
    window.begin(100)
    assert (window.next_start(100), window.num_steps(109)) == (109, 10)


def test_window_that_was_captured_is_not_again() -> None:
    """Whether the window is done survives a restart."""
    done = StepWindow(10, 20)
    done.ended(19)
    window = StepWindow(10, 20)
    window.load_state_dict(done.state_dict())
    window.begin(15)
    assert window.ask(16) == ""


def test_periodic_captures_follow_the_clock() -> None:
    """After the first capture, the next is due so many minutes after the last has ended."""
    clock = ManualClock()
    periodic = Periodic(10, 5, 60, clock)
    periodic.begin(0)
    assert (periodic.next_start(0), bool(periodic.ask(10))) == (10, True)
    periodic.ended(15)
    clock.advance(3599)
    assert periodic.ask(1000) == ""
    clock.advance(1)
    assert periodic.ask(1001) == "profile_every_n_minutes=60"


def test_once_only() -> None:
    """Below 0 minutes there is one capture, however long the training takes."""
    clock = ManualClock()
    periodic = Periodic(10, 5, -1, clock)
    periodic.begin(0)
    periodic.ended(15)
    clock.advance(1e6)
    assert (periodic.ask(1000), periodic.uses_clock) == ("", False)


def test_look_around_about_once_a_second() -> None:
    """The steps between two looks follow how long steps take."""
    clock = ManualClock()
    look, step, looks = LookAround(clock), 0, []
    for _ in range(40):
        step = look.next_step(step)
        clock.advance((step - (looks[-1] if looks else 0)) * 0.01)
        looks.append(step)
    assert 90 <= looks[-1] - looks[-2] <= 110


def test_request_by_file_is_answered_once(tmp_path: Path) -> None:
    """A touched file asks once and is gone."""
    demand = OnDemand(tmp_path / "capture.now")
    assert demand.ask() == ""
    demand.file.touch()
    assert demand.ask() == "capture.now was touched"
    assert demand.ask() == ""
    assert not demand.file.exists()


def completed(step: int, completed_s: float) -> CallRecord:
    """A call of one step."""
    call = CallRecord(step, 1, 0, 1, *[0.0] * 5, False, False, None, None)
    call.completed_s = completed_s
    return call


def test_slow_steps_ask_so_often_per_hour() -> None:
    """A slow step asks, but no more often than allowed."""
    clock, times = ManualClock(), RecentStepTimes(max_steps=10_000)
    slow = OnSlowStep(5.0, 1, clock)
    now_s, step, asked = 0.0, 0, []
    for seconds in ([0.01] * 50 + [1.0]) * 3:
        step, now_s = step + 1, now_s + seconds
        times.add_calls([completed(step, now_s)], is_disturbed=False)
        if slow.ask(step, times):
            asked.append(step)
    assert asked == [51]
    clock.advance(3600)
    times.add_calls([completed(step + 1, now_s + 1.0)], is_disturbed=False)
    assert slow.ask(step + 1, times)
