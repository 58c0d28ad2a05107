"""Rules on the ledger: what the loop's time goes into while the device could train.

Shares are of the wall time of the main thread, as the ledger shows them; idle shares are of the time in which the
device was observed. What the host does while the device is busy anyway costs nothing, so a share alone is no verdict
where the host works beside the device: the device has to be seen idling, or not to be busy.
"""

import math
import statistics
from collections.abc import Iterator

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

# Fewer steps, or less time, are a trial run: its shares say nothing of a real one.
MIN_STEPS = 20
MIN_WALL_S = 1.0

MIN_DATA_WAIT = 0.2
MIN_IDLE_FOR_DATA = 0.1
SEVERE_IDLE_FOR_DATA = 0.4
"""Two fifths of the device for nothing: no other change gains as much."""

MIN_IDLE_FOR_DISPATCH = 0.25
SEVERE_IDLE_FOR_DISPATCH = 0.6
MAX_SMALL_STEP_S = 5e-3
"""A call costs the host tens of microseconds, some hundreds on a slow one. A step that takes longer hides it."""
MAX_CALL_COST_S = 2e-3
"""The device waits longer than that per step for something else than the price of a call."""

MIN_LOGGING = 0.05
SEVERE_LOGGING = 0.25
TARGET_LOGGING = 0.01
"""What the advised cadence aims at."""

MIN_VALIDATION = 0.3
SEVERE_VALIDATION = 0.5
MIN_CHECKPOINTING = 0.1
SEVERE_CHECKPOINTING = 0.4
MIN_CALLBACK = 0.1
SEVERE_CALLBACK = 0.4

MIN_GARBAGE_COLLECTION = 0.05
SEVERE_GARBAGE_COLLECTION = 0.2

MIN_EPOCHS = 3
"""Once may be a warm-up, twice chance."""
MIN_IDLE_AFTER_EPOCH = 0.05
SEVERE_IDLE_AFTER_EPOCH = 0.3

MIN_OBSERVED_S = 0.5
"""A device that was observed for less may have been so at an unusual moment."""
MAX_OBSERVED = 1.1
"""A device cannot be observed for longer than the run takes: then its times are estimated wrongly, and not used."""
KEPT_BUSY = 0.9
"""A device that computes for so much of the time loses nothing to what the host does beside it."""


def input_bound(facts: RunFacts) -> Finding | None:
    """The device waits for data. Needs a share of data wait, and the device seen idling because of it."""
    ledger = _enough(facts)
    if ledger is None:
        return None
    wait, idle = ledger.share(DATA_WAIT), _idle_share(ledger, DATA_WAIT)
    if wait < MIN_DATA_WAIT or idle is None or idle < MIN_IDLE_FOR_DATA:
        return None
    return Finding(
        "input_bound",
        _severity(idle, SEVERE_IDLE_FOR_DATA),
        f"{percent(wait)} of wall is data wait while the device idles",
        {
            "data_wait_share": wait,
            "data_wait_s": ledger.parts[DATA_WAIT],
            "device_idle_for_data_share": idle,
            "data_wait_per_step_s": ledger.parts[DATA_WAIT] / ledger.num_steps,
        },
        "raise workers or prefetch, or prepare the data offline",
    )


def dispatch_bound(facts: RunFacts) -> Finding | None:
    """The device waits for the next small step. Needs the device seen idling; a share of dispatch alone is none."""
    ledger = _enough(facts)
    if ledger is None or ledger.device_busy_s is None or not _is_observed(ledger):
        return None
    # All that the host does for each call: placing the batch, the call itself, and the loop around it.
    shares = [_idle_share(ledger, part) or 0.0 for part in (DISPATCH, HOST_TO_DEVICE, OTHER)]
    idle_s = sum(ledger.idle_by_reason.get(part, 0.0) for part in (DISPATCH, HOST_TO_DEVICE, OTHER))
    busy_per_step_s, idle_per_step_s = ledger.device_busy_s / ledger.num_steps, idle_s / ledger.num_steps
    is_small = busy_per_step_s <= MAX_SMALL_STEP_S and idle_per_step_s <= MAX_CALL_COST_S
    if sum(shares) < MIN_IDLE_FOR_DISPATCH or not is_small:
        return None
    return Finding(
        "dispatch_bound",
        _severity(sum(shares), SEVERE_IDLE_FOR_DISPATCH),
        f"the device idles {percent(sum(shares))} of the time for the next call, at "
        f"{seconds(busy_per_step_s)} of work per step",
        {
            "device_idle_for_dispatch_share": sum(shares),
            "device_busy_per_step_s": busy_per_step_s,
            "device_idle_per_step_s": idle_per_step_s,
            "dispatch_share": ledger.share(DISPATCH),
        },
        "make the batch larger, or several updates in one jitted call",
    )


