"""What the loaders of a training are, as far as that can be seen without reading a batch from them.

Only what is stored in a loader is looked at: nothing is called, and no property is asked, which may do anything.
"""

import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from trackside.errors import DataError
from trackside.findings.loader_facts import TRAIN, LoaderFacts
from trackside.measured_run.batch_size import batch_size, loader_length
from trackside.profiling.timers.timed_loader import without_timers

MAX_LENGTH = 1 << 53
"""A length beyond this stands for a loader without an end."""

_GRAIN_KINDS = ("DataLoader", "MapDataset", "IterDataset", "DatasetIterator", "DataLoaderIterator")
_TORCH_KIND = "DataLoader"
_MAX_GRAIN_NODES = 256
# What loaders of other packages, and people's own, call these things.
_WORKERS = ("num_workers", "worker_count", "n_workers", "num_processes")
_THREADS = ("num_threads", "n_threads")
_PREFETCH = ("prefetch", "prefetch_factor", "prefetch_size", "num_prefetch", "prefetch_batches", "prefetch_buffer_size")


def describe_loaders(loaders: Mapping[str, Any], num_read_ahead: int | None = None) -> dict[str, LoaderFacts]:
    """The loaders of a training by their use; of a dict of loaders, each as `val/<name>`.

    Args:
        loaders: Loaders, dicts of them, or None, by their use.
        num_read_ahead: How many batches of the loader to train on are read ahead; None where that is not possible.
    """
    described: dict[str, LoaderFacts] = {}
    for name, loader in loaders.items():
        if isinstance(loader, dict):
            described |= describe_loaders({f"{name}/{key}": one for key, one in loader.items()})
        elif loader is not None:
            described[name] = describe_loader(loader)
    if TRAIN in described:
        described[TRAIN] = replace(described[TRAIN], read_ahead=num_read_ahead)
    return described


def describe_loader(loader: Any) -> LoaderFacts:
    """What a loader is."""
    loader = without_timers(loader)
    length = loader_length(loader)
    length = None if length is None or length > MAX_LENGTH else length
    if isinstance(loader, list | tuple):
        return _describe_sequence(loader, length)
    if isinstance(loader, types.GeneratorType):
        name = loader.__name__ if "prefetch" in loader.__name__.lower() else ""
        return LoaderFacts(f"generator {name}".strip())
    if kind := _kind_in(loader, "grain", _GRAIN_KINDS):
        return _describe_grain(loader, kind, length)
    if _kind_in(loader, "torch", (_TORCH_KIND,)):
        return _describe_torch(loader, length)
    return LoaderFacts(
        type(loader).__name__,
        length,
        _first_number(loader, ("batch_size",)),
        _first_number(loader, _WORKERS),
        _first_number(loader, _THREADS),
        _first_number(loader, _PREFETCH),
    )


def _describe_sequence(batches: Sequence[Any], length: int | None) -> LoaderFacts:
    kind = "tuple" if isinstance(batches, tuple) else "list"
    if not batches:
        return LoaderFacts(kind, length)
    try:
        size = batch_size(batches[0])
    except DataError:
        size = None
    is_on_device = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(batches[0]))
    return LoaderFacts(kind, length, size, is_on_device=is_on_device)


def _kind_in(loader: Any, package: str, kinds: Iterable[str]) -> str:
    """Which of the kinds of loader that a package has this one is, or is derived from; empty if none."""
    names = [one.__name__ for one in type(loader).__mro__ if one.__module__.partition(".")[0] == package]
    return next((kind for kind in kinds if kind in names), "")


def _describe_torch(loader: Any, length: int | None) -> LoaderFacts:
    own = type(loader)
    package = own.__module__.partition(".")[0]
    # A class of the user's is called by its own name, with that of the package, so that advice still fits.
    kind = f"{package} {own.__name__}" if package in ("torch", "torchdata") else f"torch {_TORCH_KIND} {own.__name__}"
    num_workers = _number(loader, "num_workers")
    size = _number(loader, "batch_size")
    return LoaderFacts(
        kind,
        length,
        size if size is not None else _number(getattr(loader, "batch_sampler", None), "batch_size"),
        num_workers,
        prefetch=_number(loader, "prefetch_factor") if num_workers else None,
        keeps_workers=bool(vars(loader).get("persistent_workers")) if num_workers else None,
    )


def _describe_grain(loader: Any, kind: str, length: int | None) -> LoaderFacts:
    if kind.startswith("DataLoader"):
        source = _stored(loader, "_data_loader") if kind == "DataLoaderIterator" else loader
        options = _stored(source, "_multiprocessing_options")
        sizes = [_number(one, "batch_size") for one in _stored(source, "_operations") or ()]
        num_workers = _number(options, "num_workers")
        size = next((size for size in reversed(sizes) if size is not None), None)
        prefetch = _number(options, "per_worker_buffer_size") if num_workers else None
        return LoaderFacts("grain DataLoader", length, size, num_workers, prefetch=prefetch)
    nodes = list(_grain_nodes(loader))
    reads = [options for one in nodes if (options := _stored(one, "_read_options")) is not None]
    if kind == "MapDataset":
        reads.append(sys.modules["grain"].ReadOptions())  # what it is iterated over with
    ahead = [one for one in nodes if "ProcessPrefetch" in type(one).__name__]
    sizes = [size for one in nodes if (size := _number(one, "_batch_size")) is not None]
    buffers = [_number(one, "_buffer_size") for one in ahead]
    buffers += [_number(one, "_prefetch_buffer_size") for one in nodes if "ThreadPrefetch" in type(one).__name__]
    buffers += [_number(options, "prefetch_buffer_size") for options in reads]
    return LoaderFacts(
        f"grain {kind}",
        length,
        sizes[0] if sizes else None,
        len(ahead),
        next((_number(options, "num_threads") for options in reads), None),
        next((size for size in buffers if size is not None), None),
    )


def _grain_nodes(dataset: Any) -> Iterator[Any]:
    """The steps of a grain data set, the last first."""
    seen: set[int] = set()
    to_visit = [dataset]
    while to_visit and len(seen) < _MAX_GRAIN_NODES:
        node = to_visit.pop(0)
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        for name in ("_parents", "_datasets"):
            below = _stored(node, name)
            to_visit += list(below) if isinstance(below, list | tuple) else []


def _first_number(owner: Any, names: Iterable[str]) -> int | None:
    return next((number for name in names if (number := _number(owner, name)) is not None), None)


def _number(owner: Any, name: str) -> int | None:
    value = _stored(owner, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _stored(owner: Any, name: str) -> Any:
    """An attribute that is a plain value of an object or of its class; None if it has none."""
    try:
        value = inspect.getattr_static(owner, name, None)
    except Exception:
        return None
    # A slot is found as its descriptor, which gives the value without running any code of a user.
    return getattr(owner, name, None) if isinstance(value, types.MemberDescriptorType) else value
