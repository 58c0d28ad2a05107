import logging
import weakref
from typing import Any

import jax
import numpy as np
import pytest

from trackside.errors import DataError
from trackside.measured_run.batch_size import loader_length
from trackside.profiling import TrainingProfiler, profile_data_loader
from trackside.text import a_type
from trackside.trainer.batch import Batch
from trackside.trainer.batch_placement import BatchPlacement
from trackside.trainer.buffer_guard import AheadGuard, BufferGuard
from trackside.trainer.loaders import open_loader
from trackside.trainer.sharding import ParallelConfig, build_mesh


def refilled(num_batches, num_buffers=1, first_reused=0):
    """A loader that writes its batches into the same arrays in turn, from a given batch on."""
    buffers = [np.empty((4, 3), np.float32) for _ in range(num_buffers)]
    for at in range(num_batches):
        inputs = buffers[at % num_buffers] if at >= first_reused else np.empty((4, 3), np.float32)
        inputs[:] = at
        yield Batch(inputs, np.full(4, at))


def fresh(num_batches):
    for at in range(num_batches):
        yield Batch(np.full((4, 3), at, np.float32), np.full(4, at))


def views(num_batches):
    data, targets = np.zeros((4 * num_batches, 3), np.float32), np.zeros(4 * num_batches)
    for at in range(num_batches):
        yield Batch(data[4 * at : 4 * at + 4], targets[4 * at : 4 * at + 4])


@pytest.mark.parametrize("num_buffers", [1, 2])
@pytest.mark.parametrize("num_in_flight", [2, 4])
def test_refilled_buffers_are_recognised_while_nothing_can_be_harmed(num_buffers, num_in_flight, caplog):
    """A loader that reuses one or two arrays is found out before a call is left under way, and copied from then on."""
    guard = BufferGuard(None, num_in_flight)
    kept = []
    for batch in refilled(8, num_buffers):
        was_waited_for = guard.on_probation or not kept
        kept.append(guard.protect(batch))
        # Where the first reuse shows, the calls before it must have completed: their arrays are written already.
        assert was_waited_for or guard.copies
    assert not guard.on_probation
    assert [int(batch.inputs[0, 0]) for batch in kept[num_buffers:]] == list(range(num_buffers, 8))
    assert caplog.text == ""


def test_copies_are_of_all_arrays():
    """Once a loader is found out, every array of its batches is copied, also those that it makes anew."""
    guard = BufferGuard(None, 2)
    batches = [(batch, guard.protect(batch)) for batch in refilled(4)]
    batch, protected = batches[-1]
    assert not np.shares_memory(batch.inputs, protected.inputs)
    assert not np.shares_memory(batch.targets, protected.targets)


@pytest.mark.parametrize("loader", [fresh, views])
@pytest.mark.parametrize("num_in_flight", [1, 2])
def test_memory_of_its_own_is_not_copied(loader, num_in_flight):
    """Batches that are new arrays or views of a data set are passed on as they are, and probation ends."""
    guard = BufferGuard(None, num_in_flight)
    for at, batch in enumerate(loader(6)):
        assert guard.protect(batch) is batch
        assert guard.on_probation == (at < num_in_flight)
        del batch  # as a loop does that holds no more than it has to: the allocator gives the memory out again


def timed(batches):
    return profile_data_loader(batches, "read", TrainingProfiler())


@pytest.mark.parametrize("kind", [list, tuple, timed])
def test_lists_are_trusted(kind):
    """A list runs no code between batches, also if it is timed: the same batch twice is fine, and nothing waits."""
    batch = next(fresh(1))
    loader = kind([batch, batch])
    guard = BufferGuard(loader, 2)
    assert not guard.on_probation
    assert [guard.protect(batch) for batch in loader] == [batch, batch]
    assert not guard.copies