def logging_too_often(facts: RunFacts) -> Finding | None:
    """Log rows take time that the device does not spend computing."""
    ledger = _enough(facts)
    if ledger is None or _is_kept_busy(ledger) or (share := ledger.share(LOGGING)) < MIN_LOGGING:
        return None
    evidence: dict[str, float | int | str] = {"logging_share": share, "logging_s": ledger.parts[LOGGING]}
    advice = "raise log_every_n_steps, or use fewer and faster tools"
    if facts.log_every_n_steps is not None and facts.log_every_n_steps > 0:
        every = facts.log_every_n_steps
        evidence["log_every_n_steps"] = every
        evidence["logging_per_row_s"] = ledger.parts[LOGGING] / max(ledger.num_steps / every, 1)
        advice = f"raise log_every_n_steps to {_rounded_up(every * share / TARGET_LOGGING)}, or use fewer tools"
    title = f"{percent(share)} of wall is logging"
    return Finding("logging_too_often", _severity(share, SEVERE_LOGGING), title, evidence, advice)


def validation_dominates(facts: RunFacts) -> Finding | None:
    """Validation takes much of the run."""
    return _part_dominates(
        facts,
        VALIDATION,
        ("validation_dominates", MIN_VALIDATION, SEVERE_VALIDATION),
        "validate less often (check_val_every_n_epoch, check_val_every_n_steps), or on fewer or larger batches",
    )


def checkpointing_dominates(facts: RunFacts) -> Finding | None:
    """Saving takes much of the run."""
    if facts.ledger is not None and _is_kept_busy(facts.ledger):
        return None
    return _part_dominates(
        facts,
        CHECKPOINTING,
        ("checkpointing_dominates", MIN_CHECKPOINTING, SEVERE_CHECKPOINTING),
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
                f"{percent(share)} of wall is the callback {name}",
                {"callback": name, "callback_share": share, "callback_s": ledger.parts[part]},
                f"let {name} act less often, or move its work to a thread",
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
        f"{percent(share)} of wall is Python's garbage collection",
        {"garbage_collection_share": share, "garbage_collection_s": ledger.gc_s},
        "call gc.freeze() once the data is loaded, raise gc.set_threshold, and keep data in arrays instead of many "
        "Python objects",
    )


def idle_after_epoch(facts: RunFacts) -> Finding | None:
    """The device idles after each epoch, before the first step of the next."""
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
    if reason := statistics.mode(reason for _, _, reason in observed):
        evidence["host_is_in"] = reason
    return Finding(
        "idle_after_epoch",
        _severity(share, SEVERE_IDLE_AFTER_EPOCH),
        f"the device idles {seconds(idle_s)} after each epoch of {seconds(time_s)}",
        evidence,
        "keep the loader's workers alive between epochs (persistent_workers=True), make epochs longer with "
        "steps_per_epoch, and do less in on_training_epoch_end",
    )


def _enough(facts: RunFacts) -> LedgerTotals | None:
    """The ledger, if there is enough of it to judge."""
    ledger = facts.ledger
    return ledger if ledger and ledger.num_steps >= MIN_STEPS and ledger.wall_s >= MIN_WALL_S else None


def _part_dominates(facts: RunFacts, part: str, rule: tuple[str, float, float], advice: str) -> Finding | None:
    ledger = _enough(facts)
    rule_id, least, severe = rule
    if ledger is None or (share := ledger.share(part)) < least:
        return None
    title = f"{percent(share)} of wall is {part}"
    evidence: dict[str, float | int | str] = {f"{part}_share": share, f"{part}_s": ledger.parts[part]}
    return Finding(rule_id, _severity(share, severe), title, evidence, advice)


def _idle_share(ledger: LedgerTotals, reason: str) -> float | None:
    """The share of the observed time in which the device idled for a reason; None where it was not observed."""
    if not _is_observed(ledger):
        return None
    return ledger.idle_by_reason.get(reason, 0.0) / _observed_s(ledger)


def _observed_s(ledger: LedgerTotals) -> float:
    return (ledger.device_busy_s or 0.0) + (ledger.device_idle_s or 0.0)


def _is_observed(ledger: LedgerTotals) -> bool:
    """Whether the device was observed, for long enough and no longer than can be."""
    return MIN_OBSERVED_S <= _observed_s(ledger) <= MAX_OBSERVED * ledger.wall_s


def _is_kept_busy(ledger: LedgerTotals) -> bool:
    """Whether the device is known to compute nearly all the time that is not compilation."""
    training_s = ledger.wall_s - ledger.parts.get(COMPILE, 0.0)
    return _is_observed(ledger) and (ledger.device_busy_s or 0.0) >= KEPT_BUSY * training_s


def _severity(share: float, severe: float) -> Severity:
    return "severe" if share >= severe else "warning"


def _rounded_up(number: float) -> int:
    """A number that a person would choose: 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(number))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= number * (1 - 1e-9))
