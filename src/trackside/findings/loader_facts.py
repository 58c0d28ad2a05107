"""What a loader is, in plain values: so that advice fits what the user has, and a comparison shows that it changed."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from trackside.text import count

TRAIN = "train"


@dataclass(frozen=True)
class LoaderFacts:
    """A loader. What cannot be seen from outside is None."""

    kind: str
    """`list`, `generator`, `torch DataLoader`, `grain IterDataset` and so on; else the name of its class."""
    length: int | None = None
    """How many batches it has."""
    batch_size: int | None = None
    """How many examples a batch has."""
    num_workers: int | None = None
    """How many processes make batches; 0 if the training's own process makes them."""
    num_threads: int | None = None
    """How many threads read ahead."""
    prefetch: int | None = None
    """How many batches, or records, it prepares ahead."""
    keeps_workers: bool | None = None
    """Whether its workers live on from epoch to epoch."""
    is_on_device: bool = False
    """Whether its batches are arrays of the device already."""
    read_ahead: int | None = None
    """How many batches the trainer reads ahead of it on a thread; None where nobody but the loader could do that."""

    @property
    def text(self) -> str:
        """In a few words: `list of 20 batches of 8`, `torch DataLoader of 20 batches of 8, 2 workers, prefetch 2`."""
        return ", ".join([self._what(), *self._how()])

    def _what(self) -> str:
        if self.length is None:
            return self.kind
        number = f"1 batch{self._each()}" if self.length == 1 else f"{self.length:,} batches{self._each()}"
        return f"{self.kind} of {number}"

    def _each(self) -> str:
        return "" if self.batch_size is None else f" of {self.batch_size:,}"

    def _how(self) -> Iterator[str]:
        if self.length is None and self.batch_size is not None:
            yield f"batches{self._each()}"
        if self.num_workers is not None:
            yield count(self.num_workers, "worker") if self.num_workers else "no workers"
        if self.num_threads:
            yield count(self.num_threads, "thread")
        if self.prefetch:
            yield f"prefetch {self.prefetch}"
        if self.is_on_device:
            yield "on the device"
        if self.read_ahead:
            yield f"{self.read_ahead} read ahead"

    @property
    def is_in_memory(self) -> bool:
        """Whether all batches exist before the training asks for them."""
        return self.kind in ("list", "tuple")

    @property
    def prepares_ahead(self) -> bool:
        """Whether it makes batches before they are asked for."""
        return bool(self.num_workers or self.prefetch or "prefetch" in self.kind.lower())

    def comes_from(self, package: str) -> bool:
        """Whether it is a loader of a package, such as `torch`."""
        return self.kind.startswith(f"{package} ")

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for an event row; what is not known is left out."""
        known = {name: value for name, value in asdict(self).items() if value is not None and value is not False}
        return {"text": self.text, **known}


def loaders_of(plain: Any) -> dict[str, LoaderFacts]:
    """The loaders of a run by their use, from what its row says; what is not a loader is left out.

    Args:
        plain: The field `loaders` of an environment row: `train`, `val` and `test`, or `val/<name>` for one of several.
    """
    loaders = {}
    for name, fields in plain.items() if isinstance(plain, Mapping) else ():
        try:
            loaders[str(name)] = msgspec.convert(fields, LoaderFacts)
        except (msgspec.ValidationError, TypeError):  # of a version to come
            continue
    return loaders
