"""Trainings whose loader is read ahead are those of one that is not, to the last bit, wherever they are stopped."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.trainer.loader_kinds import (
    PASSES,
    STREAMS,
    Endless,
    EndlessWithoutState,
    OwnIterator,
    OwnIteratorWithState,
    ReshufflingWithState,
    plain_numbers,
    to_batch,
)
from tests.trainer.models.libraries import KITS, make_data, mse
from tests.trainer.number_trainings import (
    NUM_EPOCHS,
    VAL,
    VALIDATIONS,
    Keeper,
    MakeLoader,
    Witness,
    begin,
    check_kind,
    fit,
    make_number_trainer,
    make_shared_trainer,
)
from tests.trainer.test_read_ahead import readers, wait_until
from tests.trainer.tiny import MSETrainer, make_batch, make_loader, make_trainer
from trackside.callbacks import Callback
from trackside.clock import ManualClock
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig
from trackside.runs import open_run
from trackside.schedule import Every
from trackside.trainer import Batch, ParallelConfig, Trainer, TrainerConfig
from trackside.trainer.read_ahead import THREAD_NAME

NUM_BATCHES = 11
PREFETCH = {"plain": {"steps_per_call": 1, "prefetch_batches": 3}, "fused": {"prefetch_batches": 2}}


@pytest.fixture(scope="module", params=PREFETCH)
def trainer(request: pytest.FixtureRequest) -> Any:
    """One trainer for the whole table, for single steps and for several."""
    return make_shared_trainer(**PREFETCH[request.param])


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not readers())


# --- every kind of loader ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PASSES)
def test_passes(trainer: Any, kind: str) -> None:
    """Each epoch is one pass, wherever the training was stopped: before, at and after the end of an epoch."""
    check_kind(trainer, PASSES[kind], None, *VALIDATIONS["by both"])


@pytest.mark.parametrize("kind", PASSES | STREAMS)
def test_streams(trainer: Any, kind: str) -> None:
    """With `steps_per_epoch` pass follows pass, across the ends of epochs, wherever the training was stopped."""
    check_kind(trainer, (PASSES | STREAMS)[kind], 4, *VALIDATIONS["by epochs"])


@pytest.mark.parametrize("steps_per_epoch", [None, 4])
@pytest.mark.parametrize("kind", PASSES)
def test_cut_epoch_continues(trainer: Any, kind: str, steps_per_epoch: int | None) -> None:
    """An epoch that `num_train_steps` cut is continued by the next call."""
    make = PASSES[kind]
    expected = plain_numbers(make(), NUM_EPOCHS, steps_per_epoch)
    for cut_at in (3, 4, 5):
        begin(trainer, 1, -1)
        loader, witness = make(), Witness()
        trainer.fit(loader, VAL, num_train_steps=cut_at, steps_per_epoch=steps_per_epoch, callbacks=[witness])
        assert witness.numbers + fit(trainer, loader, steps_per_epoch).numbers == expected, f"cut at {cut_at}"


@pytest.mark.parametrize("make", [Endless, EndlessWithoutState])
def test_an_epoch_of_an_endless_loader_is_its_length(trainer: Any, make: MakeLoader) -> None:
    """A loader with a length that never ends continues from epoch to epoch, and no batch is lost in between."""
    keeper = Keeper()
    begin(trainer, 1, -1)
    whole = fit(trainer, make(), None, keeper)
    assert whole.numbers == list(range(1, 10))
    for step in keeper.saved:
        keeper.restore(trainer, step)
        assert fit(trainer, make(), None).numbers == whole.numbers[step:]


def test_a_training_leaves_the_loader_where_it_has_ended(trainer: Any) -> None:
    """At its goal, no batch was read that was not trained on."""
    begin(trainer, 1, -1)
    loader = STREAMS["one-shot generator"]()
    trainer.fit(loader, VAL, num_train_steps=5)
    assert float(next(loader).inputs.item()) == 6


class StopAt(Callback):
    """Ends the training early, right after a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.plan = Every(step, "stop")

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        self.trainer.request_stop("enough")


