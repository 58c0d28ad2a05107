"""The rules on the steps: what provokes each, and what must not."""

from dataclasses import replace

import pytest

from tests.findings.made_up import epochs_with, make_ledger, run_with
from trackside.findings import EpochFacts, LoaderFacts, RunFacts
from trackside.findings.loop_rules import dispatch_bound, garbage_collection, idle_after_epoch, input_bound

STARVED = run_with({"data_wait": 62.0}, busy_s=35.0, idle={"data_wait": 58.0})
SMALL_STEPS = run_with({"dispatch": 1.0}, wall_s=1.0, num_steps=5000, busy_s=0.4, idle={"dispatch": 0.4, "other": 0.1})


def test_input_bound_says_how_much():
    """The verdict has the share of data wait, the evidence the idleness that it rests on."""
    finding = input_bound(STARVED)
    assert finding is not None
    assert finding.severity == "severe"
    assert finding.title == "training waits for data (62 % of the time)"
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
        pytest.param(run_with({"dispatch": 9.0}, wall_s=10.0, num_steps=5000), id="device not observed"),
        pytest.param(
            replace(
                run_with({"dispatch": 0.9}, wall_s=1.0, num_steps=5000, busy_s=0.95, idle={"dispatch": 0.05}),
                platform="gpu",
            ),
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


@pytest.mark.parametrize(
    ("platform", "least_idle_s", "is_found"), [("cpu", 0.5, False), ("cpu", 2.0, True), ("gpu", 0.5, True)]
)
def test_a_cpu_may_compute_within_the_call(platform, least_idle_s, is_found):
    """On a CPU, idleness counts if it is at least an eighth of the time even if all calls were computing."""
    facts = run_with({}, num_steps=10_000, busy_s=5.0, idle={"dispatch": 5.0})
    ledger = replace(facts.ledger, device_idle_low_s=least_idle_s, device_idle_high_s=6.0)
    assert (dispatch_bound(replace(facts, ledger=ledger, platform=platform)) is not None) == is_found


@pytest.mark.parametrize(("for_logging_s", "is_found"), [(0.0, True), (1.0, False)])
def test_idleness_for_another_reason_is_no_evidence_of_it(for_logging_s, is_found):
    """What is sure is how long a CPU idled in all: as much as it did for logging says nothing of its calls."""
    facts = run_with({}, num_steps=10_000, busy_s=5.0, idle={"dispatch": 5.0 - for_logging_s, "logging": for_logging_s})
    ledger = replace(facts.ledger, device_idle_low_s=2.0, device_idle_high_s=6.0)
    assert (dispatch_bound(replace(facts, ledger=ledger, platform="cpu")) is not None) == is_found


@pytest.mark.parametrize("reason", ["dispatch", "host_to_device", "other"])
def test_all_that_a_call_costs_the_host_counts(reason):
    """Placing the batch, calling, and the loop around it are what fused steps save."""
    assert dispatch_bound(run_with({}, num_steps=10_000, busy_s=5.0, idle={reason: 5.0})) is not None


def test_dispatch_bound_advises_larger_batches():
    """Small steps get the advice that any loop can follow, with the work of a step as evidence."""
    finding = dispatch_bound(SMALL_STEPS)
    assert finding is not None
    assert finding.advice.startswith("use larger batches, or")
    assert finding.evidence["device_busy_per_step_s"] == pytest.approx(80e-6)


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
        ("data_wait", "the first batch of an epoch"),
        ("callback/EMA", "have EMA do less"),
        ("logging", "fewer tools"),
        ("other", "hooks of your own, such as on_training_epoch_end"),
    ],
)
def test_advice_after_an_epoch_is_for_what_the_host_does(reason, advice):
    """What to change depends on what the time goes into; workers are not mentioned where nothing waits for data."""
    facts = epochs_with(2.0)
    epochs = [replace(epoch, idle_reason=reason) for epoch in facts.epochs]
    finding = idle_after_epoch(replace(facts, epochs=epochs))
    assert finding is not None
    assert advice in finding.advice
    assert "persistent_workers" not in finding.advice


def test_hooks_are_not_blamed_for_what_the_loop_does():
    """Some milliseconds in no part that has a name are the loop's own, and only longer epochs help."""
    facts = replace(
        epochs_with(0.02), epochs=[EpochFacts(n, 100 * n, 0.1, 0.02, idle_reason="other") for n in range(5)]
    )
    assert idle_after_epoch(facts) is None  # of 100 s, some milliseconds
    finding = idle_after_epoch(replace(facts, num_pauses=800))
    assert finding is not None
    assert finding.advice.startswith("make epochs longer")
    assert "on_training_epoch_end" not in finding.advice
    assert finding.evidence["host_is_in"] == "the loop itself"


def test_steps_under_way_after_a_pass_are_no_idle_time():
    """In a loop of one's own, the device may be busy when the loader is done: only what was seen idle counts."""
    facts = replace(epochs_with(2.0), is_own_loop=True)
    assert facts.ledger is not None
    assert idle_after_epoch(replace(facts, ledger=replace(facts.ledger, device_idle_s=None))) is None
    assert idle_after_epoch(replace(facts, ledger=replace(facts.ledger, device_idle_s=0.1))) is None
    finding = idle_after_epoch(replace(facts, ledger=replace(facts.ledger, device_idle_s=20.0)))
    assert finding is not None
    assert finding.evidence["idle_after_epoch_s"] == 2.0
    assert "steps_per_epoch" not in finding.advice


