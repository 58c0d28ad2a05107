"""What the rules on the ledger judge, all of them alike: enough of it, and nothing that the device does not notice."""

from dataclasses import replace

import pytest

from tests.findings.made_up import epochs_with, first, make_ledger, run_with
from trackside.findings import RunFacts
from trackside.findings.judged_time import MIN_WALL_S
from trackside.findings.loop_rules import dispatch_bound, garbage_collection, idle_after_epoch, input_bound
from trackside.findings.pause_rules import (
    callback_dominates,
    callback_stalls,
    checkpointing_dominates,
    logging_too_often,
    validation_dominates,
)

STARVED = run_with({"data_wait": 62.0}, busy_s=35.0, idle={"data_wait": 58.0})
SMALL_STEPS = run_with({"dispatch": 1.0}, wall_s=1.0, num_steps=5000, busy_s=0.4, idle={"dispatch": 0.4, "other": 0.1})
LOGGING = run_with({"logging": 10.0}, log_every_n_steps=5)
VALIDATING = run_with({"validation": 40.0})
SAVING = run_with({"checkpointing": 20.0})
CALLING = run_with({"callback/Sleeper": 30.0})
STALLING = replace(run_with({"callback/Uploader": 6.0}), step_time_s=0.01, longest_s={"callback/Uploader": 2.0})
COLLECTING = run_with({}, gc_s=8.0)


def with_busy_device(facts: RunFacts) -> RunFacts:
    """The same, but the device computed for 95 seconds of its 100."""
    assert facts.ledger is not None
    return replace(facts, ledger=replace(facts.ledger, device_busy_s=95.0, device_idle_s=1.0))


PROVOKED = [
    pytest.param(input_bound, STARVED, id="input_bound"),
    pytest.param(dispatch_bound, SMALL_STEPS, id="dispatch_bound"),
    pytest.param(logging_too_often, LOGGING, id="logging_too_often"),
    pytest.param(validation_dominates, VALIDATING, id="validation_dominates"),
    pytest.param(checkpointing_dominates, SAVING, id="checkpointing_dominates"),
    pytest.param(callback_dominates, CALLING, id="callback_dominates"),
    pytest.param(callback_stalls, STALLING, id="callback_stalls"),
    pytest.param(garbage_collection, COLLECTING, id="garbage_collection"),
    pytest.param(idle_after_epoch, epochs_with(2.0), id="idle_after_epoch"),
]
UNNOTICED = (
    "logging_too_often",
    "checkpointing_dominates",
    "callback_dominates",
    "callback_stalls",
    "garbage_collection",
)
RULES_OF_LEDGER = [pytest.param(case.values[0], id=case.id) for case in PROVOKED]


@pytest.mark.parametrize(("rule", "facts"), PROVOKED)
def test_it_is_found(rule, facts):
    """Each rule finds what it is for, under its own name, with evidence and advice."""
    finding = first(rule(facts))
    assert finding is not None
    assert finding.id == rule.__name__
    assert finding.evidence
    assert finding.advice


@pytest.mark.parametrize("rule", RULES_OF_LEDGER)
def test_silent_on_a_run_that_trains(rule):
    """A device that computes nearly all the time, with a little of everything else, is no finding."""
    parts = {"data_wait": 3.0, "dispatch": 4.0, "logging": 2.0, "validation": 8.0, "checkpointing": 2.0, "other": 1.0}
    facts = run_with({**parts, "callback/EMA": 2.0}, busy_s=85.0, idle={"data_wait": 2.0, "dispatch": 1.0}, gc_s=0.5)
    assert first(rule(facts)) is None


@pytest.mark.parametrize("rule", RULES_OF_LEDGER)
def test_silent_without_a_ledger(rule):
    """What was not measured is not judged."""
    assert first(rule(RunFacts())) is None


@pytest.mark.parametrize(("rule", "facts"), [case for case in PROVOKED if case.id != "dispatch_bound"])
def test_silent_after_too_few_steps(rule, facts):
    """The shares of a run with fewer steps than needed are no verdict, one step more makes them one."""
    few, enough = (replace(facts, ledger=replace(facts.ledger, num_steps=num_steps)) for num_steps in (19, 20))
    assert first(rule(few)) is None
    assert first(rule(enough)) is not None


@pytest.mark.parametrize(("rule", "facts"), PROVOKED)
def test_silent_after_too_short_a_time(rule, facts):
    """The shares of a run that is over in no time are no verdict."""
    factor = 0.99 * MIN_WALL_S / facts.ledger.wall_s
    parts = {name: factor * part_s for name, part_s in facts.ledger.parts.items()}
    ledger = replace(facts.ledger, wall_s=factor * facts.ledger.wall_s, parts=parts, gc_s=factor * facts.ledger.gc_s)
    assert first(rule(replace(facts, ledger=ledger))) is None


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        case
        for case in PROVOKED
        if case.id in ("logging_too_often", "callback_dominates", "callback_stalls", "garbage_collection")
    ]
    + [pytest.param(checkpointing_dominates, SAVING, id="checkpointing_dominates")],
)
def test_what_the_device_does_not_notice_costs_nothing(rule, facts):
    """What the host does next to a device that computes all the time is no finding."""
    assert first(rule(with_busy_device(facts))) is None


def test_what_the_device_idles_for_is_not_hidden():
    """A device that is busy but for the callback was waiting for it."""
    facts = replace(
        STALLING, ledger=make_ledger({"callback/Uploader": 6.0}, busy_s=93.0, idle={"callback/Uploader": 5.0})
    )
    assert first(callback_stalls(facts)) is not None
    facts = replace(
        STALLING, ledger=make_ledger({"callback/Uploader": 6.0}, busy_s=97.0, idle={"callback/Uploader": 2.0})
    )
    assert first(callback_stalls(facts)) is None


def test_device_that_cannot_have_been_busy_excuses_nothing():
    """A device that is said to have computed for longer than the run took is not known to be kept busy."""
    assert first(callback_dominates(run_with({"callback/A": 30.0}, busy_s=500.0, idle={}))) is not None


def test_compilation_does_not_hide_that_the_device_is_kept_busy():
    """A device that computes whenever nothing compiles is kept busy."""
    facts = run_with({"compile": 50.0, "callback/X": 15.0}, busy_s=46.0, idle={"callback/X": 1.0})
    assert first(callback_dominates(facts)) is None


def test_a_run_that_hardly_did_anything_but_compile_is_not_judged():
    """A minute of compiling and a blink of training say nothing about the training."""
    assert first(callback_dominates(run_with({"compile": 59.6, "callback/A": 0.2}, wall_s=60.0))) is None
    assert first(callback_dominates(run_with({"compile": 59.4, "callback/A": 0.2}, wall_s=60.0))) is not None


def test_a_validation_is_no_idle_time():
    """The device is busy with it: a callback next to steps that keep the device busy costs nothing."""
    parts = {"validation": 25.0, "callback/A": 12.0}
    assert first(callback_dominates(run_with(parts, busy_s=70.0, idle={"other": 3.0}))) is None
    assert first(callback_dominates(run_with(parts, busy_s=60.0, idle={"other": 3.0}))) is not None
