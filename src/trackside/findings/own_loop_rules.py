"""Rules on loops that are the user's own: what their code does between two steps while the device could train."""

from collections.abc import Iterator

from trackside.findings.facts import RunFacts
from trackside.findings.finding import Finding, severity_of
from trackside.findings.judged_time import JudgedTime
from trackside.findings.loop_rules import MAX_CALL_COST_S
from trackside.profiling.ledger_totals import (
    CALLBACK,
    DATA_WAIT,
    DEVICE_WAIT,
    DISPATCH,
    DRAIN,
    HOST_TO_DEVICE,
    LOGGING,
    OTHER,
    PARTS,
)
from trackside.text import percent

MIN_EAGER = 0.3
SEVERE_EAGER = 0.5
MIN_PARTLY_EAGER = 0.5
MAX_PARTLY_EAGER_S = 0.02
"""In a step that takes longer to start, it is not the operations beside the compiled part that take the time."""
MIN_PART = 0.2
SEVERE_PART = 0.4
MIN_OWN_CODE = 0.2
MIN_IDLE_FOR_OWN_CODE = 0.1
SEVERE_IDLE_FOR_OWN_CODE = 0.4
MIN_WAIT = 0.1
MIN_IDLE_AFTER_WAIT = 0.1
SEVERE_IDLE_AFTER_WAIT = 0.4
MAY_WAIT = 1.5
"""If the code takes this many times as long as the device idles for it, some of that may be a wait for the device."""
_ADVICE_ON_WAITS = (
    "if it reads values, as float(loss) does, it waits for the device: give the array to run.log(loss=loss), which "
    "does not, or put run.part('device_wait') around it; "
)
_EVALUATIONS = ("test",)
"""Parts that are no training, in which the device is busy with something else."""
_BETWEEN_STEPS = (DATA_WAIT, HOST_TO_DEVICE, DISPATCH, LOGGING, OTHER)
"""What the host could do while the device computes, if it did not wait for the device first."""


def step_not_compiled(facts: RunFacts) -> Iterator[Finding]:
    """A step runs as many single operations, each of which Python starts, instead of as one compiled program."""
    time = JudgedTime.of(facts)
    if time is None or not facts.eager_steps:
        return
    share, dispatch_s = time.share(DISPATCH), time.seconds(DISPATCH) / time.ledger.num_steps
    for function, compiled in facts.eager_steps.items():
        # Of a call that is compiled in part, a CPU may compute the compiled part meanwhile.
        if share < (MIN_PARTLY_EAGER if compiled.is_partial else MIN_EAGER):
            continue
        if compiled.is_partial and dispatch_s > MAX_PARTLY_EAGER_S:
            continue
        what = "compiled only in part" if compiled.is_partial else "not compiled"
        yield Finding(
            "step_not_compiled",
            "warning" if compiled.is_partial else severity_of(share, SEVERE_EAGER),
            f"{function} is {what}: Python starts operations one by one ({time.share_text(share)})",
            {
                "function": function,
                "dispatch_share": share,
                "dispatch_per_step_s": dispatch_s,
                "num_operations_compiled": compiled.num_operations,
            },
            _one_program(function, compiled.is_partial),
            function,
        )


def _one_program(function: str, is_partial: bool) -> str:
    jit = "jax.jit (nnx.jit for NNX, eqx.filter_jit for Equinox)"
    if is_partial:
        return f"put all of it, the optimizer's update too, under one {jit}: run.step(jax.jit({function}))"
    return f"wrap it in {jit}: run.step(jax.jit({function}))"