def test_late_reuse_is_reported(caplog):
    """A loader that begins to reuse memory when steps are under way is copied from then on, and the log says so."""
    guard = BufferGuard(None, 2)
    with caplog.at_level(logging.WARNING):
        kept = [guard.protect(batch) for batch in refilled(9, first_reused=5)]
    assert "began to reuse the memory of its batches at batch 7: batch 6 may have been overwritten" in caplog.text
    assert [int(batch.inputs[0, 0]) for batch in kept[6:]] == [6, 7, 8]


@pytest.mark.parametrize(
    ("guard", "shared", "named"),
    [
        (BufferGuard(None, 2), {6: 5, 7: 6}, "batch 6: batch 5 may"),
        (BufferGuard(None, 2), {6: 4, 7: 5}, "batch 6: batches 4 to 5 may"),
        (BufferGuard(None, 2), {4: 2, 5: 3}, "batch 4: batch 3 may"),
        (BufferGuard(None, 2), {3: 2}, ""),
        (AheadGuard(None, 3), {7: 6}, "batch 7: batch 6 may"),
        (AheadGuard(None, 3), {8: 5, 9: 6}, "batch 8: batches 5 to 7 may"),
        (AheadGuard(None, 3), {7: 4, 8: 5}, "batch 7: batches 5 to 6 may"),
        (AheadGuard(None, 3), {5: 4}, ""),
    ],
)
def test_the_batches_that_may_be_overwritten_are_named(guard, shared, named, caplog):
    """From the first whose memory came again on, since the next may follow; not those that were copied or done."""
    arrays: dict[int, np.ndarray] = {}
    with caplog.at_level(logging.WARNING):
        for number in range(1, 10):
            arrays[number] = arrays[shared[number]] if number in shared else np.ones(4)
            guard.protect(arrays[number])
    assert (named in caplog.text) if named else (caplog.text == "")


def test_reuse_of_a_subclass_of_array_is_recognised(tmp_path):
    """Arrays of numpy's own subclasses, such as memory maps, are looked at as well."""
    buffer = np.memmap(tmp_path / "buffer", np.float32, "w+", shape=(4,))
    guard = BufferGuard(None, 2)
    for _ in range(2):
        guard.protect(buffer)
    assert guard.copies


def test_arrays_on_the_device_need_no_guard():
    """JAX arrays cannot be written, so the same one may come again without a copy."""
    guard = BufferGuard(None, 2)
    array = jax.numpy.ones(4)
    assert [guard.protect(array) is array for _ in range(4)] == [True] * 4


@pytest.fixture(scope="module")
def mesh():
    return build_mesh(ParallelConfig(data_axis_size=2, fsdp_axis_size=4))


EXAMPLE = Batch(np.zeros((16, 3), np.float32), np.zeros(16))


def test_batch_is_split_over_the_batch_axes(mesh):
    """Every leaf is split along its first dimension over `dp` and `fsdp`; scalars are whole everywhere."""
    placement = BatchPlacement(mesh, Batch(EXAMPLE.inputs, np.float32(1)))
    spec = jax.sharding.PartitionSpec(("dp", "fsdp"))
    assert placement.specs == Batch(spec, jax.sharding.PartitionSpec())
    placed = jax.device_put(EXAMPLE.inputs, placement.shardings.inputs)
    assert [shard.data.shape for shard in placed.addressable_shards] == [(2, 3)] * 8


def test_cpu_batches_go_straight_into_the_call(mesh):
    """On CPU the batch itself is what the compiled call gets."""
    assert BatchPlacement(mesh, EXAMPLE).place(EXAMPLE) is EXAMPLE


def test_batch_of_another_form_is_refused(mesh):
    """A batch whose structure is not the example's is an error that shows both."""
    placement = BatchPlacement(mesh, EXAMPLE)
    with pytest.raises(DataError, match=r"differ in structure from the example batch: .*'x'.* against .*Batch"):
        placement.check_train_batch({"x": EXAMPLE.inputs})


