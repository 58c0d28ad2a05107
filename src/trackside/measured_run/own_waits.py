"""How long the code of a loop that is not ours has waited for the device, as it does when it reads the loss.

Nobody sees what that code does between two things that are measured. What is known: how long it took, how long its
thread computed meanwhile or had no core, and when the calls before it completed. A thread that waits does not compute,
and moves on at the moment of a completion: of the last call, or of the one before, as in a loop that reads each loss
one step later.
"""

import math

from trackside.profiling.call_record import CallRecord

MIN_WAIT_S = 2e-4
MOVES_ON_WITHIN = 0.1
"""The loop has waited for a call if it moves on within this share of the wait after the call's completion."""
COMPUTES_ON = 0.75
"""It has also waited if it has computed for this share of the time since then: it was awake."""
DOES_NOTHING = 0.1
"""A thread that computes for a smaller share of the time has done nothing but wait."""


def waited_after(call: CallRecord, following: CallRecord, behind: CallRecord | None = None) -> float:
    """How long the loop's own code after a call waited for it, or for the one before; 0 if it did something else.

    Args:
        call: A call that has completed.
        following: The call after it.
        behind: The call before it.
    """
    waited_s = _waited_for(call, call, following)
    if waited_s or behind is None or behind.completed_s - call.dispatched_s < MIN_WAIT_S:
        return waited_s
    return _waited_for(behind, call, following)


def _waited_for(awaited: CallRecord, call: CallRecord, following: CallRecord) -> float:
    until_s = following.own_code_until_s
    if until_s is None or call.is_disturbed or awaited.is_disturbed:
        return 0.0
    in_flight_s, since_s = awaited.completed_s - call.dispatched_s, until_s - awaited.completed_s
    is_computing_known = not math.isnan(call.host_cpu_s)
    if in_flight_s < MIN_WAIT_S or (awaited.seen_s == math.inf and not is_computing_known):
        return 0.0
    unsure_s = 0.0 if awaited.seen_s < math.inf else awaited.uncertainty_s
    moves_on = -unsure_s <= since_s <= max(MOVES_ON_WITHIN * in_flight_s, MIN_WAIT_S) + unsure_s
    if not is_computing_known:
        return in_flight_s if moves_on else 0.0
    awake_s = call.host_cpu_s + call.host_late_s
    if not moves_on and not 0 <= since_s <= awake_s / COMPUTES_ON:
        return 0.0
    between_s, late_s = until_s - call.dispatched_s, call.host_late_s
    if call.host_cpu_s < DOES_NOTHING * between_s:  # so it woke up late, and nothing else was delayed
        waited_s = min(between_s - call.host_cpu_s, in_flight_s + late_s + unsure_s)
    else:
        waited_s = min(between_s - call.host_cpu_s - late_s, in_flight_s + unsure_s)
    return waited_s if waited_s >= MIN_WAIT_S else 0.0