def part_dominates(facts: RunFacts) -> Iterator[Finding]:
    """A part that the user named takes much of the time, and the device does not train meanwhile."""
    time = JudgedTime.of(facts)
    if time is None or not facts.is_own_loop:
        return
    for part in time.ledger.parts:
        share = time.share(part)
        if not _is_named(part) or share < MIN_PART or time.is_hidden(part):
            continue
        part_s = time.seconds(part)
        idle_s = time.ledger.idle_by_reason.get(part, 0.0)
        yield Finding(
            "part_dominates",
            severity_of(share, SEVERE_PART),
            f"{part} takes {time.share_text(share)}",
            {
                "part": part,
                "part_share": share,
                "part_s": part_s,
                "part_per_step_s": part_s / time.ledger.num_steps,
                **({"device_idle_for_part_share": idle_s / time.observed_s} if time.is_observed else {}),
            },
            f"do {part} less often, in the loader's workers or on a thread, or inside of the jitted step",
            part,
        )


def _is_named(part: str) -> bool:
    return part not in PARTS and part not in _EVALUATIONS and not part.startswith((CALLBACK, DRAIN))


def own_code_dominates(facts: RunFacts) -> Finding | None:
    """The device waits for code between two steps that has no name."""
    time = JudgedTime.of(facts)
    if time is None or not facts.is_own_loop:
        return None
    share, idle = time.share(OTHER), time.idle_share(OTHER)
    if idle is None or share < MIN_OWN_CODE or idle < MIN_IDLE_FOR_OWN_CODE:
        return None
    idle_per_step_s = idle * time.observed_s / time.ledger.num_steps
    if idle_per_step_s <= MAX_CALL_COST_S:  # steps that are too small, which has its own rule
        return None
    idle_s = idle * time.observed_s
    if facts.is_on_host:  # whose code is seen to compute, and then keeps nothing waiting
        return Finding(
            "own_code_dominates",
            severity_of(idle, SEVERE_IDLE_FOR_OWN_CODE),
            f"your code between two steps does not compute for {percent(idle)} of the time",
            {
                "device_idle_for_other_share": idle,
                "device_idle_per_step_s": idle_per_step_s,
                "own_code_share": share,
            },
            "put run.part(name) around what sleeps, reads or writes files, or waits for something else, to see what "
            "takes long; do it less often, or on a thread",
        )
    # While the device computes, code that sleeps cannot be told from code that waits for the device.
    may_wait = time.seconds(OTHER) > MAY_WAIT * idle_s
    taken = f"{percent(idle)} of the device's time" if may_wait else f"which takes {time.share_text(share)}"
    return Finding(
        "own_code_dominates",
        severity_of(idle, SEVERE_IDLE_FOR_OWN_CODE),
        f"the device waits for your code between two steps, {taken}",
        {
            "device_idle_for_other_share": idle,
            "device_idle_per_step_s": idle_per_step_s,
            **({"least_own_code_share": min(idle_s / time.total_s, share)} if may_wait else {}),
            "most_own_code_share" if may_wait else "own_code_share": share,
        },
        (_ADVICE_ON_WAITS if may_wait else "")
        + "put run.part(name) around its blocks to see which of them takes long; do it less often, on a thread, or "
        "inside of the jitted step",
    )


def waits_between_steps(facts: RunFacts) -> Finding | None:
    """The loop waits for each step and then keeps the device waiting: what it does meanwhile could overlap."""
    time = JudgedTime.of(facts)
    if time is None or not facts.is_own_loop:
        return None
    wait, idle = time.share(DEVICE_WAIT), time.idle_share(*_BETWEEN_STEPS)
    if idle is None or wait < MIN_WAIT or idle < MIN_IDLE_AFTER_WAIT:
        return None
    return Finding(
        "waits_between_steps",
        severity_of(idle, SEVERE_IDLE_AFTER_WAIT),
        f"the loop waits for the device ({time.share_text(wait)}), and then the device for the loop "
        f"({percent(idle)} of its time)",
        {
            "device_wait_share": wait,
            "device_idle_between_steps_share": idle,
            "device_wait_per_step_s": time.seconds(DEVICE_WAIT) / time.ledger.num_steps,
        },
        "read no values between steps, as float(loss), loss.item() and block_until_ready do: give the array to "
        "run.log(loss=loss), which writes it when it is there",
    )
