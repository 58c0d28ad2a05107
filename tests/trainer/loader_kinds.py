"""Loaders of every kind that people write, over the same few batches, each of which a number identifies.

Those of grain read without other processes here; `worker_loaders.py` has those with worker processes.
"""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import grain
import numpy as np
import torch.utils.data
from torch.utils.data.distributed import DistributedSampler

from tests.trainer.worker_loaders import NUM_BATCHES, Source
from trackside.trainer import Batch

NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
LONG = 12
"""How many batches a loader has that can be read only once."""


def to_batch(number: Any) -> Batch:
    """The batch that a number identifies."""
    value = np.full((1, 1), number, np.float32)
    return Batch(value, value / 8)


def order(epoch: int) -> list[int]:
    """The numbers of an epoch's batches, in an order that differs from epoch to epoch."""
    numbers = list(range(10 * epoch + 1, 10 * epoch + 1 + NUM_BATCHES))
    random.Random(epoch).shuffle(numbers)
    return numbers


class Restarting:
    """Starts again each time, without a length."""

    def __iter__(self) -> Iterator[Batch]:
        return (to_batch(number) for number in order(0))


class OldSequence:
    """Can only be indexed, and says by an error that it is over."""

    def __getitem__(self, index: int) -> Batch:
        return to_batch(order(0)[index])


class ByEpoch:
    """Is told the epoch, and has another order in each."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        return map(to_batch, order(self.epoch))


class ByEpochWithLength(ByEpoch):
    """The same, with a length."""

    def __len__(self) -> int:
        return NUM_BATCHES


class OwnIterator:
    """Is its own iterator, has another order in each epoch, and begins the next when one is over."""

    def __init__(self) -> None:
        self.state = {"epoch": 0, "index": 0}

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.state["index"] == NUM_BATCHES:
            self.state["epoch"] += 1
            self.state["index"] = 0
            raise StopIteration
        self.state["index"] += 1
        return to_batch(order(self.state["epoch"])[self.state["index"] - 1])


class OwnIteratorWithState(OwnIterator):
    """The same, with a position."""

    def get_state(self) -> dict[str, int]:
        return dict(self.state)

    def set_state(self, state: dict[str, int]) -> None:
        self.state = dict(state)


class OwnIteratorWithLength(OwnIteratorWithState):
    """The same, with a position and a length."""

    def __len__(self) -> int:
        return NUM_BATCHES


class OwnIteratorWithLiveState(OwnIteratorWithLength):
    """The same, whose position is the very dict that it continues to change."""

    def get_state(self) -> dict[str, int]:
        return self.state


class OwnIteratorResetByIter(OwnIteratorWithLength):
    """The same, which begins an epoch when it is opened and not when one is over."""

    def __init__(self) -> None:
        self.state = {"epoch": -1, "index": 0}

    def __iter__(self) -> Iterator[Batch]:
        self.state = {"epoch": self.state["epoch"] + 1, "index": 0}
        return self

    def __next__(self) -> Batch:
        if self.state["index"] == NUM_BATCHES:
            raise StopIteration
        self.state["index"] += 1
        return to_batch(order(self.state["epoch"])[self.state["index"] - 1])


class Endless(OwnIteratorWithState):
    """An iterator with a length and a position that never ends: an epoch is as many batches as the length says."""

    def __len__(self) -> int:
        return NUM_BATCHES

    def __next__(self) -> Batch:
        self.state["index"] += 1
        return to_batch(self.state["index"])


class Reshuffling:
    """Counts its epochs after its last `yield`, and has another order in each."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return NUM_BATCHES

    def __iter__(self) -> Iterator[Batch]:
        for number in order(self.epoch):
            yield to_batch(number)
        self.epoch += 1


class ReshufflingWithState(Reshuffling):
    """The same, with a position by the names that PyTorch's stateful loaders have."""

    def __init__(self) -> None:
        super().__init__()
        self.index = 0

    def __iter__(self) -> Iterator[Batch]:
        for number in order(self.epoch)[self.index :]:
            self.index += 1
            yield to_batch(number)
        self.epoch, self.index = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.index = state["epoch"], state["index"]


