"""What is advised about loaders: only what the loader that the user has can do."""

from dataclasses import replace
from typing import Any

import grain
import pytest

from trackside.findings.loader_advice import faster_batches, sooner_first_batch
from trackside.findings.loader_facts import LoaderFacts
from trackside.measured_run.loader_description import describe_loader

MAP = grain.MapDataset.range(40).batch(8)
NO_THREADS = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


@pytest.mark.parametrize(
    ("loader", "says", "never_says"),
    [
        pytest.param(MAP, "convert it with to_iter_dataset", "no threads", id="MapDataset"),
        pytest.param(MAP.to_iter_dataset(NO_THREADS), "reads with no threads", "convert", id="no threads"),
        pytest.param(MAP.to_iter_dataset(), "read with more threads", "convert", id="threads"),
    ],
)
def test_advice_fits_the_kind_of_data_set(loader: Any, says: str, never_says: str) -> None:
    """A data set that is an IterDataset already is not to be converted into one."""
    advice = faster_batches(describe_loader(loader))
    assert says in advice
    assert never_says not in advice


def test_an_iter_dataset_of_its_own_kind_is_wrapped() -> None:
    """One that reads without a MapDataset has no read options to change, but can be prefetched."""

    class Numbers(grain.IterDataset):
        def __iter__(self) -> Any:
            raise NotImplementedError

    assert "ThreadPrefetchIterDataset(dataset" in faster_batches(describe_loader(Numbers()))
    ahead = grain.experimental.ThreadPrefetchIterDataset(Numbers(), prefetch_buffer_size=2)
    assert faster_batches(describe_loader(ahead)).startswith("one thread prefetches and falls behind")


OWN = LoaderFacts("SlowLoader", 200)
TORCH = LoaderFacts("torch DataLoader", 200, 8, num_workers=0)
GRAIN = LoaderFacts("grain DataLoader", 200, 8, num_workers=0)


@pytest.mark.parametrize("loader", [OWN, TORCH, GRAIN, LoaderFacts("generator")], ids=lambda loader: loader.kind)
@pytest.mark.parametrize(("read_ahead", "is_advised"), [(0, True), (2, False), (None, False)])
def test_reading_ahead_is_advised_where_it_helps(loader: LoaderFacts, read_ahead: int | None, is_advised: bool) -> None:
    """The trainer's own thread is named where it is off; not where it is on, nor in a loop that has none."""
    advice = faster_batches(replace(loader, read_ahead=read_ahead))
    assert ("prefetch_batches=2" in advice) is is_advised


def test_reading_ahead_is_not_advised_where_it_hides_little() -> None:
    """One thread cannot make up for a loader that takes many times as long as the device."""
    own = replace(OWN, read_ahead=0)
    assert "set prefetch_batches=2" in faster_batches(own, wait_s=20.0, busy_s=10.0)
    assert faster_batches(own, wait_s=200.0, busy_s=10.0).startswith("SlowLoader takes several times as long")


@pytest.mark.parametrize(("read_ahead", "advice"), [(2, "leave prefetch_batches out"), (0, ""), (None, "")])
def test_a_list_has_nothing_to_do_before_its_first_batch(read_ahead: int | None, advice: str) -> None:
    """Only the thread that reads it ahead takes time."""
    assert sooner_first_batch(LoaderFacts("list", 20, read_ahead=read_ahead)).startswith(advice)
    assert bool(sooner_first_batch(LoaderFacts("list", 20, read_ahead=read_ahead))) is bool(advice)


@pytest.mark.parametrize(
    "loader",
    [
        LoaderFacts("list", 20, read_ahead=0),
        LoaderFacts("torch DataLoader", 20, num_workers=4, read_ahead=0),
        LoaderFacts("PrefetchingLoader", 20, prefetch=8, read_ahead=0),
    ],
    ids=lambda loader: loader.kind,
)
def test_reading_ahead_is_not_advised_where_it_cannot_help(loader: LoaderFacts) -> None:
    """One more thread does nothing for batches that are there, or that others make already."""
    assert "prefetch_batches" not in faster_batches(loader)


def test_a_thread_that_falls_behind() -> None:
    """Where batches are read ahead and the device still waits, more hands are needed."""
    assert "although 4 are read ahead: make batches in several worker processes" in faster_batches(
        replace(OWN, read_ahead=4)
    )
