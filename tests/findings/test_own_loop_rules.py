"""The rules on loops of the user's own: what provokes each, and what must not."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.findings.made_up import run_with
from tests.measured_run.own_loops import open_run_of
from trackside.clock import ManualClock
from trackside.findings import RunFacts
from trackside.findings.facts import EagerStep
from trackside.findings.loop_rules import dispatch_bound
from trackside.findings.own_loop_rules import (
    own_code_dominates,
    part_dominates,
    step_not_compiled,
    waits_between_steps,
)


def own(parts: dict[str, float], **kwargs: object) -> RunFacts:
    """A run of 100 seconds and 1000 steps in a loop of the user's own."""
    return replace(run_with(parts, **kwargs), is_own_loop=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(("part_s", "expected"), [(19.9, []), (20.0, ["warning"]), (40.0, ["severe"])])
def test_edges_of_part_dominates(part_s: float, expected: list[str]) -> None:
    """From a fifth of the time a part of the user's is a warning, from two fifths it is severe."""
    found = list(part_dominates(own({"augment": part_s})))
    assert [finding.severity for finding in found] == expected
    assert all(finding.subject == "augment" for finding in found)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(own({"augment": 60.0}, busy_s=97.0, idle={"augment": 1.0}), id="hidden behind the device"),
        pytest.param(own({"test": 60.0}), id="an evaluation"),
        pytest.param(own({"validation": 60.0, "callback/Mine": 30.0}), id="parts with rules of their own"),
        pytest.param(run_with({"augment": 60.0}), id="not a loop of the user's"),
        pytest.param(own({"augment": 6.0}, wall_s=10.0, num_steps=5), id="a trial run"),
    ],
)
def test_other_parts_do_not_dominate(facts: RunFacts) -> None:
    """A part that costs nothing, or that is judged elsewhere, is no finding."""
    assert list(part_dominates(facts)) == []


@pytest.mark.parametrize(
    ("other_s", "idle_s", "expected"),
    [(20.0, 10.0, "warning"), (19.0, 10.0, None), (20.0, 9.0, None), (50.0, 45.0, "severe")],
)
def test_edges_of_own_code_dominates(other_s: float, idle_s: float, expected: str | None) -> None:
    """It takes a fifth of the time in code without a name, and a device that idles for it a tenth of the time."""
    facts = own({"other": other_s}, busy_s=100.0 - idle_s, idle={"other": idle_s})
    finding = own_code_dominates(facts)
    assert (finding and finding.severity) == expected


def test_a_wait_that_cannot_be_told_from_code_is_not_held_against_it() -> None:
    """Of 92 s in which the device computes for 78, the code took 14 at least: the finding claims no more than that."""
    facts = own({"other": 92.0}, busy_s=84.0, idle={"other": 14.0})
    finding = own_code_dominates(facts)
    assert finding is not None
    assert finding.severity == "warning"
    assert finding.title == "the device waits for your code between two steps, 14 % of the device's time"
    assert finding.evidence["least_own_code_share"] == pytest.approx(0.14)
    assert finding.evidence["most_own_code_share"] == pytest.approx(0.92)
    assert finding.advice.startswith("if it reads values, as float(loss) does")


def test_code_that_the_device_waits_for_all_the_time_is_no_wait() -> None:
    """Where the device idles as long as the code takes, nothing is in doubt."""
    finding = own_code_dominates(own({"other": 50.0}, busy_s=50.0, idle={"other": 45.0}))
    assert finding is not None
    assert finding.title == "the device waits for your code between two steps, which takes 50 % of the time"
    assert finding.advice.startswith("put run.part(name)")


def test_code_of_a_loop_on_the_host_waits_for_no_device() -> None:
    """Where the process is the device, code that does not compute is said to, and not to read values too early."""
    facts = replace(own({"other": 92.0}, busy_s=84.0, idle={"other": 14.0}), is_on_host=True)
    finding = own_code_dominates(facts)
    assert finding is not None
    assert finding.title == "your code between two steps does not compute for 14 % of the time"
    assert "float(loss)" not in finding.advice


