"""How a run stands."""

from collections.abc import Iterable, Mapping
from typing import Any

RUNNING, DEAD, NOT_STARTED, UNKNOWN = "running", "dead", "not started", "unknown"
"""The words for a run that did not say how it ended: a process holds its lock, none does, it was only built, it cannot
be read."""


def status_of(rows: Iterable[Mapping[str, Any]], is_held: bool, has_steps: bool = True) -> str:
    """The word for how a run stands.

    Args:
        rows: Its rows `format`, `leg` and `status`, in order.
        is_held: Whether a training holds its lock.
        has_steps: Whether it has metrics of training, as one has that logs without a trainer and so without legs.
    """
    word, was_opened_again, was_trained_again = "", False, False
    has_rows, has_begun = False, has_steps
    for row in rows:
        has_rows = True
        if row["kind"] == "status":
            word, was_opened_again, was_trained_again = str(row.get("status")), False, False
        elif row["kind"] == "leg":
            was_trained_again = has_begun = True
        else:
            was_opened_again = True
    # Opened again, it may only have been evaluated, or a training is being prepared, which takes the lock.
    if word and not was_trained_again and not (was_opened_again and is_held):
        return word
    if is_held:
        return RUNNING
    return NOT_STARTED if has_rows and not has_begun else DEAD
