"""Rules on what the loop does instead of steps: logging, validation, checkpoints, callbacks, waiting for tools.

Shares are of the time without set-up and compiling; see `JudgedTime`.
"""

import math
from collections.abc import Iterator

from trackside.findings.facts import RunFacts, ToolFacts
from trackside.findings.finding import Finding, severity_of
from trackside.findings.judged_time import JudgedTime
from trackside.profiling.ledger_totals import CALLBACK, CHECKPOINTING, DRAIN, LOGGING, VALIDATION, LedgerTotals
from trackside.text import count, percent, seconds

MIN_LOGGING = 0.05
SEVERE_LOGGING = 0.25
TARGET_LOGGING = 0.01
"""The share that the advised cadence aims at."""
SLOW_ROW_S = 0.02
"""A row that takes longer is written by something slow: writing it less often is not the only way."""

MIN_DRAIN_S = 1.0
MIN_DRAIN = 0.05
SEVERE_DRAIN = 0.25
MIN_WAITING = 20
"""A tool that has fewer calls left to do when the training ends is not behind: it takes its time to close."""

MIN_VALIDATION = 0.3
SEVERE_VALIDATION = 0.5
MIN_CHECKPOINTING = 0.1
SEVERE_CHECKPOINTING = 0.4
TARGET_CHECKPOINTING = 0.05
"""The share that the advised interval aims at."""
MIN_CHECKPOINTING_S = 2.0
MIN_WARNED_CHECKPOINTING_S = 10.0
"""Less is worth a note, and no warning: the default would be to blame, and nobody waits for long."""
MIN_CHECKPOINTS = 3
"""The first one sets things up, and a short run may have no others."""
MIN_CALLBACK = 0.1
SEVERE_CALLBACK = 0.4
MIN_STALLS = 0.05
MIN_STALL_S = 0.5
MIN_STALL_STEPS = 20
"""A callback stalls the training if it keeps as many steps waiting at once."""


def logging_too_often(facts: RunFacts) -> Finding | None:
    """Log rows take time that the device does not spend computing."""
    time = JudgedTime.of(facts)
    if time is None or time.is_hidden(LOGGING) or (share := time.share(LOGGING)) < MIN_LOGGING:
        return None
    logging_s = time.seconds(LOGGING)
    evidence: dict[str, float | int | str] = {"logging_share": share, "logging_s": logging_s}
    advice = "raise log_every_n_steps, or log to fewer or faster tools"
    if facts.is_own_loop:
        advice = f"log less often, as with run.log(..., every={_rounded_up(share / TARGET_LOGGING)})"
    every, num_epochs = facts.log_every_n_steps, len(facts.epochs)
    if every is not None and every > 0:
        num_rows = time.ledger.num_steps // every
        row_s = logging_s / max(num_rows + num_epochs, 1)
        evidence |= {"log_every_n_steps": every, "logging_per_row_s": row_s}
        if num_epochs > num_rows:
            advice = "most rows are those of epochs, so make epochs longer (steps_per_epoch), or log to fewer tools"
        else:
            target = _rounded_up(every * share / TARGET_LOGGING)
            tools = f"to a faster tool (a row takes {seconds(row_s)})" if row_s >= SLOW_ROW_S else "to fewer tools"
            advice = f"raise log_every_n_steps from {every} to {target}, or log {tools}"
    title = f"logging takes {time.share_text(share)}"
    return Finding("logging_too_often", severity_of(share, SEVERE_LOGGING), title, evidence, advice)


def slow_logging_tool(facts: RunFacts) -> Iterator[Finding]:
    """A logging tool on a thread of its own cannot keep up: rows wait for it, or never reach it; one for each tool."""
    for name, tool in facts.tools.items():
        share = _waiting_share(facts.ledger, tool)
        is_behind = tool.num_waiting >= MIN_WAITING and tool.closing_s >= MIN_DRAIN_S and share >= MIN_DRAIN
        if not is_behind and not tool.num_dropped:
            continue
        what = [f"the training waited {seconds(tool.closing_s)} for it at the end"] if is_behind else []
        if tool.num_dropped:
            what.append(f"{count(tool.num_dropped, 'row')} never reached it")
        yield Finding(
            "slow_logging_tool",
            severity_of(share if is_behind else 0.0, SEVERE_DRAIN),
            f"{name} cannot keep up with the log: {' and '.join(what)}",
            {
                "tool": name,
                "num_waiting_at_end": tool.num_waiting,
                "num_dropped": tool.num_dropped,
                "closing_s": tool.closing_s,
                "closing_share": share,
            },
            f"{_fewer_rows(facts, tool)}, or do without {name}: the run's event file has every row",
            subject=name,
        )


def _waiting_share(ledger: LedgerTotals | None, tool: ToolFacts) -> float:
    """What share of the run waiting for a tool at the end took, whether the ledger has that time or not."""
    if ledger is None:
        return 0.0
    has_it = any(part.startswith(DRAIN) for part in ledger.parts)
    total_s = ledger.wall_s if has_it else ledger.wall_s + tool.closing_s
    return tool.closing_s / total_s if total_s > 0 else 0.0


def _fewer_rows(facts: RunFacts, tool: ToolFacts) -> str:
    """How often to log, so that the tool keeps up at the speed that it has shown."""
    every, ledger = facts.log_every_n_steps, facts.ledger
    if facts.is_own_loop:
        return "log less often, with run.log(..., every=N)"
    if every is None or every <= 0 or ledger is None:
        return "log less often (log_every_n_steps)"
    num_rows, num_missed = ledger.num_steps / every, tool.num_waiting + tool.num_dropped
    factor = num_rows / (num_rows - num_missed) if num_rows > num_missed else 10.0
    return f"raise log_every_n_steps from {every} to {_rounded_up(every * max(factor, 2.0))}"