@pytest.mark.parametrize("make", [OwnIterator, OwnIteratorWithState, ReshufflingWithState, EndlessWithoutState])
def test_a_loader_continues_after_an_early_stop(make: MakeLoader) -> None:
    """What was read ahead when a callback ended the training is trained on by the next call."""
    numbers = []
    for num_ahead in (0, 3):
        trainer = make_number_trainer(steps_per_call=1, prefetch_batches=num_ahead)
        loader, first = make(), Witness()
        trainer.fit(loader, num_epochs=3, callbacks=[first, StopAt(2)])
        numbers.append(first.numbers + fit(trainer, loader, None).numbers)
    assert numbers[0] == numbers[1]


class CountsItsEnds:
    """Has a length, and notes after its last `yield` how many steps were made."""

    def __init__(self, witness: Witness) -> None:
        self.witness, self.ends = witness, []

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Batch]:
        yield from map(to_batch, range(1, 5))
        self.ends.append(len(self.witness.numbers))


def test_what_a_loader_does_at_its_end_it_does_in_time(trainer: Any) -> None:
    """Code after the last `yield` of a loader with a length runs when the last step of the epoch is complete."""
    begin(trainer, 1, -1)
    witness = Witness()
    loader = CountsItsEnds(witness)
    trainer.fit(loader, VAL, num_epochs=3, callbacks=[witness])
    assert loader.ends == [4, 8, 12]


# --- results ----------------------------------------------------------------------------------------------------------


def bits(trainer: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trainer.progress.carry))


class Reusing:
    """Refills one array for all batches."""

    def __iter__(self) -> Iterator[Batch]:
        inputs, targets = np.empty((8, 4), np.float32), np.empty((8, 1), np.float32)
        for batch in make_loader(NUM_BATCHES):
            inputs[:], targets[:] = batch.inputs, batch.targets
            yield Batch(inputs, targets)


class Donating:
    """Makes each batch in the memory of the one before, on the device."""

    def __iter__(self) -> Iterator[Batch]:
        replace = jax.jit(lambda old, new: jax.tree.map(lambda a, b: 0 * a + b, old, new), donate_argnums=0)
        batch = jax.tree.map(jnp.zeros_like, make_batch(8))
        for one in make_loader(NUM_BATCHES):
            batch = replace(batch, one)
            yield batch


class Ring:
    """Refills a few arrays in turn, so that one comes again when more calls are under way than at first."""

    def __iter__(self) -> Iterator[Batch]:
        ring = [make_batch(8) for _ in range(9)]
        for index, batch in enumerate(make_loader(60)):
            ring[index % 9].inputs[:], ring[index % 9].targets[:] = batch.inputs, batch.targets
            yield ring[index % 9]


LOADERS: dict[str, Callable[[], Any]] = {
    "reusing a ring of arrays": Ring,
    "list": lambda: make_loader(NUM_BATCHES),
    "reusing its memory": Reusing,
    "giving up its arrays": Donating,
    "on the device": lambda: [jax.tree.map(jnp.asarray, batch) for batch in make_loader(NUM_BATCHES)],
    "of several sizes": lambda: [make_batch(8 if index % 4 else 4, index) for index in range(NUM_BATCHES)],
}


@pytest.mark.parametrize("config", [{"steps_per_call": 1}, {"steps_per_call": 4}], ids=["plain", "fused"])
@pytest.mark.parametrize("name", LOADERS)
def test_results_are_the_same(name: str, config: dict[str, Any]) -> None:
    """The state is the same to the last bit, whatever the batches are and wherever they lie."""
    ends = []
    for num_ahead in (0, 3):
        trainer = make_trainer(optimizer="adam", prefetch_batches=num_ahead, **config)
        trainer.train_model(LOADERS[name](), make_loader(1), num_epochs=2)
        ends.append(bits(trainer))
    assert ends[0] == ends[1]


def test_a_mesh_changes_nothing() -> None:
    """Batches that are split over devices are read ahead, too."""
    ends = []
    for num_ahead in (0, 3):
        trainer = make_trainer(parallel=ParallelConfig(data_axis_size=2), prefetch_batches=num_ahead)
        trainer.train_model(LOADERS["reusing its memory"](), num_epochs=2)
        ends.append(bits(trainer))
    assert ends[0] == ends[1]


