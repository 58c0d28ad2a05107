"""What to do about a loader, in the words of the loader that the user has."""

from trackside.findings.loader_facts import LoaderFacts
from trackside.text import count

_OFFLINE = "prepare more of the data before training"
_READ_AHEAD = "set prefetch_batches=2 (in Trainer or TrainerConfig), which reads it ahead on a thread"


MAX_HIDDEN = 3.0
"""Reading ahead is of little use for a loader that takes so many times as long as the device."""


def faster_batches(loader: LoaderFacts | None, wait_s: float = 0.0, busy_s: float | None = None) -> str:
    """What to do if the device waits for batches.

    Args:
        loader: What is known of the loader.
        wait_s: How long the loop waited for it.
        busy_s: How long the device computed, which is as much of the wait as reading ahead can hide; None if unknown.
    """
    if loader is None:
        return f"make batches in worker processes or in a background thread, or {_OFFLINE}"
    if loader.is_in_memory:
        return (
            f"the {loader.kind} has its batches already, so reading them is what takes long: load memory-mapped or "
            "lazy arrays into memory before training (np.array)"
        )
    if loader.comes_from("torch") or loader.comes_from("torchdata"):
        return _faster_torch(loader)
    if loader.comes_from("grain"):
        return _faster_grain(loader)
    if loader.num_workers:
        return f"give {loader.kind} more than {count(loader.num_workers, 'worker')}, or {_OFFLINE}"
    if loader.prepares_ahead:
        return (
            f"{loader.kind} prefetches and still falls behind, so a longer queue will not help: make batches in "
            f"several worker processes, or {_OFFLINE}"
        )
    return _faster_own(loader, hides_little=busy_s is not None and wait_s > MAX_HIDDEN * busy_s)


def _faster_own(loader: LoaderFacts, hides_little: bool) -> str:
    """For a loader that the user wrote."""
    name = "the generator" if loader.kind == "generator" else loader.kind
    if loader.read_ahead:
        return (
            f"{name} takes longer for a batch than the device for a step, although {loader.read_ahead} are read ahead: "
            f"make batches in several worker processes, or {_OFFLINE}"
        )
    if loader.read_ahead == 0 and hides_little:
        return (
            f"{name} takes several times as long for a batch as the device for a step: make batches in several worker "
            f"processes, or {_OFFLINE}; prefetch_batches, which reads ahead on one thread, hides only a part of it"
        )
    if loader.read_ahead == 0:
        return (
            f"{name} makes each batch while the device waits: {_READ_AHEAD}; if that is not enough, make batches in "
            f"worker processes, or {_OFFLINE}"
        )
    return (
        f"{name} makes each batch while the device waits: make batches in worker processes or in a background thread, "
        f"or {_OFFLINE}"
    )


def _or_offline(loader: LoaderFacts) -> str:
    """What else helps a loader that makes no batches ahead."""
    return f", or {_READ_AHEAD}, or {_OFFLINE}" if loader.read_ahead == 0 else f", or {_OFFLINE}"


def _faster_torch(loader: LoaderFacts) -> str:
    if not loader.num_workers:
        return f"give the DataLoader workers, such as num_workers=4 (it has none){_or_offline(loader)}"
    return f"give the DataLoader more workers (num_workers={loader.num_workers} now), or {_OFFLINE}"


def _faster_grain(loader: LoaderFacts) -> str:
    if loader.kind == "grain DataLoader":
        if not loader.num_workers:
            return f"give the DataLoader workers (worker_count; it has none){_or_offline(loader)}"
        return f"give the DataLoader more workers (worker_count; {loader.num_workers} now), or {_OFFLINE}"
    if loader.num_workers:
        return f"use more worker processes in mp_prefetch ({loader.num_workers} now), or {_OFFLINE}"
    if loader.kind == "grain MapDataset":
        return (
            f"convert it with to_iter_dataset(ReadOptions(num_threads=...)) to read with more than "
            f"{count(loader.num_threads or 0, 'thread')}, and make batches in worker processes with its mp_prefetch"
        )
    if loader.num_threads:
        return (
            f"read with more threads (ReadOptions(num_threads=...); {loader.num_threads} now), or make batches in "
            "worker processes with mp_prefetch"
        )
    if loader.num_threads is None and loader.prefetch:
        return (
            f"one thread prefetches and falls behind: make batches in worker processes with mp_prefetch, or {_OFFLINE}"
        )
    if loader.num_threads is None:  # not made of a MapDataset
        return (
            "nothing is prepared ahead: make batches in worker processes with mp_prefetch, or in a thread with "
            "grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=...)"
        )
    return (
        "its to_iter_dataset reads with no threads: give it ReadOptions(num_threads=16), or make batches in worker "
        "processes with mp_prefetch"
    )


def sooner_first_batch(loader: LoaderFacts | None) -> str:
    """What to do if the first batch of each epoch takes long."""
    name = "the loader" if loader is None else loader.kind
    if loader is not None and loader.is_in_memory and loader.read_ahead:
        return f"leave prefetch_batches out: the {name} has its batches already, and a thread is started for each epoch"
    if loader is not None and loader.is_in_memory:
        return ""
    if loader is None or not loader.num_workers:
        return f"have {name} do less before the first batch of an epoch, or prepare that batch ahead"
    if loader.comes_from("torch") or loader.comes_from("torchdata"):
        if not loader.keeps_workers:
            return "keep the DataLoader's workers alive from epoch to epoch (persistent_workers=True)"
        return "the workers are kept alive already: have the data set do less when an epoch starts"
    return f"{name} starts its workers again for each epoch: let it repeat its data instead, so that they stay alive"
