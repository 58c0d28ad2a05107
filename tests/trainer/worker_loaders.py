"""Loaders of grain with a worker process each, or with none. Workers import this module, so it imports little."""

from collections.abc import Iterable
from typing import Any

import grain
import numpy as np

NUM_BATCHES = 3
"""How many batches a pass has."""


class Source(grain.sources.RandomAccessDataSource):
    """Numbers, recognized by grain by their `repr`."""

    def __repr__(self) -> str:
        return "Source()"

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: Any) -> int:
        return int(index) + 1


class ToBatch(grain.transforms.Map):
    """Makes batches of numbers."""

    def map(self, element: Any) -> Any:
        value = np.full((1, 1), element, np.float32)
        return {"inputs": value, "targets": value / 8}


def data_loader(num_workers: int = 1) -> Iterable:
    sampler = grain.samplers.IndexSampler(NUM_BATCHES, shuffle=True, seed=1, num_epochs=1)
    return grain.DataLoader(data_source=Source(), sampler=sampler, operations=[ToBatch()], worker_count=num_workers)


def iter_dataset(num_workers: int = 1) -> Iterable:
    numbers = grain.MapDataset.source(Source()).seed(1).shuffle().map(ToBatch()).to_iter_dataset()
    return numbers.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers)) if num_workers else numbers
