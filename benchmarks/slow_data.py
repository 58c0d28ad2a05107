"""Data that may take its time, for loaders whose workers start quickly: nothing here imports jax."""

import time
from typing import NamedTuple

import numpy as np

NUM_FEATURES = 32


class Pair(NamedTuple):
    """A batch."""

    inputs: np.ndarray
    targets: np.ndarray


def make_pair(size: int = 256, seed: int = 0) -> Pair:
    inputs = np.random.default_rng(seed).standard_normal((size, NUM_FEATURES), np.float32)
    return Pair(inputs, inputs.sum(axis=1, keepdims=True))


def wait(delay_s: float) -> None:
    if delay_s:  # a sleep of no time lets others run
        time.sleep(delay_s)


class Examples:
    """A data set of PyTorch."""

    def __init__(self, number: int, delay_s: float = 0.0):
        self.pair, self.delay_s = make_pair(number), delay_s

    def __len__(self) -> int:
        return len(self.pair.inputs)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        wait(self.delay_s)
        return self.pair.inputs[index], self.pair.targets[index]


def collate(examples: list[tuple[np.ndarray, np.ndarray]]) -> Pair:
    inputs, targets = zip(*examples, strict=True)
    return Pair(np.stack(inputs), np.stack(targets))
