"""The batches of a loader in lists, for calls that make several steps."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax

from trackside.fusing.batch_copies import copied_batch
from trackside.fusing.batch_stack import BatchForm


class BatchGroups:
    """Lists of batches of one form. All else that it is asked for is the loader's own.

    A list ends where the form of the batches changes, as for a smaller last one. What the loader gave before it failed
    is given out before its error.

    Args:
        loader: The loader.
        size: How many batches a list has at most.
        is_trusted: Whether the loader cannot write into the arrays of earlier batches, so that they need not be copied.
    """

    def __init__(self, loader: Iterable[Any], size: int, is_trusted: bool):
        self._loader = loader
        self._size = size
        self._is_trusted = is_trusted

    def __iter__(self) -> Iterator[list[Any]]:
        batches, group, form = iter(self._loader), [], None
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except Exception:
                if group:
                    yield group
                raise
            leaves, structure = jax.tree.flatten(batch)
            if group and not (form is not None and form.fits(leaves, structure)):
                yield group
                group = []
            if not group:
                form = BatchForm.of(leaves, structure)
            group.append(batch if self._is_trusted else copied_batch(batch))
            if len(group) == self._size:
                yield group
                group = []
        if group:
            yield group

    def __getattr__(self, attribute: str) -> Any:
        if attribute in ("_loader", "_size", "_is_trusted"):  # not set yet, as while being copied
            raise AttributeError(attribute)
        return getattr(self._loader, attribute)