class WithStateByEpoch(ReshufflingWithState):
    """The same, which is told the epoch, and then begins it at its first batch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.index = epoch, 0


class NoLength(ReshufflingWithState):
    """The same without a length."""

    __len__ = None  # type: ignore[assignment]


class Numbers(torch.utils.data.Dataset):
    """A data set for PyTorch."""

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> int:
        return index + 1


class ToBatch(grain.transforms.Map):
    """Makes batches of numbers."""

    def map(self, element: Any) -> Any:
        return to_batch(element)


def torch_loader() -> Iterable:
    return torch.utils.data.DataLoader(Numbers(), batch_size=1, collate_fn=lambda rows: to_batch(rows[0]))


def torch_loader_with_sampler() -> Iterable:
    sampler = DistributedSampler(Numbers(), num_replicas=1, rank=0, shuffle=True)
    return torch.utils.data.DataLoader(
        Numbers(), batch_size=1, sampler=sampler, collate_fn=lambda rows: to_batch(rows[0])
    )


def grain_loader() -> Iterable:
    sampler = grain.samplers.IndexSampler(NUM_BATCHES, shuffle=True, seed=1, num_epochs=1)
    return grain.DataLoader(data_source=Source(), sampler=sampler, operations=[ToBatch()], worker_count=0)


def grain_map_dataset() -> grain.MapDataset:
    return grain.MapDataset.source(range(1, NUM_BATCHES + 1)).seed(1).shuffle().map(to_batch)


def grain_iter_dataset() -> Iterable:
    return grain_map_dataset().to_iter_dataset(NO_THREADS)


def grain_endless() -> Iterable:
    numbers = grain.MapDataset.source(range(1, NUM_BATCHES + 1)).seed(1).shuffle().repeat()
    return numbers.map(to_batch).to_iter_dataset(NO_THREADS)


class ToldTheEpoch(WithStateByEpoch):
    """The same, which does not count epochs itself."""

    def __iter__(self) -> Iterator[Batch]:
        for number in order(self.epoch)[self.index :]:
            self.index += 1
            yield to_batch(number)
        self.index = 0


class EndlessWithoutState(Endless):
    """Never ends, has a length, and cannot say where it is."""

    get_state = set_state = None  # type: ignore[assignment]


PASSES = {
    "list": lambda: [to_batch(number) for number in order(0)],
    "restarting": Restarting,
    "old sequence": OldSequence,
    "by epoch": ByEpoch,
    "by epoch, with length": ByEpochWithLength,
    "own iterator": OwnIterator,
    "own iterator, state": OwnIteratorWithState,
    "own iterator, state, length": OwnIteratorWithLength,
    "own iterator, live state": OwnIteratorWithLiveState,
    "own iterator, reset by iter": OwnIteratorResetByIter,
    "reshuffling, state": ReshufflingWithState,
    "reshuffling, state, by epoch": WithStateByEpoch,
    "reshuffling, state, no length": NoLength,
    "state, told the epoch": ToldTheEpoch,
    "torch": torch_loader,
    "torch, sampler": torch_loader_with_sampler,
    "grain loader": grain_loader,
    "grain map dataset": grain_map_dataset,
    "grain iter dataset": grain_iter_dataset,
}
"""Loaders that give a pass each time they are opened, and can be continued exactly."""

STREAMS = {
    "one-shot generator": lambda: (to_batch(number) for number in range(1, LONG + 1)),
    "endless, length": Endless,
    "endless, length, no state": EndlessWithoutState,
    "grain, endless": grain_endless,
}
"""Loaders of which an epoch is a number of steps."""


def plain_numbers(loader: Any, num_epochs: int, steps_per_epoch: int | None) -> list[float]:
    """The numbers of the batches as plain `for` loops read them: a pass per epoch, or pass after pass.

    Args:
        loader: A fresh loader.
        num_epochs: How many epochs.
        steps_per_epoch: How many batches an epoch has, if it is not a pass.
    """
    numbers: list[float] = []
    num_wanted = None if steps_per_epoch is None else num_epochs * steps_per_epoch
    num_passes = 0
    while num_passes < num_epochs if num_wanted is None else len(numbers) < num_wanted:
        for owner in (loader, getattr(loader, "sampler", None)):
            getattr(owner, "set_epoch", lambda epoch: None)(num_passes)
        for batch in loader:
            numbers.append(float(batch.inputs.item()))
            if len(numbers) == num_wanted:
                break
        num_passes += 1
    return numbers
