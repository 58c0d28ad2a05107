"""What is known of a loader without reading from it: those of Python, grain and PyTorch, and people's own."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grain
import jax
import numpy as np
import pytest
import torch

from tests.trainer.tiny import make_batch, make_loader, make_trainer, rows_of
from trackside.findings import LoaderFacts
from trackside.logger import LoggerConfig
from trackside.measured_run.loader_description import describe_loader, describe_loaders
from trackside.profiling import profile_data_loader
from trackside.runs import open_run


class Own:
    """A user's loader."""

    def __init__(self, **fields: Any):
        vars(self).update(fields)

    @property
    def prefetch(self) -> int:
        raise AssertionError("nothing of a user's loader may run")

    def __iter__(self) -> Iterator[Any]:
        return iter(make_loader(3))


class OwnTorch(torch.utils.data.DataLoader):
    """A user's own kind of DataLoader."""


def batches() -> Iterator[Any]:
    yield from make_loader(3)


def prefetch_to_device() -> Iterator[Any]:
    yield from make_loader(3)


DATA = torch.utils.data.TensorDataset(torch.zeros(40, 4))
MAP = grain.MapDataset.range(40).batch(8)


def grain_loader(worker_count: int) -> grain.DataLoader:
    sampler = grain.samplers.IndexSampler(40, shard_options=grain.sharding.NoSharding(), num_epochs=1)
    return grain.DataLoader(
        data_source=np.arange(40),
        sampler=sampler,
        operations=[grain.transforms.Batch(8)],
        worker_count=worker_count,
    )


def torch_loader(loader: type = torch.utils.data.DataLoader, **options: Any) -> torch.utils.data.DataLoader:
    return loader(DATA, batch_size=8, **options)


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (make_loader(20), "list of 20 batches of 8"),
        (tuple(make_loader(1)), "tuple of 1 batch of 8"),
        ([], "list of 0 batches"),
        ([1.0, 2.0], "list of 2 batches"),
        (jax.device_put(make_loader(2)), "list of 2 batches of 8, on the device"),
        (batches(), "generator"),
        (prefetch_to_device(), "generator prefetch_to_device"),
        (iter(make_loader(2)), "list_iterator"),
        (Own(), "Own"),
        (Own(batch_size=16, num_workers=3), "Own, batches of 16, 3 workers"),
        (Own(num_workers="many", batch_size=None), "Own"),
        (torch_loader(), "torch DataLoader of 5 batches of 8, no workers"),
        (torch_loader(num_workers=2), "torch DataLoader of 5 batches of 8, 2 workers, prefetch 2"),
        (torch_loader(OwnTorch), "torch DataLoader OwnTorch of 5 batches of 8, no workers"),
        (
            torch.utils.data.DataLoader(DATA, batch_sampler=[[1, 2], [3, 4]]),
            "torch DataLoader of 2 batches, no workers",
        ),
        (MAP, "grain MapDataset of 5 batches of 8, no workers, 16 threads, prefetch 500"),
        (MAP.repeat(), "grain MapDataset, batches of 8, no workers, 16 threads, prefetch 500"),
        (
            MAP.to_iter_dataset(grain.ReadOptions(num_threads=3, prefetch_buffer_size=6)),
            "grain IterDataset, batches of 8, no workers, 3 threads, prefetch 6",
        ),
        (
            MAP.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)),
            "grain IterDataset, batches of 8, no workers",
        ),
        (
            grain.MapDataset.range(40).to_iter_dataset().batch(8).mp_prefetch(grain.MultiprocessingOptions(2)),
            "grain IterDataset, batches of 8, 2 workers, 16 threads, prefetch 1",
        ),
        (grain_loader(0), "grain DataLoader, batches of 8, no workers"),
        (grain_loader(4), "grain DataLoader, batches of 8, 4 workers, prefetch 1"),
        (profile_data_loader(make_loader(2)), "list of 2 batches of 8"),
    ],
)
def test_a_loader_in_a_few_words(loader: Any, text: str) -> None:
    """Its kind, length, batch size, workers and what it prepares ahead, as far as they can be seen."""
    described = describe_loader(loader)
    assert described.text == text
    assert described.to_dict()["text"] == described.text


def test_workers_that_stay_alive_are_known() -> None:
    """Whether PyTorch keeps its workers from epoch to epoch; nothing of the kind without workers."""
    keeps = [torch_loader(num_workers=2, persistent_workers=keep) for keep in (True, False)]
    assert [describe_loader(loader).keeps_workers for loader in (*keeps, torch_loader())] == [True, False, None]


def test_loaders_by_use() -> None:
    """Those that there are; of several for validation, each by its name."""
    described = describe_loaders({"train": make_loader(2), "val": {"a": batches(), "b": [make_batch(4)]}, "test": None})
    assert {name: loader.text for name, loader in described.items()} == {
        "train": "list of 2 batches of 8",
        "val/a": "generator",
        "val/b": "list of 1 batch of 4",
    }


def test_a_generator_is_not_read() -> None:
    """Describing takes no batch away."""
    generator = batches()
    describe_loader(generator)
    assert len(list(generator)) == 3


def test_a_run_knows_its_loaders(tmp_path) -> None:
    """They are in its environment and in the facts, live and read back; a later training with others replaces them."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path))
    trainer.train_model(make_loader(3), make_loader(2), num_epochs=1)
    expected = {"train": LoaderFacts("list", 3, 8, read_ahead=0), "val": LoaderFacts("list", 2, 8)}
    assert trainer.run_log.facts().loaders == open_run(tmp_path).facts.loaders == expected
    assert open_run(tmp_path).environment["loaders"]["train"]["text"] == "list of 3 batches of 8"
    trainer.train_model(make_loader(4), num_epochs=2)
    assert open_run(tmp_path).facts.loaders == {"train": replace(expected["train"], length=4)}
    rows = [row for row in rows_of(tmp_path, "environment") if "loaders" in row and "hostname" not in row]
    assert [row["loaders"]["train"]["length"] for row in rows] == [3, 4]
