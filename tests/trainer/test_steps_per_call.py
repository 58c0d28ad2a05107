"""How many steps a call makes."""

from typing import Any

import pytest

from trackside.trainer.steps_per_call import PLAIN, StepCost, StepsPerCall, choose_steps_per_call

SHORT = StepCost(flops=1e5, other_flops=1e4, num_bytes=1000, keeps_form=True)
LONG = StepCost(flops=1e9, other_flops=1e6, num_bytes=1000, keeps_form=True)


def choose(wanted: Any = "auto", saved: Any = None, cost: StepCost | None = SHORT, **changes: Any) -> StepsPerCall:
    known = {"batch_bytes": 1000, "num_devices": 1, "is_cpu": True, "acts_on_steps": False, "output_bytes": 200}
    return choose_steps_per_call(wanted, saved, cost, **{**known, **changes})


@pytest.mark.parametrize(
    ("changes", "capacity"),
    [({}, 128), ({"output_bytes": 0}, 128), ({"output_bytes": 2 << 10}, 64), ({"output_bytes": 1 << 20}, 32)],
)
def test_places_of_a_call(changes: dict[str, int], capacity: int) -> None:
    """A call of short steps has many places, and fewer where it would give back much for each, used or not."""
    assert choose(**changes) == StepsPerCall("fused", capacity, is_timed=True)


@pytest.mark.parametrize(
    "changes",
    [{"is_cpu": False}, {"num_devices": 2}, {"acts_on_steps": True}, {"batch_bytes": 1 << 20}, {"cost": LONG}],
)
def test_where_it_does_not_pay_or_is_not_safe(changes: dict[str, Any]) -> None:
    """Steps are made one by one where nobody asks for more."""
    assert choose(**changes) == PLAIN


def test_what_is_wanted_holds() -> None:
    """A number is used whatever the step is like; one that is resumed stays in its program."""
    assert choose(5, cost=LONG, is_cpu=False) == StepsPerCall("fused", 5)
    assert choose(1) == PLAIN
    assert choose(saved="plain") == PLAIN
    assert choose(saved="fused", cost=LONG).program == "fused"


def test_places_by_the_size_of_batches() -> None:
    """Large batches take fewer places, and so do those that are listed; a number of the user's is left alone."""
    timed = choose()
    assert timed.capacity_for(0) == timed.capacity_for(1000) == 128
    assert timed.capacity_for(1000, is_listed=True) == 32
    assert timed.capacity_for(512 << 10) == 32
    assert timed.capacity_for((512 << 10) + 1) == 1
    wanted = StepsPerCall("fused", 200)
    assert wanted.capacity_for(1 << 30, is_listed=True) == 200
