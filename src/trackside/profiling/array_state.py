"""Whether an array is computed, asked so that the process survives the answer."""

from typing import Any


def is_ready(array: Any) -> bool:
    """Whether an array, or something that behaves like one, is computed.

    JAX raises where an array was donated, and ends the process where one was deleted by its own method. So it is asked
    for that first.

    Raises:
        RuntimeError: The array is gone.
    """
    is_deleted = getattr(array, "is_deleted", None)
    if is_deleted is not None and is_deleted():
        raise RuntimeError("the array was deleted")
    return array.is_ready()
