"""What is trained: five models that differ, with their data. Each library has its own version of them."""

import string
from dataclasses import dataclass
from typing import Literal

import numpy as np

LEARNING_RATE = 1e-3
NUM_BATCHES = 64
"""Batches that are made; a loop goes round them."""
ALPHABET = string.ascii_lowercase + " .,"


@dataclass(frozen=True)
class Task:
    """A model and how it is trained."""

    name: str
    title: str
    kind: Literal["mlp", "cnn", "transformer"]
    batch_size: int
    num_steps: int
    """Steps of one measurement, and of an epoch, unless they take too little time."""
    hidden: tuple[int, ...] = ()
    """Widths of the hidden layers of an MLP."""
    activation: Literal["tanh", "swish", "gelu"] = "tanh"
    is_residual: bool = False
    """Whether each hidden layer of an MLP is normalized and added to its input."""
    width: int = 0
    num_layers: int = 0
    context: int = 0

    @property
    def is_classification(self) -> bool:
        return self.kind != "mlp"

    @property
    def num_classes(self) -> int:
        return 10 if self.kind == "cnn" else len(ALPHABET)


TASKS = {
    task.name: task
    for task in (
        Task("mlp-1", "MLP, one hidden layer, tanh", "mlp", 8, 3000, (64,), "tanh"),
        Task("mlp-2", "MLP, two hidden layers, swish", "mlp", 8, 3000, (64, 64), "swish"),
        Task("mlp-4", "MLP, four hidden layers, gelu, residual", "mlp", 8, 3000, (32,) * 4, "gelu", is_residual=True),
        Task("cnn", "CNN on digits", "cnn", 16, 1000),
        Task(
            "char-5ms", "character transformer, short steps", "transformer", 12, 200, width=64, num_layers=2, context=32
        ),
        Task(
            "char-50ms", "character transformer, long steps", "transformer", 16, 30, width=128, num_layers=3, context=64
        ),
    )
}


def make_batches(task: Task) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and targets of the batches of a task: random but for the digits, which are scikit-learn's."""
    rng = np.random.default_rng(0)
    if task.kind == "mlp":
        shape = (NUM_BATCHES, task.batch_size)
        inputs = rng.standard_normal((*shape, 64), np.float32)
        return list(zip(inputs, rng.standard_normal((*shape, 1), np.float32), strict=True))
    if task.kind == "cnn":
        from sklearn.datasets import load_digits  # the other tasks do without it

        digits = load_digits()
        chosen = rng.integers(0, len(digits.target), (NUM_BATCHES, task.batch_size))
        images = (digits.images[..., None] / 16).astype(np.float32)
        return list(zip(images[chosen], digits.target.astype(np.int32)[chosen], strict=True))
    shape = (NUM_BATCHES, task.batch_size, task.context + 1)
    letters = rng.integers(0, task.num_classes, shape).astype(np.int32)
    return list(zip(letters[..., :-1], letters[..., 1:], strict=True))
