"""Batches in lists: all of them, in order, of one form in each."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from trackside.fusing.batch_groups import BatchGroups


def batches(*sizes: int) -> list[Any]:
    return [(np.full(size, at, np.float32), np.int32(at)) for at, size in enumerate(sizes)]


def lengths(groups: Any) -> list[tuple[int, int]]:
    return [(len(group), len(group[0][0])) for group in groups]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([4] * 6, [(3, 4), (3, 4)]),
        ([4] * 5, [(3, 4), (2, 4)]),
        ([4, 4, 4, 4, 2], [(3, 4), (1, 4), (1, 2)]),
        ([4, 2, 4], [(1, 4), (1, 2), (1, 4)]),
    ],
)
def test_a_list_ends_where_the_form_changes(sizes: list[int], expected: list[tuple[int, int]]) -> None:
    """Each list has up to so many batches of one form, and none is lost."""
    given = batches(*sizes)
    assert lengths(BatchGroups(given, 3, is_trusted=True)) == expected
    flat = [batch for group in BatchGroups(given, 3, is_trusted=True) for batch in group]
    assert all(one is other for one, other in zip(flat, given, strict=True))


def test_what_cannot_be_put_together_is_alone() -> None:
    """A batch with a number of Python's in it is left for the call to complain of."""
    given = [*batches(2, 2), (np.zeros(2, np.float32), 0.5), *batches(2, 2)]
    assert [len(group) for group in BatchGroups(given, 3, is_trusted=True)] == [2, 1, 2]


def test_memory_that_a_loader_uses_again_is_copied() -> None:
    """Each batch of a list is what it was when the loader gave it."""

    def refilling() -> Iterator[Any]:
        buffer = np.zeros(2)
        for at in range(5):
            buffer[:] = at
            yield buffer

    groups = BatchGroups(refilling(), 3, is_trusted=False)
    assert [one[0] for group in groups for one in group] == [0, 1, 2, 3, 4]


def test_what_came_before_an_error_is_given_out() -> None:
    """Then the error comes as it was."""

    def failing() -> Iterator[Any]:
        yield from batches(2, 2)
        raise LookupError("in the loader")

    groups, seen = iter(BatchGroups(failing(), 4, is_trusted=False)), []
    with pytest.raises(LookupError, match="in the loader"):
        seen.extend(groups)
    assert [len(group) for group in seen] == [2]


def test_other_attributes_are_the_loaders() -> None:
    """Such as the method that tells a shuffling loader its epoch."""

    class Loader(list):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    loader = Loader(batches(2))
    BatchGroups(loader, 2, is_trusted=True).set_epoch(3)
    assert loader.epoch == 3
