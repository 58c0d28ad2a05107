"""A look at the first batch of a loader, of which no batch is lost.

Whether a loader starts again cannot be seen: `tqdm(generator)` gives a new iterator each time, and all of them read the
one generator. So the pass that was begun for a look is kept, and who opens the loader next continues it.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from trackside.trainer.loaders import (
    decode_position,
    get_position,
    has_position,
    open_loader,
    restarts,
    set_epoch,
    set_position,
)

NO_BATCH = object()
"""What a look at an empty loader gives."""


class FirstLook:
    """The passes over loaders that were begun for a look."""

    def __init__(self) -> None:
        self._begun: list[tuple[Any, Iterator, Any]] = []

    def look(self, loader: Iterable, name: str, is_to_train: bool = False) -> Any:
        """The first batch of a loader, which `open` gives again; `NO_BATCH` if there is none.

        Args:
            loader: The loader. One with a position is put back to it.
            name: What the loader is called in errors.
            is_to_train: Whether it is one to train on: its `set_epoch`, if it has one, is called before it is opened.
        """
        for known, _, first in self._begun:
            if known is loader:
                return first
        before = get_position(loader) if has_position(loader) else None
        if is_to_train:
            set_epoch(loader, 0)
        iterator = open_loader(loader, name)
        first = next(iterator, NO_BATCH)
        if before is not None:
            set_position(loader, decode_position(before))
        elif first is not NO_BATCH and not restarts(loader, iterator):
            self._begun.append((loader, iterator, first))
        return first

    def open(self, loader: Iterable, name: str) -> tuple[Iterator, Iterator]:
        """Begin a pass over a loader, or continue the one that was begun for a look.

        Args:
            loader: The loader.
            name: What it is called in errors.

        Returns:
            The loader's own iterator, and where its batches are to be read from.
        """
        for index, (known, iterator, first) in enumerate(self._begun):
            if known is loader:
                del self._begun[index]
                return iterator, chain((first,), iterator)
        iterator = open_loader(loader, name)
        return iterator, iterator
