"""How a run stands."""

from collections.abc import Iterable, Mapping
from typing import Any

RUNNING, DEAD, UNKNOWN = "running", "dead", "unknown"
"""The words for a run that did not say how it ended: somebody holds its lock, nobody does, it cannot be read."""


def status_of(rows: Iterable[Mapping[str, Any]], is_held: bool) -> str:
    """The word for how a run stands.

    Args:
        rows: Its rows `format`, `leg` and `status`, in order.
        is_held: Whether a training holds its lock.
    """
    word, was_opened_again, was_trained_again = "", False, False
    for row in rows:
        if row["kind"] == "status":
            word, was_opened_again, was_trained_again = str(row.get("status")), False, False
        elif row["kind"] == "leg":
            was_trained_again = True
        else:
            was_opened_again = True
    # Opened again, it may only have been evaluated, or a training is being prepared, which takes the lock.
    if word and not was_trained_again and not (was_opened_again and is_held):
        return word
    return RUNNING if is_held else DEAD
