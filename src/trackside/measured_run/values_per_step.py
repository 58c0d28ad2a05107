"""Values of a call that makes several steps, one for each of them: what a scan over batches returns as its losses."""

from typing import Any

import numpy as np
from numpy import asarray

from trackside.profiling.array_state import is_ready
from trackside.profiling.call_record import CallRecord

TrainRow = tuple[dict[str, float], int, int, float]
"""Numbers by name, their step, its epoch, and when it was over."""


def is_number(dtype: Any) -> bool:
    """Whether arrays of a type hold numbers."""
    if not isinstance(dtype, np.dtype):
        return False
    # bfloat16, int4 and the like, which numpy does not know
    return dtype.kind in "biuf" or (dtype.kind == "V" and dtype.name.startswith(("bfloat", "float", "int", "uint")))


class ValuesPerStep:
    """The values of one name, which a device may still be computing.

    Args:
        array: As many numbers as the call has steps.
        every: Which steps are logged.
    """

    def __init__(self, array: Any, every: int):
        self.every = every
        self._array: Any = array.copy() if isinstance(array, np.ndarray) else array  # numpy's may be used again

    @staticmethod
    def fits(value: Any, call: CallRecord | None) -> bool:
        """Whether a value has a number for each of the steps of a call."""
        if call is None or call.num_steps < 2 or getattr(value, "shape", None) != (call.num_steps,):
            return False
        return is_number(value.dtype)

    def is_ready(self) -> bool:
        """Whether they are there."""
        return not hasattr(self._array, "is_ready") or is_ready(self._array)

    def block_until_ready(self) -> None:
        """Wait until they are."""
        if hasattr(self._array, "block_until_ready"):
            self._array.block_until_ready()

    def read(self) -> "NumbersPerStep":
        """The numbers."""
        return NumbersPerStep(asarray(self._array).astype(np.float64).tolist(), self.every)


class NumbersPerStep:
    """The same, once they are there."""

    def __init__(self, numbers: list[float], every: int):
        self.numbers = numbers
        self.every = every

    def is_ready(self) -> bool:
        """They are."""
        return True

    def block_until_ready(self) -> None:
        """Nothing to wait for."""

    def read(self) -> "NumbersPerStep":
        """Themselves."""
        return self


def rows_per_step(values: dict[str, Any], step: int, epoch: int, completed_s: float, since_s: float) -> list[TrainRow]:
    """A row for each step of a call; what has one number belongs to the last.

    Args:
        values: What was logged after the call.
        step: Its last step.
        epoch: The epoch.
        completed_s: When the call was over.
        since_s: When the device began with it: its steps take equal shares of the time.
    """
    several = {name: value for name, value in values.items() if isinstance(value, NumbersPerStep)}
    num_steps = max(len(value.numbers) for value in several.values())
    each_s = max(completed_s - since_s, 0.0) / num_steps
    rows = []
    for index, at in enumerate(range(step - num_steps + 1, step + 1)):
        row = {name: value.numbers[index] for name, value in several.items() if at % value.every == 0}
        if at == step:
            row |= {name: value for name, value in values.items() if name not in several}
        if row:
            rows.append((row, at, epoch, completed_s - (step - at) * each_s))
    return rows
