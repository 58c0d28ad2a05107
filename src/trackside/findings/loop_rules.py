"""Rules on the ledger: what the loop's time goes into while the device could train.

Shares are of the main thread's wall time, as the ledger shows them; idle shares are of the time in which the device was
observed. What the host does while the device is busy costs nothing, so a share alone is not a verdict where host and
device work at the same time: the device must have been seen idle, or must not be known to be busy.
"""

import math
import statistics
from collections.abc import Iterator

from trackside.findings.compile_rules import compile_time_s
from trackside.findings.facts import RunFacts
from trackside.findings.finding import Finding, Severity
from trackside.profiling.ledger import (
    CALLBACK,
    CHECKPOINTING,
    COMPILE,
    DATA_WAIT,
    DISPATCH,
    HOST_TO_DEVICE,
    LOGGING,
    OTHER,
    VALIDATION,
    LedgerTotals,
)
from trackside.text import percent, seconds

# With fewer steps, or less time, it is a trial run, whose shares say nothing about a real one.
MIN_STEPS = 20
MIN_WALL_S = 1.0

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

MIN_LOGGING = 0.05
SEVERE_LOGGING = 0.25
TARGET_LOGGING = 0.01
"""The share that the advised cadence aims at."""

MIN_VALIDATION = 0.3
SEVERE_VALIDATION = 0.5
MIN_CHECKPOINTING = 0.1
SEVERE_CHECKPOINTING = 0.4
MIN_CALLBACK = 0.1
SEVERE_CALLBACK = 0.4

MIN_GARBAGE_COLLECTION = 0.05
SEVERE_GARBAGE_COLLECTION = 0.2

MIN_EPOCHS = 3
"""One may be a warm-up, two a coincidence."""
MIN_IDLE_AFTER_EPOCH = 0.05
SEVERE_IDLE_AFTER_EPOCH = 0.3

MIN_OBSERVED_S = 0.5
"""A device that was observed for less time may have been observed at an unusual moment."""
MAX_OBSERVED = 1.1
"""A device cannot be observed for longer than the run takes: such times were estimated wrongly, and are not used."""
KEPT_BUSY = 0.9
"""A device that computes for this share of the time loses nothing to what the host does meanwhile."""

_EVALUATION = "eval_"
"""What the compiled functions of an evaluation begin with."""


def input_bound(facts: RunFacts) -> Finding | None:
    """The device waits for data. Needs a share of data wait, and a device that was seen idle because of it."""
    ledger = _enough(facts)
    if ledger is None:
        return None
    wait, idle = ledger.share(DATA_WAIT), _idle_share(ledger, DATA_WAIT)
    if wait < MIN_DATA_WAIT or idle is None or idle < MIN_IDLE_FOR_DATA:
        return None
    return Finding(
        "input_bound",
        _severity(idle, SEVERE_IDLE_FOR_DATA),
        f"the device sits idle waiting for data ({percent(wait)} of wall time)",
        {
            "data_wait_share": wait,
            "data_wait_s": ledger.parts[DATA_WAIT],
            "device_idle_for_data_share": idle,
            "data_wait_per_step_s": ledger.parts[DATA_WAIT] / ledger.num_steps,
        },
        "use more loader workers, prefetch more, or prepare the data offline",
    )


def dispatch_bound(facts: RunFacts) -> Finding | None:
    """The device waits for the next small step. Needs a device that was seen idle, not only a share of dispatch."""
    ledger = _enough(facts)
    if ledger is None or ledger.device_busy_s is None or not _is_observed(ledger):
        return None
    # Everything that the host does for each call: placing the batch, the call itself, and the loop around it.
    shares = [_idle_share(ledger, part) or 0.0 for part in (DISPATCH, HOST_TO_DEVICE, OTHER)]
    idle_s = sum(ledger.idle_by_reason.get(part, 0.0) for part in (DISPATCH, HOST_TO_DEVICE, OTHER))
    busy_per_step_s, idle_per_step_s = ledger.device_busy_s / ledger.num_steps, idle_s / ledger.num_steps
    is_small = busy_per_step_s <= MAX_SMALL_STEP_S and idle_per_step_s <= MAX_CALL_COST_S
    if sum(shares) < MIN_IDLE_FOR_DISPATCH or not is_small:
        return None
    return Finding(
        "dispatch_bound",
        _severity(sum(shares), SEVERE_IDLE_FOR_DISPATCH),
        f"the device is idle {percent(sum(shares))} of the time between calls; a step has only "
        f"{seconds(busy_per_step_s)} of work",
        {
            "device_idle_for_dispatch_share": sum(shares),
            "device_busy_per_step_s": busy_per_step_s,
            "device_idle_per_step_s": idle_per_step_s,
            "dispatch_share": ledger.share(DISPATCH),
        },
        "use larger batches; in your own loop, run several updates in one jitted call",
    )