@pytest.mark.parametrize(("dispatch_s", "expected"), [(29.0, []), (30.0, ["warning"]), (50.0, ["severe"])])
def test_edges_of_step_not_compiled(dispatch_s: float, expected: list[str]) -> None:
    """A step that is not compiled is a finding where starting its operations takes three tenths of the time."""
    facts = replace(own({"dispatch": dispatch_s}), eager_steps={"train_step": EagerStep(24, 2)})
    found = list(step_not_compiled(facts))
    assert [finding.severity for finding in found] == expected
    assert all("jax.jit(train_step)" in finding.advice for finding in found)
    assert list(step_not_compiled(own({"dispatch": dispatch_s}))) == []


def test_larger_batches_are_no_advice_for_a_step_that_is_not_compiled() -> None:
    """Such a step takes long to start whatever its size, so it is not called too small."""
    small = own({"dispatch": 60.0}, num_steps=100_000, busy_s=20.0, idle={"dispatch": 60.0})
    assert dispatch_bound(small) is not None
    assert dispatch_bound(replace(small, eager_steps={"train_step": EagerStep(24)})) is None


@pytest.mark.parametrize(("num_steps", "is_found"), [(10_000, True), (1000, False)], ids=["short", "long"])
def test_a_step_that_is_compiled_in_part(num_steps: int, is_found: bool) -> None:
    """A jitted gradient with an update outside of it is a warning, unless steps are so long that it does not matter."""
    facts = replace(own({"dispatch": 60.0}, num_steps=num_steps), eager_steps={"train_step": EagerStep(10, 2)})
    found = list(step_not_compiled(facts))
    assert [(finding.severity, "only in part" in finding.title) for finding in found] == [("warning", True)] * is_found
    assert all("the optimizer's update too" in finding.advice for finding in found)


def test_small_steps_are_not_the_fault_of_the_code_between_them() -> None:
    """What a call costs the host anyway has its own rule."""
    facts = own({"other": 5.0}, wall_s=10.0, num_steps=5000, busy_s=5.0, idle={"other": 5.0})
    assert own_code_dominates(facts) is None


@pytest.mark.parametrize(
    ("busy_s", "idle", "expected"),
    [
        (70.0, {"other": 15.0, "data_wait": 15.0}, "warning"),
        (50.0, {"data_wait": 45.0}, "severe"),
        (95.0, {"other": 5.0}, None),
        (60.0, {"callback/Mine": 40.0}, None),
    ],
    ids=["work after the wait", "data after the wait", "a busy device", "idle for another reason"],
)
def test_waits_that_cost_something(busy_s: float, idle: dict[str, float], expected: str | None) -> None:
    """Waiting for the device is a fault only where the device waits in turn."""
    finding = waits_between_steps(own({"other": 20.0, "data_wait": 20.0}, busy_s=busy_s, idle=idle))
    assert (finding and finding.severity) == expected
    assert finding is None or "run.log(loss=loss)" in finding.advice


def test_loops_that_do_not_wait_are_well() -> None:
    """A slow loader alone is no wait for the device, nor is the trainer's limit of calls in flight."""
    slow = {"other": 10.0, "data_wait": 85.0}
    assert waits_between_steps(own(slow, busy_s=20.0, idle={"data_wait": 75.0})) is None
    assert waits_between_steps(run_with({}, busy_s=70.0, idle={"data_wait": 30.0})) is None


def test_a_measured_loop_is_found_to_spend_its_time_in_a_part(tmp_path: Path) -> None:
    """The rule fires on what a run writes, with the name that the user chose."""
    clock = ManualClock(start=1.0)
    with open_run_of(tmp_path / "run", clock=clock) as run:
        step = run.step(lambda: clock.advance(0.06), name="step")
        for _ in range(30):
            step()
            with run.part("augment"):
                clock.advance(0.04)
    assert [(finding.id, finding.subject) for finding in run.findings] == [("part_dominates", "augment")]
