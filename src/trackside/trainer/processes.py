"""What the processes of one training decide together.

Every process runs the same loop, and each step waits for all of them. A process that decides by what it alone can see,
such as a folder in which another one is writing, takes another turn than the others, and all wait for ever. So the
first process looks and tells, or all tell each other. With one process nothing is sent.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from trackside.errors import CheckpointError, DataError

_FAILED = -2


def is_main() -> bool:
    """Whether this is the first process, which writes what is written once."""
    return jax.process_index() == 0


def main_decides(choose: Callable[[], int], what: str) -> int:
    """The number that the first process chooses, on all of them. What fails there fails on all.

    Args:
        choose: Called on the first process only; gives a number from -1 up.
        what: What is chosen, for the error on the other processes.
    """
    if jax.process_count() == 1:
        return choose()
    chosen, failure = _FAILED, None
    if is_main():
        try:
            chosen = choose()
        except Exception as error:
            failure = error
    chosen = int(multihost_utils.broadcast_one_to_all(np.int32(chosen)))
    if failure is not None:
        raise failure
    if chosen == _FAILED:
        raise CheckpointError(f"{what}: this has failed on the first process, whose log says why")
    return chosen


def raise_together(failure: CheckpointError | None) -> None:
    """Raise on every process if something has failed on one, so that none waits for one that has given up."""
    failed = [index for index, has_failed in enumerate(gather(failure is not None)) if has_failed]
    if failure is not None:
        raise failure
    if failed:
        raise CheckpointError(f"a checkpoint could not be written by process {failed[0]}, whose log says why")


def gather(value: Any) -> list[Any]:
    """What each process has given, in their order: anything that JSON can hold."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(data.size))
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: data.size] = data
    texts = multihost_utils.process_allgather(padded)
    return [json.loads(text[:size].tobytes()) for text, size in zip(texts, sizes, strict=True)]


def whole(tree: Any) -> Any:
    """Arrays of which each process holds a part, whole, as numpy arrays on all of them."""
    return tree if jax.process_count() == 1 else multihost_utils.process_allgather(tree, tiled=True)


def check_same(counts: Mapping[str, int | None], fix: str) -> None:
    """Raise on every process if their data do not go together.

    Args:
        counts: What has to be the same on all, by what it is called.
        fix: What to do about it.
    """
    gathered = gather(dict(counts))
    for name in counts:
        values = [one[name] for one in gathered]
        if len(set(values)) > 1:
            raise DataError(f"{name}: {values} by process, and they have to be the same on all; {fix}")