def test_one_long_pause_is_not_after_each_epoch():
    """A single epoch with a long pause after it is no habit."""
    facts = epochs_with(0.0)
    assert idle_after_epoch(replace(facts, epochs=[*facts.epochs, EpochFacts(5, 500, 10.0, 60.0)])) is None


def test_idle_after_epoch_says_what_the_host_does():
    """The evidence names what the host is in meanwhile."""
    finding = idle_after_epoch(epochs_with(2.0))
    assert finding is not None
    assert finding.evidence["host_is_in"] == "waiting for data"
    assert finding.title == "the device sits idle for 2 s after each epoch of 10 s"


def test_a_host_that_computes_its_steps_starts_nothing():
    """A step of PyTorch on a CPU is over when it returns: what comes between two of them is no cost of starting one."""
    assert dispatch_bound(SMALL_STEPS) is not None
    assert dispatch_bound(replace(SMALL_STEPS, is_own_loop=True, is_on_host=True)) is None


TINY = replace(run_with({"dispatch": 70.0, "other": 8.0}, num_steps=10**6, busy_s=90.0, idle={}), step_time_s=5e-5)


def test_tiny_steps_of_a_device_that_is_never_seen_idle_are_found():
    """A CPU computes a tiny step inside the call: it is the host's time that shows it."""
    finding = dispatch_bound(TINY)
    assert finding is not None
    assert finding.title == "steps are tiny: one takes 50 us, and 78 % of the time goes into starting them"


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(replace(TINY, step_time_s=4e-4), id="longer steps"),
        pytest.param(replace(TINY, ledger=make_ledger({"dispatch": 50.0}, num_steps=10**6)), id="it waits for them"),
    ],
)
def test_steps_that_are_waited_for_are_not_tiny(facts):
    """Neither those that take longer than a call may, nor those that the host waits for."""
    assert dispatch_bound(facts) is None


def test_the_trainer_is_not_advised_what_it_cannot_do():
    """Its loop makes one update per call; the batch size is named where it is known."""
    facts = replace(TINY, loaders={"train": LoaderFacts("list", 20)}, batch_size=8)
    finding = dispatch_bound(facts)
    assert finding is not None
    assert "a batch has 8 examples now" in finding.advice
    assert "jitted" not in finding.advice


def slow_first_batches(first_s: float, usual_s: float, num_epochs: int = 10, steps: int = 10) -> RunFacts:
    """Epochs of ten seconds whose first batch takes longer than the others."""
    num_pauses = num_epochs - 1
    wait_s = num_pauses * first_s + (num_epochs * steps - num_pauses) * usual_s
    parts = {"data_wait": wait_s}
    ledger = make_ledger(parts, 10.0 * num_epochs + wait_s, num_epochs * steps, 10.0 * num_epochs, parts)
    epochs = [EpochFacts(n, n * steps, 10.0 + steps * usual_s, first_s, "data_wait", first_s) for n in range(1, 10)]
    return RunFacts(
        ledger=ledger, epochs=epochs, data_wait_between_epochs_s=num_pauses * first_s, num_pauses=num_pauses
    )


@pytest.mark.parametrize(
    ("first_s", "usual_s", "expected"),
    [
        (8.0, 0.01, {"idle_after_epoch"}),
        (1.0, 1.0, {"input_bound"}),
        (8.0, 1.0, {"idle_after_epoch", "input_bound"}),
        (0.1, 0.1, set()),
    ],
    ids=["slow to start", "slow", "both", "neither"],
)
def test_a_slow_start_and_a_slow_loader_are_told_apart(first_s, usual_s, expected):
    """Workers that start again for each epoch are not too few, and a loader that is slow at each batch starts well."""
    facts = slow_first_batches(first_s, usual_s)
    found = {finding.id for rule in (input_bound, idle_after_epoch) if (finding := rule(facts)) is not None}
    assert found == expected


def test_garbage_of_compiling_is_not_held_against_the_steps():
    """Tracing a large program makes garbage, once."""
    assert garbage_collection(run_with({"compile": 50.0}, gc_s=27.0)) is None
    assert garbage_collection(run_with({"compile": 50.0}, gc_s=28.0)) is not None


def test_garbage_of_compiling_is_left_out_by_ledgers_that_know_of_compiles():
    """What such a ledger has was collected outside of compiling."""
    assert garbage_collection(run_with({"setup": 1.0, "compile": 49.0}, gc_s=2.4)) is None
    assert garbage_collection(run_with({"setup": 1.0, "compile": 49.0}, gc_s=2.6)) is not None


def test_a_single_collection_is_no_habit():
    """In a run of a few seconds, one full collection is a large share of the time, and says nothing."""
    assert garbage_collection(run_with({}, wall_s=5.0, gc_s=0.9)) is None
    assert garbage_collection(run_with({}, wall_s=5.0, gc_s=1.1)) is not None


def test_workers_that_start_once_are_no_slow_loader():
    """What the very first batch takes does not count: it says nothing about the next."""
    facts = run_with({"data_wait": 32.0}, busy_s=50.0, idle={"data_wait": 12.0})
    assert input_bound(facts) is not None
    assert input_bound(replace(facts, first_batch_s=20.0)) is None


@pytest.mark.parametrize(("can_fuse", "says"), [(True, True), (None, True), (False, False)])
def test_fused_steps_are_advised_where_they_help(can_fuse, says):
    """Not where steps are fused already, or cannot be."""
    facts = replace(SMALL_STEPS, loaders={"train": LoaderFacts("list")}, can_fuse_steps=can_fuse)
    finding = dispatch_bound(facts)
    assert finding is not None
    assert ("steps_per_call" in finding.advice) is says
