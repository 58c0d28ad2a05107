"""The rules on the ledger: what provokes each, and what must not."""

from dataclasses import replace

import pytest

from tests.findings.made_up import compile_row, make_ledger, run_with
from trackside.findings import EpochFacts, RunFacts
from trackside.findings.loop_rules import (
    MIN_WALL_S,
    callback_dominates,
    checkpointing_dominates,
    dispatch_bound,
    garbage_collection,
    idle_after_epoch,
    input_bound,
    logging_too_often,
    validation_dominates,
)

STARVED = run_with({"data_wait": 62.0}, busy_s=35.0, idle={"data_wait": 58.0})
SMALL_STEPS = run_with({"dispatch": 1.0}, wall_s=1.0, num_steps=5000, busy_s=0.4, idle={"dispatch": 0.4, "other": 0.1})
LOGGING = run_with({"logging": 10.0}, log_every_n_steps=5)
VALIDATING = run_with({"validation": 40.0})
SAVING = run_with({"checkpointing": 20.0})
CALLING = run_with({"callback/Sleeper": 30.0})
COLLECTING = run_with({}, gc_s=8.0)


def epochs_with(idle_s: float | None, number: int = 4, time_s: float = 10.0, reason: str = "data_wait") -> RunFacts:
    epochs = [EpochFacts(index + 1, 100 * (index + 1), time_s, idle_s, reason) for index in range(number)]
    return RunFacts(ledger=make_ledger({}), epochs=epochs)


def with_busy_device(facts: RunFacts) -> RunFacts:
    """The same, but the device computed for 95 seconds of its 100."""
    assert facts.ledger is not None
    return replace(facts, ledger=replace(facts.ledger, device_busy_s=95.0, device_idle_s=1.0))


def first(found):
    """What a rule found, if anything; the first of several."""
    return next(iter(found), None) if hasattr(found, "__iter__") else found


PROVOKED = [
    pytest.param(input_bound, STARVED, id="input_bound"),
    pytest.param(dispatch_bound, SMALL_STEPS, id="dispatch_bound"),
    pytest.param(logging_too_often, LOGGING, id="logging_too_often"),
    pytest.param(validation_dominates, VALIDATING, id="validation_dominates"),
    pytest.param(checkpointing_dominates, SAVING, id="checkpointing_dominates"),
    pytest.param(callback_dominates, CALLING, id="callback_dominates"),
    pytest.param(garbage_collection, COLLECTING, id="garbage_collection"),
    pytest.param(idle_after_epoch, epochs_with(2.0), id="idle_after_epoch"),
]
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
    """A device that computes nearly all the time, with a little of everything beside it, is no finding."""
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


def test_input_bound_says_how_much():
    """The verdict has the share of data wait, the evidence the idleness that it rests on."""
    finding = input_bound(STARVED)
    assert finding is not None
    assert finding.severity == "severe"
    assert finding.title == "the device sits idle waiting for data (62 % of wall time)"
    assert finding.evidence["device_idle_for_data_share"] == pytest.approx(58 / 93)
    assert finding.evidence["data_wait_per_step_s"] == pytest.approx(0.062)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(run_with({"data_wait": 62.0}), id="device not observed"),
        pytest.param(run_with({"data_wait": 62.0}, busy_s=95.0, idle={"data_wait": 2.0}), id="device busy"),
        pytest.param(run_with({"data_wait": 62.0}, busy_s=40.0, idle={"logging": 50.0}), id="idle for another reason"),
        pytest.param(run_with({"data_wait": 19.0}, busy_s=70.0, idle={"data_wait": 20.0}), id="little data wait"),
    ],
)
def test_data_wait_alone_is_not_input_bound(facts):
    """It takes both: the host waiting for data, and the device idling because of that."""
    assert input_bound(facts) is None


@pytest.mark.parametrize(
    ("wait_s", "idle_s", "expected"),
    [
        (20.0, 10.0, "warning"),
        (19.9, 10.0, None),
        (20.0, 9.9, None),
        (50.0, 40.0, "severe"),
        (50.0, 39.9, "warning"),
    ],
)
def test_edges_of_input_bound(wait_s, idle_s, expected):
    """From a fifth of data wait and a tenth of idleness it is a warning, from two fifths of idleness severe."""
    finding = input_bound(run_with({"data_wait": wait_s}, busy_s=100.0 - idle_s, idle={"data_wait": idle_s}))
    assert (finding and finding.severity) == expected


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(run_with({"dispatch": 0.9}, wall_s=1.0, num_steps=5000), id="device not observed"),
        pytest.param(
            run_with({"dispatch": 0.9}, wall_s=1.0, num_steps=5000, busy_s=0.9, idle={"dispatch": 0.05}),
            id="device busy",
        ),
        pytest.param(run_with({"dispatch": 40.0}, busy_s=50.0, idle={"dispatch": 1.5}), id="large steps"),
        pytest.param(run_with({"other": 60.0}, busy_s=1.0, idle={"other": 60.0}), id="more than a call costs"),
        pytest.param(
            run_with({"dispatch": 0.5}, wall_s=1.0, num_steps=5000, busy_s=0.4, idle={"data_wait": 0.5}),
            id="idle for another reason",
        ),
    ],
)
def test_dispatch_share_alone_is_not_dispatch_bound(facts):
    """It takes a device that is seen idling between small steps."""
    assert dispatch_bound(facts) is None


