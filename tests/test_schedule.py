import pytest

from trackside.clock import ManualClock
from trackside.errors import ConfigError
from trackside.schedule import NEVER, NUM_FREE, AffordableSteps, At, Every, next_boundary


@pytest.mark.parametrize(("step", "expected"), [(0, 5), (4, 5), (5, 10), (6, 10), (999_999_999, 1_000_000_000)])
def test_every_plans_the_next_multiple(step, expected):
    """A cadence's next boundary is the first multiple after the step, also from a boundary itself."""
    assert Every(5).next_boundary(step) == expected


def test_every_is_due_at_its_boundaries_only():
    """A cadence is due at its multiples, and not before the first step."""
    assert [step for step in range(13) if Every(4).is_due(step)] == [4, 8, 12]


def test_minus_one_is_never_due():
    """A cadence of -1 has no boundary and is due at no step."""
    plan = Every(-1)
    assert plan.next_boundary(7) == NEVER
    assert not any(plan.is_due(step) for step in range(10))


@pytest.mark.parametrize("num_steps", [0, -2])
def test_impossible_cadence_is_refused_by_name(num_steps):
    """A cadence that is neither positive nor -1 is an error with the user's name for it and its value."""
    with pytest.raises(ConfigError, match=rf"log_every_n_steps: .*-1 for never; got {num_steps}$"):
        Every(num_steps, "log_every_n_steps")


def test_at_goes_through_its_steps_in_order():
    """Given steps are boundaries in ascending order, however they were given, and then there is none."""
    plan = At(9, 3)
    assert [plan.next_boundary(step) for step in (0, 2, 3, 8, 9)] == [3, 3, 9, 9, NEVER]
    assert [step for step in range(12) if plan.is_due(step)] == [3, 9]


def test_next_boundary_is_the_first_of_all_plans():
    """Several plans stop the loop at whichever comes first; without plans nothing does."""
    plans = [Every(10), At(4, 12), Every(-1)]
    assert [next_boundary(plans, step) for step in (0, 4, 10, 12)] == [4, 10, 12, 20]
    assert next_boundary([], 0) == NEVER


@pytest.mark.parametrize("plan", [Every(3), At(2, 5, 7)])
def test_a_boundary_is_due_and_no_step_before_it(plan):
    """What a plan announces as its next boundary is the next step at which it is due."""
    for step in range(7):
        first_due = next((later for later in range(step + 1, 20) if plan.is_due(later)), NEVER)
        assert plan.next_boundary(step) == first_due


# --- a small share of the time ----------------------------------------------------------------------------------------


def train_with(plan: AffordableSteps, clock: ManualClock, num_steps: int, cost_s: float, step_s: float) -> list[int]:
    """The steps at which something was due that takes `cost_s`, in a training whose steps take `step_s`."""
    due = []
    plan.start(0)
    for step in range(1, num_steps + 1):
        clock.advance(step_s)
        assert plan.is_due(step) == (plan.next_boundary(step - 1) == step)
        if plan.is_due(step):
            clock.advance(cost_s)
            plan.spend(step, cost_s)
            due.append(step)
    plan.stop()
    return due


def test_what_costs_little_is_due_every_n_steps() -> None:
    """At less than its share, nothing is left out."""
    clock = ManualClock()
    due = train_with(AffordableSteps(10, 0.01, clock), clock, num_steps=2000, cost_s=0.0005, step_s=0.01)
    assert due == list(range(10, 2001, 10))


def test_what_costs_more_is_due_less_often() -> None:
    """It takes its share of the time and what is free, at multiples of the interval."""
    clock = ManualClock()
    began_s = clock.now()
    due = train_with(AffordableSteps(10, 0.01, clock), clock, num_steps=200_000, cost_s=0.01, step_s=0.0001)
    assert all(step % 10 == 0 for step in due)
    assert due[:NUM_FREE] == [10 * number for number in range(1, NUM_FREE + 1)]
    share = 0.01 * (len(due) - NUM_FREE) / (clock.now() - began_s)
    assert 0.005 < share <= 0.011


def test_time_between_trainings_does_not_count() -> None:
    """What was free is free once, and nothing is saved up while nobody trains."""
    clock = ManualClock()
    plan = AffordableSteps(10, 0.01, clock)
    train_with(plan, clock, num_steps=2000, cost_s=0.01, step_s=0.0001)
    clock.advance(3600.0)
    assert len(train_with(plan, clock, num_steps=1000, cost_s=0.01, step_s=0.0001)) <= 2


def test_at_any_price() -> None:
    """With a share of all the time, nothing is left out."""
    clock = ManualClock()
    due = train_with(AffordableSteps(10, 1.0, clock), clock, num_steps=2000, cost_s=1.0, step_s=0.0001)
    assert due == list(range(10, 2001, 10))


def test_never() -> None:
    """An interval of -1 is never due."""
    assert AffordableSteps(-1, 0.01, ManualClock()).next_boundary(5) == NEVER
