import grain
import numpy as np
import pytest

from trackside.clock import ManualClock
from trackside.errors import DataError
from trackside.profiling import TrainingProfiler, profile_data_loader


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def profiler(clock):
    return TrainingProfiler(log_to_wandb=False, clock=clock)


class Loader:
    """A loader of the user's own, with a length, attributes and a state."""

    batch_size = 4

    def __init__(self, clock):
        self._clock = clock
        self.epoch = 0

    def __len__(self):
        return 3

    def __iter__(self):
        for index in range(3):
            self._clock.advance(2.0)
            yield index

    def state_dict(self):
        return {"epoch": self.epoch}


def produced(profiler, name="data_batch_production"):
    entry = profiler.get_summary().get(name)
    return None if entry is None else (entry["count"], entry["total_time"])


def test_each_batch_is_timed_in_each_epoch(profiler, clock):
    """The same batches, the time to make them, and not that of the loop."""
    loader = profile_data_loader(Loader(clock), profiler=profiler)
    for _ in range(2):
        for _ in loader:
            clock.advance(50.0)
    assert list(loader) == [0, 1, 2]
    assert produced(profiler) == (9, 18.0)


@pytest.mark.parametrize("loader", [[1, 2, 3], iter([1, 2, 3])])
def test_a_loader_that_is_wrapped_twice_counts_once(profiler, loader):
    """As when the user has wrapped what a training function wraps too; another name is another operation."""
    twice = profile_data_loader(profile_data_loader(loader, profiler=profiler), profiler=profiler)
    for _ in profile_data_loader(twice, "from_disk", profiler):
        pass
    counts = {name: entry["count"] for name, entry in profiler.get_summary().items()}
    assert counts == {"data_batch_production": 3, "from_disk": 3}


def test_length_attributes_and_state_are_those_of_the_loader(profiler, clock):
    """Reading and setting reach the loader, whose own class and methods are as they were."""
    original = Loader(clock)
    loader = profile_data_loader(original, profiler=profiler)
    loader.epoch = 5
    assert (len(loader), loader.batch_size, loader.state_dict(), original.epoch) == (3, 4, {"epoch": 5}, 5)
    assert vars(original).keys() == {"_clock", "epoch"}


def test_a_loader_without_a_length_has_none(profiler):
    """`len` fails as before, and `hasattr` says so."""
    loader = profile_data_loader(iter([1]), profiler=profiler)
    assert not hasattr(loader, "__len__")
    with pytest.raises(AttributeError):
        _ = loader.batch_size


def test_lists_keep_their_items(profiler):
    """A list can be indexed and iterated over."""
    loader = profile_data_loader([1, 2, 3], "load", profiler)
    assert (loader[1], len(loader), list(loader), produced(profiler, "load")[0]) == (2, 3, [1, 2, 3], 3)


def test_several_batches_of_a_list_at_once(profiler, caplog):
    """Each counts; there are fewer at the end, which is no empty loader."""
    batches = iter(profile_data_loader([1, 2, 3, 4], "load", profiler))
    assert (next(batches), batches.take_some(2), batches.take_some(5), batches.take_some(5)) == (1, [2, 3], [4], [])
    assert produced(profiler, "load")[0] == 4
    assert not caplog.records
    assert iter(profile_data_loader([], "load", profiler)).take_some(3) == []
    assert "load: the loader gave no batch" in caplog.text


def test_generators_are_passed_on_item_by_item(profiler):
    """Nothing is taken out of a generator before it is asked for."""
    taken = []

    def generate():
        for index in range(3):
            taken.append(index)
            yield index

    loader = profile_data_loader(generate(), profiler=profiler)
    assert (next(loader), list(taken), list(loader)) == (0, [0], [1, 2])
    assert produced(profiler)[0] == 3


def test_an_exception_of_the_loader_is_counted_and_raised(profiler, clock):
    """The time until it failed is counted."""

    def generate():
        clock.advance(1.0)
        raise OSError("no such file")
        yield

    with pytest.raises(OSError, match="no such file"):
        list(profile_data_loader(generate(), profiler=profiler))
    assert produced(profiler) == (1, 1.0)


@pytest.mark.parametrize("loader", [[], iter([])])
def test_a_loader_that_gives_nothing_is_reported(loader, profiler, caplog):
    """The message says what may be wrong; the loop behaves as without a profiler."""
    assert list(profile_data_loader(loader, profiler=profiler)) == []
    assert "gave no batch" in caplog.text
    assert produced(profiler) is None


def test_a_generator_that_is_used_up_is_reported(profiler, caplog):
    """In the second epoch, and not at the end of the first."""
    loader = profile_data_loader((index for index in range(2)), profiler=profiler)
    list(loader)
    assert caplog.text == ""
    list(loader)
    assert "used up" in caplog.text


def test_what_cannot_be_iterated_over_is_refused(profiler):
    """The error names what was given."""
    with pytest.raises(DataError, match="int cannot be iterated"):
        profile_data_loader(3, profiler=profiler)


def test_grain_iterators_keep_their_state(profiler):
    """The state of an iterator can be taken and set through the wrapper, and the batches continue from there."""
    dataset = grain.MapDataset.source(np.arange(6)).to_iter_dataset()
    iterator = iter(profile_data_loader(dataset, profiler=profiler))
    next(iterator)
    state = iterator.get_state()
    rest = [int(item) for item in iterator]
    again = iter(profile_data_loader(dataset, profiler=profiler))
    again.set_state(state)
    assert [int(item) for item in again] == rest == [1, 2, 3, 4, 5]
    assert produced(profiler)[0] == 11


def test_pytorch_loaders_are_timed(profiler):
    """With their length, their data set and their batches."""
    data = pytest.importorskip("torch.utils.data")
    original = data.DataLoader(list(range(6)), batch_size=2)
    loader = profile_data_loader(original, profiler=profiler)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert (len(loader), loader.dataset, produced(profiler)[0]) == (3, original.dataset, 3)
