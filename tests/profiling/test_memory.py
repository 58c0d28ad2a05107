"""Live arrays by owner, allocators and the process's own memory."""

import gc
import mmap
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trackside.clock import ManualClock
from trackside.profiling.memory import LiveArrays, MemorySampler, allocator_statistics, host_memory, owner_bytes

pytestmark = pytest.mark.usefixtures("no_garbage")


class Device:
    """A device with an allocator, which CPUs do not have. `memory_stats` has the form that JAX returns."""

    def __init__(self, statistics: Any):
        self.statistics = statistics

    def memory_stats(self) -> Any:
        if isinstance(self.statistics, Exception):
            raise self.statistics
        return self.statistics

    def __str__(self) -> str:
        return "cuda:0"


def grown(before: LiveArrays, after: LiveArrays) -> dict[str, int]:
    """By how much each owner has grown; other tests' arrays are in both."""
    owners = after.bytes_by_owner
    return {owner: owners[owner] - before.bytes_by_owner.get(owner, 0) for owner in owners}


def test_arrays_count_for_their_owners() -> None:
    """Each array counts for the owner whose tree holds it, the others for `other`."""
    before = owner_bytes({})
    params, state, loose = jnp.ones((10, 10)), (jnp.ones(7), {"count": jnp.ones(3)}), jnp.ones(5)
    after = owner_bytes({"params": [params], "optimizer": state})
    assert grown(before, after) == {"params": 400, "optimizer": 40, "other": loose.nbytes}
    assert after.num_arrays == before.num_arrays + 4


def test_arrays_without_an_owner_are_known_by_their_form() -> None:
    """An array without an owner counts for the owner of arrays of its shape and dtype; one with an owner does not."""
    before = owner_bytes({}, {"batch": np.ones((9, 11), np.float32)})
    param, loose, other = jnp.ones((9, 11)), jnp.ones((9, 11)), jnp.ones((9, 11), jnp.int32)
    form = {"batch": {"inputs": jax.ShapeDtypeStruct((9, 11), jnp.float32)}}
    after = owner_bytes({"params": param}, form)
    assert grown(before, after) == {"params": 396, "batch": loose.nbytes, "other": other.nbytes}


def test_memory_that_is_shared_counts_once() -> None:
    """Two arrays with one memory count once, for the owner if one of them has one."""
    before = owner_bytes({})
    array = jnp.ones(50)
    alias = jax.device_put(array, jax.devices()[0])
    assert alias.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert alias is not array
    for owned in (array, alias):
        after = owner_bytes({"params": owned})
        assert grown(before, after) == {"params": 200, "other": 0}
        assert after.num_arrays == before.num_arrays + 1


@pytest.mark.parametrize(("spec", "num_bytes"), [(PartitionSpec("x"), 128), (PartitionSpec(), 4 * 128)])
def test_shards_count_once_on_every_device(spec: PartitionSpec, num_bytes: int) -> None:
    """A spread array counts by what its devices hold, also when its shards are arrays of their own."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    before = owner_bytes({})
    array = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, spec))
    shards = [shard.data for shard in array.addressable_shards]
    after = owner_bytes({"params": array})
    assert grown(before, after) == {"params": num_bytes, "other": 0}
    assert after.num_arrays == before.num_arrays + 1
    del shards


def test_donated_and_deleted_leaves_are_passed_over() -> None:
    """A tree that holds donated or deleted arrays, numpy or None is counted without them."""
    before = owner_bytes({})
    donated, deleted = jnp.ones(6), jnp.ones(8)
    result = jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    deleted.delete()
    after = owner_bytes({"params": [donated, deleted, None, np.ones(3), 1.0]})
    assert grown(before, after) == {"params": 0, "other": result.nbytes}


def test_typed_keys_count_for_their_owner() -> None:
    """The data of a typed key belongs to who has the key."""
    before = owner_bytes({})
    key = jax.random.key(3)
    assert grown(before, owner_bytes({"optimizer": key})) == {"optimizer": jax.random.key_data(key).nbytes, "other": 0}


def test_counting_keeps_no_array_alive() -> None:
    """An array that was counted is freed as if it had not been."""
    array = jnp.ones(12)
    gone = weakref.ref(array)
    owner_bytes({"params": array})
    del array
    gc.collect()
    assert gone() is None


def test_cpu_has_no_allocator_statistics() -> None:
    """A device whose statistics are None has none."""
    assert allocator_statistics(jax.devices("cpu")[0]) is None


@pytest.mark.parametrize("statistics", [None, {}, NotImplementedError("no statistics")])
def test_device_without_statistics(statistics: Any) -> None:
    """A device that gives none, in whichever way, is skipped in the sample."""
    assert MemorySampler([Device(statistics)]).sample(0, {})["memory"] == {}


def test_sample_of_a_device() -> None:
    """A device's figures are under its name, as documented, with its limit if it has one."""
    device = Device({"bytes_in_use": 10, "peak_bytes_in_use": 30, "num_allocs": 7, "bytes_limit": 100})
    sample = MemorySampler([device]).sample(0, {})
    assert sample["memory"] == {"cuda:0": {"bytes_in_use": 10, "peak_bytes_in_use": 30, "bytes_limit": 100}}


def test_peak_since_the_last_sample() -> None:
    """It is reported if the allocator's peak has risen since; otherwise it is unknown and left out."""
    device = Device({"bytes_in_use": 10, "peak_bytes_in_use": 30})
    sampler = MemorySampler([device])
    told = []
    for peak in (30, 30, 45, 45):
        device.statistics["peak_bytes_in_use"] = peak
        told.append(sampler.sample(0, {})["memory"]["cuda:0"].get("peak_bytes_since_last_sample"))
    assert told == [None, None, 45, None]


def test_sample_holds_step_time_host_and_owners() -> None:
    """Beside the devices, a sample has the step, the time, the host's memory and the owners'."""
    sample = MemorySampler([], ManualClock(12.5)).sample(7, {"params": jnp.ones(3)}, {"batch": np.ones(1)})
    assert (sample["step"], sample["time_s"], sample["memory"]) == (7, 12.5, {})
    assert sample["live"]["params"] == 12
    assert list(sample["live"]) == ["params", "batch", "other", "num_arrays"]
    assert sample["host"].keys() == host_memory().keys()


def test_host_memory_sees_what_is_allocated() -> None:
    """Resident memory grows with what the process writes to, and the peak is at least as high."""
    before = host_memory()
    with mmap.mmap(-1, 64 << 20) as block:  # of the system, and not what the process has let go before
        np.frombuffer(block, np.uint8)[:] = 1
        after = host_memory()
    assert after["rss_bytes"] - before["rss_bytes"] > 32 << 20
    assert after["peak_rss_bytes"] >= after["rss_bytes"] - (1 << 20)


def test_host_memory_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system without /proc the peak is reported and the rest left out."""
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    figures = host_memory()
    assert figures.keys() == {"peak_rss_bytes"}
    assert figures["peak_rss_bytes"] > 1 << 20
