"""Rules on the steps: what the device waits for while it could train.

What the host does while the device is busy costs nothing, so a share of the host's time alone is not a verdict where
both work at the same time: the device must have been seen idle, or must not be known to be busy. Shares are of the time
without set-up and compiling; see `JudgedTime`.
"""

import statistics

from trackside.findings.facts import EpochFacts, RunFacts
from trackside.findings.finding import Finding, severity_of
from trackside.findings.judged_time import JudgedTime
from trackside.findings.loader_advice import faster_batches, sooner_first_batch
from trackside.findings.loader_facts import TRAIN
from trackside.profiling.ledger_text import part_name
from trackside.profiling.ledger_totals import CALLBACK, COMPILE, DATA_WAIT, DISPATCH, HOST_TO_DEVICE, LOGGING, OTHER
from trackside.text import percent, seconds

MIN_DATA_WAIT = 0.2
MIN_IDLE_FOR_DATA = 0.1
SEVERE_IDLE_FOR_DATA = 0.4
"""Two fifths of the device are wasted: no other change gains as much."""

MIN_IDLE_FOR_DISPATCH = 0.25
SEVERE_IDLE_FOR_DISPATCH = 0.6
MAX_SMALL_STEP_S = 5e-3
"""A call costs the host tens of microseconds, some hundreds on a slow one. A step that takes longer hides it."""
MAX_CALL_COST_S = 2e-3
"""If the device waits longer than that per step, it waits for something other than a call."""
MIN_HOOK_S = 0.1
"""What the loop itself does after an epoch takes less: longer, and it is a hook of the user."""
MAX_TINY_STEP_S = 3e-4
MIN_STARTING_TINY_STEPS = 0.6
"""A step that is over in no time: a CPU computes it inside the call, and is never seen idle between two of them."""

MIN_GARBAGE_COLLECTION = 0.05
SEVERE_GARBAGE_COLLECTION = 0.2
MIN_GARBAGE_COLLECTION_S = 1.0
"""With JAX loaded, a single full collection takes some tenths of a second: in a short run, that is a large share."""
GARBAGE_OF_COMPILING = 0.5
"""Tracing makes much garbage. Where a ledger does not know of compiles, this share of theirs may be its collection."""

MIN_EPOCHS = 3
"""One may be a warm-up, two a coincidence."""
MIN_IDLE_AFTER_EPOCH = 0.05
SEVERE_IDLE_AFTER_EPOCH = 0.3
MIN_LOST_AFTER_EPOCHS = 0.02

_STARTING = (DISPATCH, HOST_TO_DEVICE, OTHER)
"""Everything that the host does for each call: placing the batch, the call itself, and the loop around it."""


def input_bound(facts: RunFacts) -> Finding | None:
    """The device waits for data. Needs a share of data wait, and a device that was seen idle because of it."""
    time = JudgedTime.of(facts)
    if time is None or not time.is_observed:
        return None
    # What the first batch of an epoch takes longer than the others has its own rule.
    apart_s = _first_batches_s(facts)
    wait_s, wait = time.seconds(DATA_WAIT), time.share(DATA_WAIT)
    idle = max(time.ledger.idle_by_reason.get(DATA_WAIT, 0.0) - apart_s, 0.0) / time.observed_s
    if wait - apart_s / time.total_s < MIN_DATA_WAIT or idle < MIN_IDLE_FOR_DATA:
        return None
    loader = facts.loaders.get(TRAIN)
    return Finding(
        "input_bound",
        severity_of(idle, SEVERE_IDLE_FOR_DATA),
        f"training waits for data ({time.share_text(wait)})",
        {
            "data_wait_share": wait,
            "data_wait_s": wait_s,
            "device_idle_for_data_share": idle,
            "data_wait_per_step_s": wait_s / time.ledger.num_steps,
            **({} if loader is None else {"loader": loader.text}),
        },
        faster_batches(loader, wait_s, time.ledger.device_busy_s),
    )


def dispatch_bound(facts: RunFacts) -> Finding | None:
    """Steps are so small that starting them takes longer than computing them."""
    time = JudgedTime.of(facts)
    if time is None or facts.is_on_host or facts.eager_steps:  # the last have a rule of their own
        return None
    return _idle_between_calls(facts, time) or _tiny_steps(facts, time)


