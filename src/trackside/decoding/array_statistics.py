"""What is told of each parameter and of its gradient."""

import numpy as np

STATISTICS = ("mean", "std", "norm", "max_abs")
"""The figures of one array, in the order in which they are packed. Of complex arrays those of the absolute values."""


def array_statistics(array: np.ndarray) -> list[float]:
    """The `STATISTICS` of an array on the host."""
    values = np.abs(array) if np.iscomplexobj(array) else array
    values = values.astype(np.float32)
    return [float(values.mean()), float(values.std()), float(np.linalg.norm(values)), float(np.abs(values).max())]


def name_statistics(names: list[str], rows: np.ndarray) -> dict[str, float]:
    """Statistics by `<array>.<statistic>`, and the norm of all arrays together as `norm`.

    Args:
        names: What the arrays are called.
        rows: Their statistics, one row per array.
    """
    rows = np.asarray(rows, np.float64).reshape(len(names), len(STATISTICS))
    named = {
        f"{name}.{statistic}": float(value)
        for name, row in zip(names, rows, strict=True)
        for statistic, value in zip(STATISTICS, row, strict=True)
    }
    return {"norm": float(np.linalg.norm(rows[:, STATISTICS.index("norm")]))} | named