@pytest.mark.parametrize(
    ("busy_s", "idle_s", "num_steps", "expected"),
    [
        (7.5, 2.5, 10_000, "warning"),
        (7.6, 2.4, 10_000, None),
        (4.0, 6.0, 10_000, "severe"),
        (4.1, 5.9, 10_000, "warning"),
        (5.0, 2.0, 1000, "warning"),
        (5.1, 2.0, 1000, None),
        (5.0, 2.1, 1000, None),
    ],
)
def test_edges_of_dispatch_bound(busy_s, idle_s, num_steps, expected):
    """It takes a quarter of idleness (severe: three fifths), steps of 5 ms at most, and pauses of 2 ms at most."""
    facts = run_with({}, num_steps=num_steps, busy_s=busy_s, idle={"dispatch": idle_s})
    finding = dispatch_bound(facts)
    assert (finding and finding.severity) == expected


@pytest.mark.parametrize("reason", ["dispatch", "host_to_device", "other"])
def test_all_that_a_call_costs_the_host_counts(reason):
    """Placing the batch, calling, and the loop around it are what fused steps save."""
    assert dispatch_bound(run_with({}, num_steps=10_000, busy_s=5.0, idle={reason: 5.0})) is not None


def test_dispatch_bound_advises_larger_batches():
    """Small steps get the advice that any loop can follow, with the work of a step as evidence."""
    finding = dispatch_bound(SMALL_STEPS)
    assert finding is not None
    assert finding.advice.startswith("use larger batches;")
    assert finding.evidence["device_busy_per_step_s"] == pytest.approx(80e-6)


@pytest.mark.parametrize(
    ("rule", "part", "least_s", "severe_s"),
    [
        (logging_too_often, "logging", 5.0, 25.0),
        (validation_dominates, "validation", 30.0, 50.0),
        (checkpointing_dominates, "checkpointing", 10.0, 40.0),
        (callback_dominates, "callback/X", 10.0, 40.0),
    ],
)
def test_edges_of_parts(rule, part, least_s, severe_s):
    """A part of the wall is a warning from its threshold on, severe from the second, and nothing below."""
    seconds = (least_s - 0.1, least_s, severe_s - 0.1, severe_s)
    findings = [first(rule(run_with({part: part_s}))) for part_s in seconds]
    assert [finding and finding.severity for finding in findings] == [None, "warning", "warning", "severe"]


@pytest.mark.parametrize(
    ("rule", "facts"),
    [case for case in PROVOKED if case.id in ("logging_too_often", "callback_dominates", "garbage_collection")]
    + [pytest.param(checkpointing_dominates, SAVING, id="checkpointing_dominates")],
)
def test_what_the_device_does_not_notice_costs_nothing(rule, facts):
    """What the host does beside a device that computes all the time is no finding."""
    assert first(rule(with_busy_device(facts))) is None


@pytest.mark.parametrize("observed_s", [0.49, 111.0])
@pytest.mark.parametrize(
    ("rule", "facts"), [(input_bound, STARVED), (dispatch_bound, replace(SMALL_STEPS, ledger=make_ledger({})))]
)
def test_device_that_was_hardly_observed_or_too_long_is_no_evidence(rule, facts, observed_s):
    """Nothing is concluded from times of the device that are short, or longer than the run itself."""
    reason = "data_wait" if rule is input_bound else "dispatch"
    busy_s, idle = 0.5 * observed_s, {reason: 0.5 * observed_s}
    ledger = replace(facts.ledger, num_steps=10**6, device_busy_s=busy_s, idle_by_reason=idle)
    assert rule(replace(facts, ledger=replace(ledger, device_idle_s=0.5 * observed_s))) is None
    usable = replace(ledger, device_busy_s=1.0, device_idle_s=1.0, idle_by_reason={reason: 1.0})
    assert rule(replace(facts, ledger=usable)) is not None


def test_device_that_cannot_have_been_busy_excuses_nothing():
    """A device that is said to have computed for longer than the run took is not known to be kept busy."""
    assert first(callback_dominates(run_with({"callback/A": 30.0}, busy_s=500.0, idle={}))) is not None


def test_compilation_does_not_hide_that_the_device_is_kept_busy():
    """A device that computes whenever nothing compiles is kept busy."""
    facts = run_with({"compile": 50.0, "callback/X": 15.0}, busy_s=46.0, idle={"callback/X": 1.0})
    assert first(callback_dominates(facts)) is None


