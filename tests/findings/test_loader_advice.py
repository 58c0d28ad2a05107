"""What is advised about loaders: only what the loader that the user has can do."""

from typing import Any

import grain
import pytest

from trackside.findings.loader_advice import faster_batches
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