def validation_dominates(facts: RunFacts) -> Finding | None:
    """Validation takes much of the time; compiling its step, which happens once, is not held against it."""
    time = JudgedTime.of(facts)
    if time is None or (share := time.share(VALIDATION)) < MIN_VALIDATION:
        return None
    evidence: dict[str, float | int | str] = {"validation_share": share, "validation_s": time.seconds(VALIDATION)}
    if time.validation_compile_s:
        evidence["compile_in_validation_s"] = time.validation_compile_s
    return Finding(
        "validation_dominates",
        severity_of(share, SEVERE_VALIDATION),
        f"validation takes {time.share_text(share)}",
        evidence,
        _less_validation(facts),
    )


def _less_validation(facts: RunFacts) -> str:
    if facts.is_own_loop:
        return "validate less often, or on fewer or larger batches"
    every = facts.check_val_every_n_steps
    if every is not None and every > 0:
        now = "after every step" if every == 1 else f"every {every} steps"
        return f"validate less often than {now} (check_val_every_n_steps={every}), or on fewer batches"
    return "validate less often (check_val_every_n_epoch, check_val_every_n_steps), or on fewer or larger batches"


def checkpointing_dominates(facts: RunFacts) -> Finding | None:
    """Saving takes much of the time."""
    time = JudgedTime.of(facts)
    if time is None or time.is_hidden(CHECKPOINTING) or (share := time.share(CHECKPOINTING)) < MIN_CHECKPOINTING:
        return None
    if 0 < facts.num_checkpoints < MIN_CHECKPOINTS:
        return None
    saving_s = time.seconds(CHECKPOINTING)
    if saving_s < MIN_CHECKPOINTING_S:
        return None
    # A trainer saves after each epoch by default. In a short training that is a large share of little time.
    is_short = saving_s < MIN_WARNED_CHECKPOINTING_S
    saves = facts.num_checkpoints
    return Finding(
        "checkpointing_dominates",
        "info" if is_short else severity_of(share, SEVERE_CHECKPOINTING),
        f"saving checkpoints takes {time.share_text(share)}{f', {seconds(saving_s)} in all' if is_short else ''}",
        {
            "checkpointing_share": share,
            "checkpointing_s": saving_s,
            **({"num_checkpoints": saves, "checkpointing_per_save_s": saving_s / saves} if saves else {}),
        },
        _fewer_checkpoints(facts, share),
    )


def _fewer_checkpoints(facts: RunFacts, share: float) -> str:
    if facts.is_own_loop:
        return "save less often, on a thread, or to a faster disk"
    every_n_steps = facts.check_val_every_n_steps or 0
    if every_n_steps > 0 and facts.num_checkpoints > 2 * len(facts.epochs):
        return f"checkpoints follow validations: validate less often (check_val_every_n_steps={every_n_steps})"
    every = max(_rounded_up(share / TARGET_CHECKPOINTING), 2)
    if facts.epochs:  # more than there are would save nothing but the last
        every = min(every, max(len(facts.epochs), 2))
    return f"save less often, as with callbacks=[CheckpointConfig(every_n_epochs={every})], or to a faster disk"


def callback_dominates(facts: RunFacts) -> Iterator[Finding]:
    """A callback takes much of the time; one finding for each that does."""
    time = JudgedTime.of(facts)
    if time is None:
        return
    for name, share in _callbacks(time):
        if share < MIN_CALLBACK:
            continue
        part = f"{CALLBACK}{name}"
        yield Finding(
            "callback_dominates",
            severity_of(share, SEVERE_CALLBACK),
            f"the callback {name} takes {time.share_text(share)}",
            {
                "callback": name,
                "callback_share": share,
                "callback_s": time.seconds(part),
                **({} if part not in facts.longest_s else {"longest_stall_s": facts.longest_s[part]}),
            },
            f"have {name} act less often, or move its work to a thread",
            subject=name,
        )


def callback_stalls(facts: RunFacts) -> Iterator[Finding]:
    """A callback takes long now and then, which adds up; one finding for each that does not dominate anyway."""
    time, step_s = JudgedTime.of(facts), facts.step_time_s or 0.0
    if time is None:
        return
    for name, share in _callbacks(time):
        part = f"{CALLBACK}{name}"
        longest_s = min(facts.longest_s.get(part, 0.0), time.seconds(part))
        is_long = longest_s >= max(MIN_STALL_S, MIN_STALL_STEPS * step_s)
        if not is_long or not MIN_STALLS <= share < MIN_CALLBACK:
            continue
        yield Finding(
            "callback_stalls",
            "warning",
            f"the callback {name} stops the training for up to {seconds(longest_s)} at a time, "
            f"{percent(share)} of the time in all",
            {
                "callback": name,
                "longest_stall_s": longest_s,
                "callback_share": share,
                "callback_s": time.seconds(part),
            },
            f"have {name} do less at once, or move its work to a thread",
            subject=name,
        )


def _callbacks(time: JudgedTime) -> Iterator[tuple[str, float]]:
    """The callbacks that the device waits for by name, each with its share of the time."""
    for part in time.ledger.parts:
        if part.startswith(CALLBACK) and not time.is_hidden(part):
            yield part.removeprefix(CALLBACK), time.share(part)


def _rounded_up(number: float) -> int:
    """A number that a person would choose: 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(number))
    return next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= number * (1 - 1e-9))