def logging_too_often(facts: RunFacts) -> Finding | None:
    """Log rows take time that the device does not spend computing."""
    ledger = _enough(facts)
    if ledger is None or _is_kept_busy(ledger) or (share := ledger.share(LOGGING)) < MIN_LOGGING:
        return None
    evidence: dict[str, float | int | str] = {"logging_share": share, "logging_s": ledger.parts[LOGGING]}
    advice = "raise log_every_n_steps, or log to fewer or faster tools"
    if facts.log_every_n_steps is not None and facts.log_every_n_steps > 0:
        every = facts.log_every_n_steps
        evidence["log_every_n_steps"] = every
        evidence["logging_per_row_s"] = ledger.parts[LOGGING] / max(ledger.num_steps / every, 1)
        advice = f"raise log_every_n_steps to {_rounded_up(every * share / TARGET_LOGGING)}, or log to fewer tools"
    title = f"logging takes {percent(share)} of wall time"
    return Finding("logging_too_often", _severity(share, SEVERE_LOGGING), title, evidence, advice)


def validation_dominates(facts: RunFacts) -> Finding | None:
    """Validation takes much of the run; compiling its step, which happens once, is not held against it."""
    ledger = _enough(facts)
    if ledger is None:
        return None
    compile_s = _compile_in_validation_s(facts, ledger)
    if (share := ledger.share(VALIDATION) - compile_s / ledger.wall_s) < MIN_VALIDATION:
        return None
    evidence: dict[str, float | int | str] = {
        "validation_share": ledger.share(VALIDATION),
        "validation_s": ledger.parts[VALIDATION],
    }
    if compile_s:
        evidence["of_which_compile_s"] = compile_s
    return Finding(
        "validation_dominates",
        _severity(share, SEVERE_VALIDATION),
        f"validation takes {percent(ledger.share(VALIDATION))} of wall time",
        evidence,
        "validate less often (check_val_every_n_epoch, check_val_every_n_steps), or on fewer or larger batches",
    )


def checkpointing_dominates(facts: RunFacts) -> Finding | None:
    """Saving takes much of the run."""
    ledger = _enough(facts)
    if ledger is None or _is_kept_busy(ledger) or (share := ledger.share(CHECKPOINTING)) < MIN_CHECKPOINTING:
        return None
    return Finding(
        "checkpointing_dominates",
        _severity(share, SEVERE_CHECKPOINTING),
        f"checkpointing takes {percent(share)} of wall time",
        {"checkpointing_share": share, "checkpointing_s": ledger.parts[CHECKPOINTING]},
        "save less often, or to a faster disk",
    )


def callback_dominates(facts: RunFacts) -> Iterator[Finding]:
    """A callback takes much of the run; one finding for each that does."""
    ledger = _enough(facts)
    if ledger is None or _is_kept_busy(ledger):
        return
    for part in ledger.parts:
        if part.startswith(CALLBACK) and (share := ledger.share(part)) >= MIN_CALLBACK:
            name = part.removeprefix(CALLBACK)
            yield Finding(
                "callback_dominates",
                _severity(share, SEVERE_CALLBACK),
                f"the callback {name} takes {percent(share)} of wall time",
                {"callback": name, "callback_share": share, "callback_s": ledger.parts[part]},
                f"run {name} less often, or move its work to a thread",
                subject=name,
            )


def garbage_collection(facts: RunFacts) -> Finding | None:
    """Python's garbage collection takes time that the device does not spend computing."""
    ledger = _enough(facts)
    if ledger is None or _is_kept_busy(ledger) or (share := ledger.gc_s / ledger.wall_s) < MIN_GARBAGE_COLLECTION:
        return None
    return Finding(
        "garbage_collection",
        _severity(share, SEVERE_GARBAGE_COLLECTION),
        f"Python's garbage collection takes {percent(share)} of wall time",
        {"garbage_collection_share": share, "garbage_collection_s": ledger.gc_s},
        "call gc.freeze() once the data is loaded, raise gc.set_threshold, and keep data in arrays rather than in many "
        "Python objects",
    )