def test_batches_are_sent_with_their_sharding() -> None:
    """What an accelerator is sent ahead is split as the step wants it; what cannot be split stays as it is."""
    placement = make_trainer(parallel=ParallelConfig(data_axis_size=2)).engine.placement
    assert placement.send_ahead is None  # a CPU is sent nothing
    sent = placement._send_if_possible(make_batch(8))
    assert sent.inputs.sharding == placement.shardings.inputs
    odd = make_batch(5)
    assert placement._send_if_possible(odd) is odd


# --- loaders that look at the training --------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_a_loader_that_follows_the_training(steps_per_call: int, caplog: pytest.LogCaptureFixture) -> None:
    """A loader that looks at the trainer sees it after the step before, as without reading ahead, and is warned of."""

    class Following(MSETrainer):
        def batches(self) -> Iterator[Batch]:
            for _ in range(NUM_BATCHES):
                yield make_batch(8, self.global_step)

    ends = []
    for num_ahead in (0, 3):
        trainer = make_trainer(Following, prefetch_batches=num_ahead, steps_per_call=steps_per_call)
        trainer.train_model(trainer.batches(), num_epochs=1)
        ends.append(bits(trainer))
    assert ends[0] == ends[1]
    assert caplog.text.count("train_loader looks at the trainer while it makes a batch, so it is not read ahead") == 1
    assert "steps early" not in caplog.text


def test_a_loader_that_looks_at_the_trainer_late(caplog: pytest.LogCaptureFixture) -> None:
    """Batches that were made before the loader looked for the first time stay, and the warning says how early."""
    seen = []

    class Late(MSETrainer):
        def batches(self) -> Iterator[Batch]:
            for index in range(NUM_BATCHES):
                if index == 2:
                    wait_until(lambda: self.progress.data._ahead.has_unread)  # type: ignore[union-attr]
                if index >= 2:
                    seen.append(self.global_step)
                yield make_batch(8, index)

    trainer = make_trainer(Late, steps_per_call=1, prefetch_batches=4)
    trainer.train_model(trainer.batches(), num_epochs=1)
    assert seen[0] <= 2
    assert seen[1:] == list(range(3, NUM_BATCHES))
    assert "steps early" in caplog.text


# --- how the thread ends ----------------------------------------------------------------------------------------------


class LoaderError(Exception):
    pass


def endless_numbers() -> Iterator[Batch]:
    number = 0
    while True:
        number += 1
        yield make_batch(8, number)


def failing_loader() -> Iterator[Batch]:
    yield from make_loader(3)
    raise LoaderError("lost")


class Raising(Callback):
    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == 3:
            raise LoaderError("in a callback")


class Interrupting(Callback):
    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        if step_idx == 3:
            signal.raise_signal(signal.SIGINT)


def with_nan() -> Iterator[Batch]:
    yield from make_loader(3)
    yield make_batch(8).replace(inputs=np.full((8, 4), np.nan, np.float32))
    yield from endless_numbers()


ENDS: dict[str, tuple[Callable[[], Iterator], list[Callback], type[BaseException] | None]] = {
    "callback asks": (endless_numbers, [StopAt(3)], None),
    "callback fails": (endless_numbers, [Raising()], LoaderError),
    "loader fails": (failing_loader, [], LoaderError),
    "not finite": (with_nan, [], None),
    "Ctrl-C": (endless_numbers, [Interrupting()], KeyboardInterrupt),
    "goal": (endless_numbers, [], None),
}


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("end", ENDS)
def test_the_thread_ends_with_the_training(end: str) -> None:
    """However a training ends, nobody reads its loader afterwards."""
    make, callbacks, error = ENDS[end]
    trainer = make_trainer(prefetch_batches=3)

    def train() -> None:
        trainer.fit(make(), num_train_steps=6, callbacks=callbacks)

    if error is None:
        train()
    else:
        with pytest.raises(error):
            train()
    assert not readers()


def test_an_error_comes_at_its_step() -> None:
    """A loader's error ends the training after the steps before it, and shows the lines of the loader."""
    for steps_per_call in (1, 4):
        trainer, witness = make_trainer(prefetch_batches=3, steps_per_call=steps_per_call), Steps()
        with pytest.raises(LoaderError) as caught:
            trainer.fit(failing_loader(), num_train_steps=6, callbacks=[witness])
        assert witness.steps == [1, 2, 3]
        assert "failing_loader" in [entry.name for entry in caught.traceback]