@pytest.mark.parametrize(
    ("size", "num_microbatches", "message"),
    [
        (15, 2, "batch of 15 examples: not divisible by gradient_accumulate_steps=2"),
        (12, 1, r"batch of 12 examples: not divisible by the 8 devices along \('dp', 'fsdp'\)"),
        (24, 2, r"batch of 24 examples in 2 microbatches: not divisible by the 8 devices"),
    ],
)
def test_indivisible_batch_is_refused_with_its_sizes(mesh, size, num_microbatches, message):
    """A batch that cannot be split over microbatches or devices is an error with both numbers."""
    placement = BatchPlacement(mesh, EXAMPLE, num_microbatches)
    with pytest.raises(DataError, match=message):
        placement.check_train_batch(Batch(np.zeros((size, 3)), np.zeros(size)))


def test_divisible_batch_of_another_size_is_taken(mesh):
    """A training batch may be of another size than the example's if it divides."""
    BatchPlacement(mesh, EXAMPLE, num_microbatches=2).check_train_batch(Batch(np.zeros((32, 3)), np.zeros(32)))


def test_evaluation_batches_need_not_divide(mesh):
    """Whether an evaluation batch can be split is a question and not an error; one device takes any."""
    last = Batch(np.zeros((5, 3)), np.zeros(5))
    assert BatchPlacement(mesh, EXAMPLE).is_divisible(EXAMPLE)
    assert not BatchPlacement(mesh, EXAMPLE).is_divisible(last)
    assert BatchPlacement(build_mesh(ParallelConfig(data_axis_size=1)), EXAMPLE).is_divisible(last)


@pytest.mark.parametrize("loader", [None, 3, lambda: iter([])])
def test_loader_that_is_no_iterable_is_refused(loader):
    """What cannot be iterated over is an error with the argument's name and the type."""
    with pytest.raises(DataError, match=f"val_loader: expected an iterable of batches, got {a_type(loader)}"):
        open_loader(loader, "val_loader")


def test_error_of_a_loader_is_its_own():
    """A loader whose own code fails is not mistaken for something that is no loader."""

    class Broken:
        def __iter__(self):
            raise TypeError("unsupported operand")

    with pytest.raises(TypeError, match="unsupported operand"):
        open_loader(Broken(), "train_loader")


def test_loaders_of_the_old_protocol_are_opened():
    """A loader that has only `__getitem__` is iterated over until its IndexError."""

    class Indexed:
        def __getitem__(self, at):
            return [10, 20][at]

    loader: Any = Indexed()
    assert list(open_loader(loader, "train_loader")) == [10, 20]


def test_length_is_known_only_to_loaders_that_have_one():
    """The number of batches is the loader's length, or None where it has none."""

    class Endless:
        def __len__(self):
            raise NotImplementedError

    assert [loader_length(loader) for loader in ([1, 2], iter([1, 2]), Endless())] == [2, None, None]


# --- what a guard holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [BufferGuard(None, 8), AheadGuard(None, 8)], ids=["in flight", "ahead"])
def test_a_guard_holds_no_batch(guard: BufferGuard) -> None:
    """Batches that nobody uses any more are free, however large they are and however many the guard looks back on."""
    held = []
    for batch in fresh(20):
        held.append(weakref.ref(batch.inputs))
        guard.protect(batch)
        del batch
        assert sum(one() is not None for one in held) <= 1
    assert not guard.copies


@pytest.mark.parametrize("as_given", [lambda array: array, lambda array: array[:2], lambda array: array[1:][1:].T])
def test_memory_is_known_by_who_owns_it(as_given: Any) -> None:
    """An array that is refilled is recognized, also if each batch is a view of it that is gone by the next."""
    guard, memory = BufferGuard(None, 2), np.zeros((4, 3), np.float32)
    for _ in range(2):
        guard.protect({"inputs": as_given(memory)})
    assert guard.copies


def test_memory_of_others_is_held() -> None:
    """Bytes that are not numpy's may be refilled when the object is gone that gave them."""
    guard, memory = BufferGuard(None, 2), bytearray(48)
    for _ in range(2):
        guard.protect(np.frombuffer(memory, np.float32))
    assert guard.copies
