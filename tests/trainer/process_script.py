"""Trainings by two processes: `python -m tests.trainer.process_script SCENARIO FOLDER INDEX PORT DEVICES`.

Each of the two processes has DEVICES devices and its own rows of every batch. What came out is the last line that it
prints, as JSON. `undisturbed` and `wide` also run in the process of the tests, which takes all rows: that is what the
others are compared with.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jax._src import distributed
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import trackside
from tests.trainer.tiny import make_batch, make_loader, make_trainer
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig, EarlyStoppingConfig
from trackside.errors import TracksideError
from trackside.logger import LoggerConfig
from trackside.trainer import Batch, ParallelConfig, Trainer, TrainerConfig

if TYPE_CHECKING:
    from tests.trainer.models.libraries import Kit

NUM_STEPS = 20
NUM_ROWS = 8
WHOLE = ParallelConfig(data_axis_size=2)
SPLIT = ParallelConfig(data_axis_size=1, fsdp_axis_size=2, fsdp_min_weight_size=4)
WIDE = ParallelConfig(data_axis_size=4)


def part_of(batch: Batch) -> Batch:
    """The rows of this process."""
    size = len(batch.inputs) // jax.process_count()
    return batch[jax.process_index() * size : (jax.process_index() + 1) * size]


def loader(num_batches: int, seed: int = 0, size: int = 8) -> list[Batch]:
    return [part_of(batch) for batch in make_loader(num_batches, size, seed)]


class Placed(list[Batch]):
    """A loader whose iterator has a position, which is of use to its own process only."""

    def __iter__(self) -> "PlacedIterator":
        return PlacedIterator(list(super().__iter__()))


class PlacedIterator:
    def __init__(self, batches: list[Batch]):
        self.batches = batches
        self.next_index = 0

    def __iter__(self) -> "PlacedIterator":
        return self

    def __next__(self) -> Batch:
        if self.next_index == len(self.batches):
            raise StopIteration
        self.next_index += 1
        return self.batches[self.next_index - 1]

    def get_state(self) -> dict[str, int]:
        return {"process": jax.process_index(), "next_index": self.next_index}

    def set_state(self, state: dict[str, int]) -> None:
        assert state["process"] == jax.process_index()
        self.next_index = state["next_index"]


@dataclass
class DisturbanceConfig(CallbackConfig):
    """What happens to one of the processes after a step: a signal, or with 0 an error."""

    process: int = 0
    signal: int = 0
    at_step: int = 0

    def create(self, trainer: Any, data_module: Any = None) -> "Disturbance":
        return Disturbance(self, trainer, data_module)


class Disturbance(Callback):
    config: DisturbanceConfig

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        config = self.config
        if step_idx == config.at_step and config.process in (-1, jax.process_index()):
            if not config.signal:
                raise RuntimeError("failed as it was told to")
            os.kill(os.getpid(), config.signal)
            if config.signal == signal.SIGTERM:  # JAX looks for it once a second; by then the training would be over
                client = distributed.global_state.client
                client.blocking_key_value_get("RECEIVED_PREEMPTION_NOTICE", 60_000)


def build(folder: Path, name: str, *callbacks: CallbackConfig, **config: Any) -> Any:
    return make_trainer(
        **{
            "batch": part_of(make_batch(8)),
            "parallel": ParallelConfig(),
            "logger": LoggerConfig(log_path=folder / name, log_every_n_steps=1),
            "callbacks": list(callbacks),
            "optimizer": "adam",
            "lr": 0.05,
            **config,
        }
    )


def outcome(trainer: Any, results: Any = None) -> dict[str, Any]:
    """Everything that has to be the same on all processes."""
    gathered = multihost_utils.process_allgather(trainer.state.params, tiled=True)
    leaves = [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(gathered)]
    return {"params": leaves, "step": trainer.global_step, "status": trainer.status, "results": results}


def train(trainer: Any, num_steps: int = NUM_STEPS, **loaders: Any) -> dict[str, Any]:
    """Train in epochs of ten steps, with validation and test."""
    loaders = {"train_loader": loader(10), "val_loader": loader(2, 50), "test_loader": loader(1, 90), **loaders}
    return outcome(trainer, trainer.train_model(**loaders, num_train_steps=num_steps))


BEST = CheckpointConfig(monitor="val_loss", every_n_steps=4, save_top_k=2)


def undisturbed(folder: Path) -> dict[str, Any]:
    """Trainings on two devices: data parallel, and with split parameters."""
    split = build(folder, "fsdp", BEST, parallel=SPLIT)
    found = {"dp": train(build(folder, "dp", BEST, parallel=WHOLE)), "fsdp": train(split)}
    found["fsdp"]["predicted"] = split.predict(loader(2, 50)).ravel().tolist()
    split.export_params(folder / "params.safetensors")
    return found


def together(folder: Path) -> dict[str, Any]:
    """Undisturbed trainings, a resumed one, one that decides to stop, and one of which one process gets a SIGTERM."""
    found = undisturbed(folder)
    found["fused"] = train(build(folder, "fused", BEST, parallel=WHOLE, steps_per_call=3))
    found["ahead"] = train(build(folder, "ahead", BEST, parallel=WHOLE, prefetch_batches=3))
    train(build(folder, "resumed", BEST, parallel=SPLIT), 12, train_loader=Placed(loader(10)))
    resumed = build(folder, "resumed", BEST, parallel=SPLIT, resume="must")
    found["resumed"] = train(resumed, train_loader=Placed(loader(10)))
    early = EarlyStoppingConfig(monitor="val_loss", stopping_threshold=1e6)
    found["early"] = train(build(folder, "early", early))
    found["own"] = {str(size): own_loop(folder / f"own-{size}", size) for size in (1, 4)}
    found["terminated"] = terminated(folder)
    return found


def terminated(folder: Path) -> dict[str, Any]:
    """One process gets a SIGTERM."""
    disturbance = DisturbanceConfig(process=1, signal=signal.SIGTERM, at_step=7)
    trainer = build(folder, "terminated", CheckpointConfig(), disturbance)
    try:
        return train(trainer)
    except SystemExit as stop:
        return {**outcome(trainer), "code": stop.code}


def failure(train_it: Callable[[], Any]) -> str:
    try:
        train_it()
    except TracksideError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused(folder: Path) -> dict[str, Any]:
    """Data that do not go together, a folder in use, a batch that is not finite, a clock that is ahead.

    And, to start no other processes for it, a training on more devices than processes.
    """
    index = jax.process_index()
    found: dict[str, Any] = {
        "longer": failure(lambda: build(folder, "longer").train_model(loader(10 + index), num_epochs=1)),
        "larger": failure(lambda: build(folder, "larger").eval_model(loader(1, size=8 + 8 * index), "val", 0)),
        "unequal": failure(lambda: build(folder, "unequal").train_model(loader(2, size=8 + 8 * index), num_epochs=1)),
        "smaller_later": failure(
            lambda: build(folder, "smaller").train_model([*loader(2), *loader(1, size=4)], num_epochs=1)
        ),
        "ragged": failure(lambda: build(folder, "ragged").train_model(loader(2, size=2), num_epochs=1)),
        "ragged_later": failure(lambda: build(folder, "later").eval_model([*loader(2), *loader(1, size=2)], "val", 0)),
        "alone": failure(lambda: build(folder, "alone", CheckpointConfig(main_process_only=True))),
    }
    keeping = CheckpointConfig(dirpath=str(folder / "kept" / "elsewhere"))
    train(build(folder, "kept", keeping), 10)
    found["kept"] = failure(lambda: train(build(folder, "kept", keeping), 10))
    bad = loader(10)
    if index == 1:
        bad[6] = Batch(bad[6].inputs * np.nan, bad[6].targets)
    trainer = build(folder, "nan")
    trainer.train_model(bad, num_train_steps=NUM_STEPS)
    found["nan"] = [trainer.status, trainer.global_step]
    minutes = CheckpointConfig(every_n_epochs=-1, every_n_minutes=1e6 if index else 1e-6, save_top_k=-1)
    train(build(folder, "minutes", minutes), 40)
    found["wide"] = wide(folder)
    return found


def wide(folder: Path) -> dict[str, Any]:
    """A training on more devices than processes, with batches of one row per device."""
    small = {"train_loader": loader(10, size=4), "val_loader": loader(2, 50, size=4), "test_loader": None}
    trainer = build(folder, "wide", CheckpointConfig(), batch=part_of(make_batch(4)), parallel=WIDE)
    return train(trainer, **small)


def killed(folder: Path) -> dict[str, Any]:
    """One process is killed."""
    return disturbed(folder, "killed", DisturbanceConfig(process=1, signal=signal.SIGKILL, at_step=13))


def all_killed(folder: Path) -> dict[str, Any]:
    """Both are killed."""
    return disturbed(folder, "all_killed", DisturbanceConfig(process=-1, signal=signal.SIGKILL, at_step=13))


def failed(folder: Path) -> dict[str, Any]:
    """One process has an error."""
    return disturbed(folder, "failed", DisturbanceConfig(process=1, at_step=13))


def disturbed(folder: Path, name: str, disturbance: DisturbanceConfig) -> dict[str, Any]:
    return train(build(folder, name, CheckpointConfig(every_n_steps=4), disturbance))


def continued(folder: Path) -> dict[str, Any]:
    """All trainings that were disturbed continue."""
    names = ("terminated", "killed", "all_killed", "failed")
    return {name: train(build(folder, name, CheckpointConfig(), resume="must")) for name in names}


def libraries(folder: Path) -> dict[str, Any]:
    """A model of each library, with batches split over two devices."""
    from tests.trainer.models.libraries import KITS  # other scenarios need not import all libraries

    del folder
    return {library: train_kit(kit, ParallelConfig(data_axis_size=2)) for library, kit in KITS.items()}


def train_kit(kit: "Kit", parallel: ParallelConfig) -> list[list[float]]:
    """The parameters of a library's network with statistics of the batches, after an epoch on them."""
    from tests.trainer.models.libraries import make_data

    size = NUM_ROWS // jax.process_count()
    rows = slice(jax.process_index() * size, (jax.process_index() + 1) * size)
    data = [{name: array[rows] for name, array in batch.items()} for batch in make_data(size=NUM_ROWS)]
    config = TrainerConfig(enable_progress_bar=False)
    trainer = Trainer(kit.stateful(), kit.stateful_loss, optax.adam(1e-2), config=config, parallel=parallel)
    trainer.fit(data, data[:2], num_epochs=1)
    carry = trainer.module.progress.carry
    gathered = multihost_utils.process_allgather((carry.params, carry.mutable_variables), tiled=True)
    return [np.asarray(leaf).ravel().tolist() for leaf in jax.tree.leaves(gathered)]