def _idle_between_calls(facts: RunFacts, time: JudgedTime) -> Finding | None:
    """A device that was seen idle between small steps."""
    ledger, idle = time.ledger, time.idle_share(*_STARTING)
    if idle is None or ledger.device_busy_s is None or idle < MIN_IDLE_FOR_DISPATCH:
        return None
    if not _is_seen_idle(facts, time, idle):
        return None
    busy_per_step_s, idle_per_step_s = (
        ledger.device_busy_s / ledger.num_steps,
        idle * time.observed_s / ledger.num_steps,
    )
    if busy_per_step_s > MAX_SMALL_STEP_S or idle_per_step_s > MAX_CALL_COST_S:
        return None
    return Finding(
        "dispatch_bound",
        severity_of(idle, SEVERE_IDLE_FOR_DISPATCH),
        f"steps are too small to keep the device busy: it computes {seconds(busy_per_step_s)} per step, and then waits "
        f"{seconds(idle_per_step_s)} for the next one ({percent(idle)} of its time)",
        {
            "device_idle_for_dispatch_share": idle,
            "device_busy_per_step_s": busy_per_step_s,
            "device_idle_per_step_s": idle_per_step_s,
            "dispatch_share": time.share(DISPATCH),
        },
        _larger_steps(facts),
    )


def _is_seen_idle(facts: RunFacts, time: JudgedTime, idle: float) -> bool:
    """Whether the device idled between calls. A CPU may compute within the call, which looks like idling until its end.

    Args:
        facts: What is known of the run.
        time: Its time.
        idle: The share of the observed time in which it seems to have idled between calls.
    """
    ledger, interval = time.ledger, time.ledger.idle_share_interval
    if facts.platform not in (None, "cpu") or interval is None:
        return True
    for_other_reasons = (ledger.device_idle_s or 0.0) / time.observed_s - idle
    return interval[0] - for_other_reasons >= MIN_IDLE_FOR_DISPATCH / 2


def _tiny_steps(facts: RunFacts, time: JudgedTime) -> Finding | None:
    """Steps of which the host spends most of the time on starting them, and next to none on waiting for them."""
    starting = sum(time.share(part) for part in _STARTING)
    step_s = facts.step_time_s if facts.step_time_s is not None else time.total_s / time.ledger.num_steps
    if step_s > MAX_TINY_STEP_S or starting < MIN_STARTING_TINY_STEPS or _is_busy_accelerator(facts, time):
        return None
    return Finding(
        "dispatch_bound",
        "warning",
        f"steps are tiny: one takes {seconds(step_s)}, and {percent(starting)} of the time goes into starting them",
        {"step_time_s": step_s, "starting_share": starting, "dispatch_share": time.share(DISPATCH)},
        _larger_steps(facts),
    )


def _is_busy_accelerator(facts: RunFacts, time: JudgedTime) -> bool:
    """Whether calls are queued before a device that is never out of work, which a CPU computing them itself is not."""
    return facts.platform not in (None, "cpu") and time.is_kept_busy


def _larger_steps(facts: RunFacts) -> str:
    now = "" if facts.batch_size is None else f" (a batch has {facts.batch_size:,} examples now)"
    if facts.is_own_loop:
        return f"use larger batches{now}, or make several steps in a call (trackside.fuse_steps)"
    if facts.loaders and facts.can_fuse_steps is False:  # it does already, or convolutions would be slow in a loop
        return f"use larger batches{now}, so that each call does more work"
    if facts.loaders:  # the trainer's own loop
        return f"use larger batches{now}, or more steps in a call (steps_per_call), so that each call does more work"
    return f"use larger batches{now}, or run several updates in one jitted call"


def garbage_collection(facts: RunFacts) -> Finding | None:
    """Python's garbage collection takes time that the device does not spend computing."""
    time = JudgedTime.of(facts)
    if time is None or time.is_kept_busy:
        return None
    collecting_s = time.ledger.gc_s - _gc_of_compiling_s(time)
    share = collecting_s / time.total_s
    if share < MIN_GARBAGE_COLLECTION or collecting_s < MIN_GARBAGE_COLLECTION_S:
        return None
    return Finding(
        "garbage_collection",
        severity_of(share, SEVERE_GARBAGE_COLLECTION),
        f"collecting Python's garbage takes {time.share_text(share)}",
        {"garbage_collection_share": share, "garbage_collection_s": time.ledger.gc_s},
        "call gc.freeze() once the data is loaded, raise gc.set_threshold, and keep data in arrays rather than in many "
        "Python objects",
    )


