"""What fills the memory: live arrays by owner, the devices' allocators, and the process itself.

A figure that is not available is left out, never zero. Nothing here keeps an array alive.
"""

import re
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from trackside.clock import SYSTEM_CLOCK, Clock

OTHER = "other"
"""The owner of live arrays that have no other."""
LOOP = "loop"
"""The owner of what a training loop keeps for its calls: little, and never more than so much."""

_HOST_FIGURES = {"VmRSS": "rss_bytes", "VmHWM": "peak_rss_bytes", "RssAnon": "private_bytes"}
_HOST_LINE = re.compile(rf"^({'|'.join(_HOST_FIGURES)}):\s+(\d+) kB$", re.MULTILINE)
_BYTES_PER_MAXRSS = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class LiveArrays:
    """The arrays that JAX keeps in this process, on all of its devices."""

    bytes_by_owner: dict[str, int]
    """Bytes by owner; those without one are under `other`."""
    num_arrays: int
    """How many arrays; several that share their memory count as one."""


def owner_bytes(owners: Mapping[str, Any], forms: Mapping[str, Any] | None = None) -> LiveArrays:
    """Count the memory of live arrays by who owns them.

    Each piece of memory counts once, on every device that holds a copy of it: an array and its shards are one.

    Args:
        owners: Trees of arrays by owner. Leaves that are not arrays, or were deleted or donated, are skipped; an
            array with two owners counts for the first.
        forms: Trees of arrays or shapes by owner: who has the arrays without an owner that look like one of them.

    Returns:
        The bytes, with every name of `owners` and `forms`, and `other`.
    """
    forms = forms or {}
    arrays = [array for array in jax.live_arrays() if not array.is_deleted()]
    spread, key_by_id = _tell_apart(arrays)
    owner_by_key, owner_by_form = _find_owned(owners, key_by_id), _find_forms(forms)
    distinct = {key_by_id[id(array)]: array for array in arrays}
    for key in _shard_keys(spread, distinct.values()):
        distinct.pop(key, None)
    totals = dict.fromkeys((*owners, *forms, OTHER), 0)
    for key, array in distinct.items():
        owner = owner_by_key.get(key) or owner_by_form.get((array.shape, array.dtype), OTHER)
        totals[owner] += _local_bytes(array, id(array) in spread)
    return LiveArrays(totals, len(distinct))


def _find_owned(owners: Mapping[str, Any], key_by_id: Mapping[int, Any]) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for owner, tree in owners.items():
        for leaf in jax.tree.leaves(tree):
            key = key_by_id.get(id(leaf)) or key_by_id.get(id(_data_of(leaf)))
            if key is not None:
                found.setdefault(key, owner)
    return found


def _data_of(leaf: Any) -> Any:
    """The array behind a leaf: a typed key has its data in another one."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key and not leaf.is_deleted() else leaf


def _find_forms(forms: Mapping[str, Any]) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for owner, tree in forms.items():
        for leaf in jax.tree.leaves(tree):
            found.setdefault((tuple(jnp.shape(leaf)), jnp.result_type(leaf)), owner)
    return found


def _tell_apart(arrays: Iterable[jax.Array]) -> tuple[dict[int, jax.Array], dict[int, Any]]:
    """The arrays that are on several devices, and what distinguishes the memory of each array; by id."""
    devices_by_id: dict[int, set[Any]] = {}  # arrays share their shardings, and those are slow to ask
    spread: dict[int, jax.Array] = {}
    key_by_id: dict[int, Any] = {}
    for array in arrays:
        sharding = array.sharding
        devices = devices_by_id.get(id(sharding))
        if devices is None:
            devices = devices_by_id[id(sharding)] = sharding.device_set
        if len(devices) > 1:
            spread[id(array)] = array
            key_by_id[id(array)] = id(array)  # asking for the addresses of shards would make arrays of them
        else:
            key_by_id[id(array)] = _address(array, devices)
    return spread, key_by_id


def _address(array: jax.Array, devices: set[Any]) -> Any:
    try:
        return next(iter(devices)), array.unsafe_buffer_pointer()
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # deleted just now, or a device that does not say
        return id(array)


def _shard_keys(spread: Mapping[int, jax.Array], arrays: Iterable[jax.Array]) -> list[Any]:
    """The keys of arrays that are shards of other arrays, as they appear when a spread array is read on the host."""
    if not spread:
        return []
    forms_of_whole = {(array.shape, array.dtype) for array in arrays if id(array) not in spread}
    return [
        _address(shard.data, {shard.device})
        for array in spread.values()
        if (array.sharding.shard_shape(array.shape), array.dtype) in forms_of_whole
        for shard in array.addressable_shards
    ]


def _local_bytes(array: jax.Array, is_spread: bool) -> int:
    """The bytes on this process's devices, with the copies that several of them hold."""
    try:
        num_bytes = array.on_device_size_in_bytes()
    except RuntimeError:  # deleted by another thread in the meantime
        return 0
    if not is_spread or array.is_fully_addressable:
        return num_bytes
    return num_bytes * len(array.sharding.addressable_devices) // array.sharding.num_devices


def allocator_statistics(device: Any) -> dict[str, int] | None:
    """What a device's allocator reports.

    Args:
        device: A device of JAX.

    Returns:
        The figures by their names in JAX, such as `bytes_in_use`; None if the device has none, as CPUs.
    """
    try:
        statistics = device.memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return None
    return {name: int(value) for name, value in statistics.items()} if statistics else None


def host_memory() -> dict[str, int]:
    """The memory of this process, as far as the system reports it.

    Returns:
        `rss_bytes` (resident), `peak_rss_bytes` (the most so far), and `private_bytes`: what is resident without the
        files that are mapped into memory.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_PER_MAXRSS
        return {"peak_rss_bytes": peak}
    found = {name: int(kilobytes) * 1024 for name, kilobytes in _HOST_LINE.findall(status)}
    return {figure: found[name] for name, figure in _HOST_FIGURES.items() if name in found}


class MemorySampler:
    """Takes samples of the memory, and knows the last one's peaks.

    Args:
        devices: The devices to ask; those without statistics are skipped.
        clock: Where timestamps come from.
    """

    def __init__(self, devices: Iterable[Any], clock: Clock = SYSTEM_CLOCK):
        self._devices = list(devices)
        self._clock = clock
        self._peaks: dict[str, int] = {}

    def sample(self, step: int, owners: Mapping[str, Any], forms: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Take a sample.

        Args:
            step: The training steps done.
            owners: See `owner_bytes`.
            forms: See `owner_bytes`.

        Returns:
            The sample, ready for JSON: `step`, `time_s` since the epoch, `memory` by device, `host`, `live`.
        """
        live = owner_bytes(owners, forms)
        return {
            "step": step,
            "time_s": self._clock.timestamp(),
            "memory": dict(self._ask_devices()),
            "host": host_memory(),
            "live": {**live.bytes_by_owner, "num_arrays": live.num_arrays},
        }

    def _ask_devices(self) -> Iterator[tuple[str, dict[str, int]]]:
        for device in self._devices:
            statistics = allocator_statistics(device)
            if statistics is None or "bytes_in_use" not in statistics:
                continue
            name = str(device)
            wanted = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit")
            figures = {figure: statistics[figure] for figure in wanted if figure in statistics}
            peak = figures.get("peak_bytes_in_use", 0)
            # The allocator's peak is that of the whole process: only a rise says something about this interval.
            if peak > self._peaks.get(name, peak):
                figures["peak_bytes_since_last_sample"] = peak
            self._peaks[name] = peak
            yield name, figures