def own_loop(folder: Path, steps_per_call: int) -> list[list[float]]:
    """The losses and weights of a loop of the user's own, with batches that are spread over both processes."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    def train_step(weights: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
        def loss_of(weights: jax.Array) -> jax.Array:
            return ((batch.inputs @ weights - batch.targets) ** 2).mean()

        loss, grad = jax.value_and_grad(loss_of)(weights)
        return weights - 0.1 * grad, loss

    batches = [
        jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(spread, leaf), batch) for batch in loader(7)
    ]
    weights, losses = jax.make_array_from_process_local_data(whole, np.zeros((4, 1), np.float32)), []
    with trackside.run(folder, progress=False) as run:
        step = run.step(trackside.fuse_steps(jax.jit(train_step), steps_per_call))
        for group in run.batches(batches, steps_per_call=steps_per_call):
            weights, found = step(weights, group)
            losses.extend(np.asarray(found).tolist())
            run.log(loss=found)
    return [losses, np.asarray(weights).ravel().tolist()]


SCENARIOS = {one.__name__: one for one in (together, refused, killed, all_killed, failed, continued, libraries)}


def main() -> None:
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    index, port, num_devices = (int(argument) for argument in sys.argv[3:6])
    jax.config.update("jax_num_cpu_devices", num_devices)
    # Short where one of them dies, for which the other waits; else longer than a busy machine lets a process wait.
    patience_s = 10 if SCENARIOS[scenario] in (killed, all_killed, failed) else 300
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        2,
        index,
        heartbeat_timeout_seconds=patience_s,
        shutdown_timeout_seconds=patience_s,
    )
    found = SCENARIOS[scenario](folder)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