def _gc_of_compiling_s(time: JudgedTime) -> float:
    """How much of the garbage collection may be that of compiling, in a ledger that counts it."""
    compile_s = time.ledger.parts.get(COMPILE, 0.0) + time.validation_compile_s + time.doubtful_s
    return 0.0 if time.knows_compiles else GARBAGE_OF_COMPILING * compile_s


def idle_after_epoch(facts: RunFacts) -> Finding | None:
    """The device is idle after each epoch, before the first step of the next, for longer than between two steps."""
    usual_s = _usual_data_wait_s(facts)
    observed = [
        (_pause_s(epoch, usual_s), epoch.time_s, epoch.idle_reason)
        for epoch in facts.epochs
        if epoch.idle_after_s is not None and epoch.time_s
    ]
    time = JudgedTime.of(facts)
    if len(observed) < MIN_EPOCHS or time is None:
        return None
    idle_s = statistics.median(idle_s for idle_s, _, _ in observed)
    time_s = statistics.median(time_s for _, time_s, _ in observed)
    if facts.is_own_loop:  # whose steps may still be under way when its loader has no more batches
        seen_s = time.ledger.device_idle_s or 0.0
        idle_s = min(idle_s, seen_s / max(facts.num_pauses, len(observed)))
    share = idle_s / (idle_s + time_s)
    # Of the epochs and of the run: a millisecond is a large share of a tiny epoch, and nothing that anyone waits for.
    lost = idle_s * max(facts.num_pauses, len(observed)) / time.total_s
    if share < MIN_IDLE_AFTER_EPOCH or lost < MIN_LOST_AFTER_EPOCHS:
        return None
    evidence: dict[str, float | int | str] = {
        "idle_after_epoch_s": idle_s,
        "epoch_time_s": time_s,
        "idle_after_epoch_share": share,
        "num_epochs": len(observed),
    }
    reason = statistics.mode(reason for _, _, reason in observed)
    if reason:
        evidence["host_is_in"] = "the loop itself" if reason == OTHER else part_name(reason)
    return Finding(
        "idle_after_epoch",
        severity_of(share, SEVERE_IDLE_AFTER_EPOCH),
        f"the device sits idle for {seconds(idle_s)} after each epoch of {seconds(time_s)}",
        evidence,
        _advice_after_epochs(facts, reason, idle_s),
    )


def _pause_s(epoch: EpochFacts, usual_s: float) -> float:
    """How long the device idled after an epoch, without what a batch takes anyway."""
    return (epoch.idle_after_s or 0.0) - min(epoch.data_wait_after_s, usual_s)


def _usual_data_wait_s(facts: RunFacts) -> float:
    """How long the loop waits for a batch within an epoch."""
    ledger = facts.ledger
    if ledger is None or ledger.num_steps <= facts.num_pauses:
        return 0.0
    within_s = ledger.parts.get(DATA_WAIT, 0.0) - facts.data_wait_between_epochs_s - facts.first_batch_s
    return max(within_s, 0.0) / (ledger.num_steps - facts.num_pauses)


def _first_batches_s(facts: RunFacts) -> float:
    """How much longer the first batches of epochs took than the others did."""
    return max(facts.data_wait_between_epochs_s - facts.num_pauses * _usual_data_wait_s(facts), 0.0)


def _advice_after_epochs(facts: RunFacts, reason: str, idle_s: float) -> str:
    """What to do; first about the part of the ledger that most of the idle time goes into, if it can be made less."""
    longer = "make epochs longer" if facts.is_own_loop else "make epochs longer (steps_per_epoch)"
    if less := _less_of(facts, reason, idle_s):
        return f"{less}, or {longer}"
    return f"{longer}: each ends with work that takes the same time however long it is"


def _less_of(facts: RunFacts, reason: str, idle_s: float) -> str:
    if reason == DATA_WAIT:
        return sooner_first_batch(facts.loaders.get(TRAIN))
    if reason.startswith(CALLBACK):
        return f"have {reason.removeprefix(CALLBACK)} do less at the end of an epoch"
    if reason == LOGGING:
        return "log less at the end of an epoch, or to fewer tools"
    if idle_s < MIN_HOOK_S:
        return ""
    hooks = "hooks of your own, such as on_training_epoch_end"
    return f"do less {'between two passes over the loader' if facts.is_own_loop else f'in {hooks}'}"