class Steps(Callback):
    """Remembers the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        self.steps.append(step_idx)


def test_a_trainer_that_is_dropped_leaves_no_thread() -> None:
    """Nor does one that was stopped and is never continued keep its loader."""
    trainer = make_trainer(prefetch_batches=3)
    trainer.fit(endless_numbers(), num_train_steps=9, callbacks=[StopAt(3)])
    del trainer
    gc.collect()
    assert not readers()


def test_one_thread_reads() -> None:
    """All of a pass is read by one thread, from its first batch to what comes after its last."""
    threads = []

    class Watched:
        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Iterator[Batch]:
            for batch in make_loader(4):
                threads.append(threading.current_thread())
                yield batch
            threads.append(threading.current_thread())

    make_trainer(prefetch_batches=2).train_model(Watched(), make_loader(1), num_epochs=1)
    assert len(threads) == 5
    assert len(set(threads)) == 1
    assert threads[0].name == THREAD_NAME


# --- what users see ---------------------------------------------------------------------------------------------------


def test_a_run_says_that_its_loader_is_read_ahead(tmp_path: Path) -> None:
    """It is in the run's environment, where a comparison finds that it has changed."""
    trainer = make_trainer(logger=LoggerConfig(log_path=tmp_path), prefetch_batches=2)
    trainer.train_model(make_loader(3), make_loader(1), num_epochs=1)
    loaders = open_run(tmp_path).facts.loaders
    assert loaders["train"].text == "list of 3 batches of 8, 2 read ahead"
    assert loaders["val"].read_ahead is None


class Watched:
    """Takes a second for each batch, on a clock that nothing else moves; after the first, when it is let to."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.num_made = clock, 0
        self.permits = threading.Semaphore(1)

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[Batch]:
        for batch in make_loader(6):
            self.permits.acquire(timeout=60)
            self.clock.advance(1.0)
            self.num_made += 1
            yield batch


class WaitsForTheNext(Callback):
    """Does something else after each step, while the next batch is made."""

    plan = Every(1, "wait")

    def __init__(self, loader: Watched) -> None:
        super().__init__()
        self.loader = loader

    def on_settled(self, epoch_idx: int, step_idx: int) -> None:
        self.loader.permits.release()
        wait_until(lambda: self.loader.num_made > min(step_idx, 5))


def test_only_a_true_wait_is_waiting_for_data() -> None:
    """Time in which batches are made while the training does something else is not in the ledger as a wait."""

    class Clocked(MSETrainer):
        clock = ManualClock(start=1000.0)

    trainer, loader = make_trainer(Clocked, prefetch_batches=2), Watched(Clocked.clock)
    trainer.fit(loader, num_epochs=1, callbacks=[WaitsForTheNext(loader)])
    totals = trainer.ledger_totals
    assert totals.wall_s == pytest.approx(6.0)
    assert totals.parts.get("data_wait", 0.0) <= 1.0  # for the first batch


def test_the_short_trainer_takes_it() -> None:
    """As an argument or in its config, but not as two different values."""
    kit = KITS["linen"]
    trainer = Trainer(kit.plain(), mse, optax.sgd(0.1), prefetch_batches=2)
    trainer.fit(make_data(4))
    assert trainer.module.trainer_config.prefetch_batches == 2
    with pytest.raises(ConfigError, match="prefetch_batches: got 2, and 3 in config; say it once"):
        Trainer(kit.plain(), mse, optax.sgd(0.1), config=TrainerConfig(prefetch_batches=3), prefetch_batches=2)


@pytest.mark.parametrize("value", [-1, 1.5, "many", True])
def test_values_that_make_no_sense(value: Any) -> None:
    """They are refused by name, with what to give instead."""
    with pytest.raises(ConfigError, match=r"prefetch_batches: expected a whole number of at least 0, got .*set it to"):
        TrainerConfig(prefetch_batches=value)
    with pytest.raises(ConfigError, match=r"prefetch_max_bytes: expected a whole number of at least 1, got .*1 GiB"):
        TrainerConfig(prefetch_max_bytes=0)