@pytest.mark.parametrize(("every", "logging_s", "expected"), [(5, 10.0, "50"), (1, 30.0, "50"), (20, 6.0, "200")])
def test_logging_advice_has_a_cadence(every, logging_s, expected):
    """The advised cadence brings logging down to about a hundredth, as a round number."""
    finding = logging_too_often(run_with({"logging": logging_s}, log_every_n_steps=every))
    assert finding is not None
    assert f"log_every_n_steps to {expected}," in finding.advice


def test_cost_of_a_log_row():
    """The evidence says what a row costs: much tells of a slow tool, little of too many rows."""
    finding = logging_too_often(LOGGING)
    assert finding is not None
    assert finding.evidence["logging_per_row_s"] == pytest.approx(10.0 / 200)


def test_logging_without_a_known_cadence():
    """Logging is found where the cadence is not known, with advice that names no number."""
    finding = logging_too_often(run_with({"logging": 10.0}))
    assert finding is not None
    assert "raise log_every_n_steps," in finding.advice


def test_callbacks_are_named():
    """Each callback that takes long is a finding of its own, by name; others are not told."""
    findings = list(callback_dominates(run_with({"callback/A": 15.0, "callback/B": 45.0, "callback/C": 1.0})))
    assert [(finding.subject, finding.severity) for finding in findings] == [("A", "warning"), ("B", "severe")]
    assert findings[1].title == "the callback B takes 45 % of wall time"


@pytest.mark.parametrize(("gc_s", "expected"), [(4.9, None), (5.0, "warning"), (19.9, "warning"), (20.0, "severe")])
def test_edges_of_garbage_collection(gc_s, expected):
    """Garbage collection is a finding from a twentieth of the wall on."""
    finding = garbage_collection(run_with({}, gc_s=gc_s))
    assert (finding and finding.severity) == expected


@pytest.mark.parametrize(("idle_s", "expected"), [(0.5, None), (0.53, "warning"), (4.2, "warning"), (4.3, "severe")])
def test_edges_of_idle_after_epoch(idle_s, expected):
    """Idleness after epochs of 10 s is a finding from 5 % of both on, severe from 30 %."""
    finding = idle_after_epoch(epochs_with(idle_s))
    assert (finding and finding.severity) == expected


@pytest.mark.parametrize(
    "facts", [pytest.param(epochs_with(2.0, number=2), id="two epochs"), pytest.param(epochs_with(None), id="not seen")]
)
def test_idle_after_epoch_needs_epochs_that_were_observed(facts):
    """Two epochs, or any number that was not observed, are no evidence."""
    assert idle_after_epoch(facts) is None


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("data_wait", "if it has workers"),
        ("callback/EMA", "have EMA do less"),
        ("logging", "fewer tools"),
        ("other", "on_training_epoch_end"),
    ],
)
def test_advice_after_an_epoch_is_for_what_the_host_does(reason, advice):
    """What to change depends on what the time goes into; workers are not mentioned where nothing waits for data."""
    facts = epochs_with(2.0)
    epochs = [replace(epoch, idle_reason=reason) for epoch in facts.epochs]
    finding = idle_after_epoch(replace(facts, epochs=epochs))
    assert finding is not None
    assert advice in finding.advice
    assert ("persistent_workers" in finding.advice) == (reason == "data_wait")


def test_compiling_the_evaluation_is_not_held_against_validation():
    """A validation that is mostly the compile of its step is none; one that takes long without it still is."""
    rows = [compile_row("train_step"), compile_row("eval_step", compile_s=50.0)]
    mostly_compile = replace(run_with({"validation": 59.0, "compile": 1.0}), compiles=rows)
    assert validation_dominates(mostly_compile) is None
    finding = validation_dominates(replace(run_with({"validation": 85.0, "compile": 1.0}), compiles=rows))
    assert finding is not None
    assert finding.severity == "warning"
    assert finding.title == "validation takes 85 % of wall time"
    assert finding.evidence["of_which_compile_s"] == pytest.approx(50.3)


def test_a_ledger_that_counts_the_compile_elsewhere_takes_nothing_from_validation():
    """Where the ledger has all compiles under compiling, validation is what it shows."""
    rows = [compile_row("train_step"), compile_row("eval_step", compile_s=30.0)]
    finding = validation_dominates(replace(run_with({"validation": 35.0, "compile": 31.3}), compiles=rows))
    assert finding is not None
    assert "of_which_compile_s" not in finding.evidence


def test_one_long_pause_is_not_after_each_epoch():
    """A single epoch with a long pause after it is no habit."""
    facts = epochs_with(0.0)
    assert idle_after_epoch(replace(facts, epochs=[*facts.epochs, EpochFacts(5, 500, 10.0, 60.0)])) is None


def test_idle_after_epoch_says_what_the_host_does():
    """The evidence names what the host is in meanwhile."""
    finding = idle_after_epoch(epochs_with(2.0))
    assert finding is not None
    assert finding.evidence["host_is_in"] == "data_wait"
    assert finding.title == "the device sits idle for 2 s after each epoch of 10 s"