def idle_after_epoch(facts: RunFacts) -> Finding | None:
    """The device is idle after each epoch, before the first step of the next."""
    observed = [
        (epoch.idle_after_s, epoch.time_s, epoch.idle_reason)
        for epoch in facts.epochs
        if epoch.idle_after_s is not None and epoch.time_s
    ]
    if len(observed) < MIN_EPOCHS or _enough(facts) is None:
        return None
    idle_s = statistics.median(idle_s for idle_s, _, _ in observed)
    time_s = statistics.median(time_s for _, time_s, _ in observed)
    share = idle_s / (idle_s + time_s)
    if share < MIN_IDLE_AFTER_EPOCH:
        return None
    evidence: dict[str, float | int | str] = {
        "idle_after_epoch_s": idle_s,
        "epoch_time_s": time_s,
        "idle_after_epoch_share": share,
        "num_epochs": len(observed),
    }
    reason = statistics.mode(reason for _, _, reason in observed)
    if reason:
        evidence["host_is_in"] = reason
    return Finding(
        "idle_after_epoch",
        _severity(share, SEVERE_IDLE_AFTER_EPOCH),
        f"the device sits idle for {seconds(idle_s)} after each epoch of {seconds(time_s)}",
        evidence,
        f"{_advice_between_epochs(reason)}, or make epochs longer (steps_per_epoch)",
    )


def _enough(facts: RunFacts) -> LedgerTotals | None:
    """The ledger, if there is enough of it to judge."""
    ledger = facts.ledger
    return ledger if ledger and ledger.num_steps >= MIN_STEPS and ledger.wall_s >= MIN_WALL_S else None


def _compile_in_validation_s(facts: RunFacts, ledger: LedgerTotals) -> float:
    """How long the evaluation's step compiled, as far as the ledger counts it as validation and not as compiling."""
    all_s = sum(compile_time_s(row) for row in facts.compiles)
    own_s = sum(compile_time_s(row) for row in facts.compiles if row["function"].startswith(_EVALUATION))
    return min(own_s, max(all_s - ledger.parts.get(COMPILE, 0.0), 0.0), ledger.parts.get(VALIDATION, 0.0))


def _advice_between_epochs(reason: str) -> str:
    """What to do about the part of the ledger that most of the idle time goes into."""
    if reason == DATA_WAIT:
        return (
            "have the loader start its next epoch sooner: if it has workers, keep them alive (persistent_workers=True)"
        )
    if reason.startswith(CALLBACK):
        return f"have {reason.removeprefix(CALLBACK)} do less at the end of an epoch"
    if reason == LOGGING:
        return "log less at the end of an epoch, or to fewer tools"
    return "do less in on_training_epoch_end"


def _idle_share(ledger: LedgerTotals, reason: str) -> float | None:
    """The share of the observed time in which the device was idle for a reason; None if it was not observed."""
    if not _is_observed(ledger):
        return None
    return ledger.idle_by_reason.get(reason, 0.0) / _observed_s(ledger)


def _observed_s(ledger: LedgerTotals) -> float:
    return (ledger.device_busy_s or 0.0) + (ledger.device_idle_s or 0.0)


def _is_observed(ledger: LedgerTotals) -> bool:
    """Whether the device was observed for long enough, and for no longer than is possible."""
    return MIN_OBSERVED_S <= _observed_s(ledger) <= MAX_OBSERVED * ledger.wall_s


def _is_kept_busy(ledger: LedgerTotals) -> bool:
    """Whether the device is known to compute nearly all the time that is not spent compiling."""
    training_s = ledger.wall_s - ledger.parts.get(COMPILE, 0.0)
    return _is_observed(ledger) and (ledger.device_busy_s or 0.0) >= KEPT_BUSY * training_s


def _severity(share: float, severe: float) -> Severity:
    return "severe" if share >= severe else "warning"


def _rounded_up(number: float) -> int:
    """A number that a person would choose: 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(number))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= number * (1 - 1e-9))
