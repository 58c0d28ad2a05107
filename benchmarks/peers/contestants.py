"""Who takes part, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.tasks import Task

Run = Callable[[int], None]


@dataclass(frozen=True)
class Contestant:
    """One way to train a task."""

    name: str
    title: str
    build: Callable[[Task, Path], Run]
    """Imports what it needs, builds the training, and gives the function that trains a given number of steps more."""
    is_peer: bool = False
    by_hand: str = "same work"
    """The loop without a library around it that trains the same model by the same kernels."""
    is_short: bool = False
    """Whether it takes part in the short form."""
    num_processes: int = 1
    """In how many processes it is measured: two of one contestant differ by some percent from start to end."""


def _by_hand(same_work: bool) -> Callable[[Task, Path], Run]:
    def build(task: Task, folder: Path) -> Run:
        from benchmarks.peers.jax_loops import hand_written

        return hand_written(task, same_work)

    return build


def _trackside(**options: object) -> Callable[[Task, Path], Run]:
    def build(task: Task, folder: Path) -> Run:
        from benchmarks.peers.jax_loops import trainer

        return trainer(task, folder, **options)  # pyright: ignore[reportArgumentType]

    return build


def _short(task: Task, folder: Path) -> Run:
    from benchmarks.peers.jax_loops import short_trainer

    return short_trainer(task, folder)


def _keras_by_hand(task: Task, folder: Path) -> Run:
    from benchmarks.peers.keras_loop import by_hand

    return by_hand(task)


def _torch_by_hand(task: Task, folder: Path) -> Run:
    from benchmarks.peers.lightning_loop import by_hand

    return by_hand(task)


def _keras(has_bar: bool) -> Callable[[Task, Path], Run]:
    def build(task: Task, folder: Path) -> Run:
        from benchmarks.peers.keras_loop import fit

        return fit(task, has_bar)

    return build


def _lightning(has_bar: bool) -> Callable[[Task, Path], Run]:
    def build(task: Task, folder: Path) -> Run:
        from benchmarks.peers.lightning_loop import fit

        return fit(task, folder, has_bar)

    return build


CONTESTANTS = {
    one.name: one
    for one in (
        Contestant("loss only", "hand-written JAX loop, loss only", _by_hand(False), is_short=True),
        Contestant(
            "same work",
            "hand-written JAX loop, the trainer's device work",
            _by_hand(True),
            is_short=True,
            num_processes=3,
        ),
        Contestant(
            "trackside", "trackside at its defaults, a row every 50 steps", _trackside(), is_short=True, num_processes=3
        ),
        Contestant("K=1", "trackside, steps_per_call=1", _trackside(steps_per_call=1), is_short=True),
        Contestant("every 10", "trackside, a row every 10 steps", _trackside(log_every=10)),
        Contestant("every 1", "trackside, a row every step", _trackside(log_every=1), is_short=True),
        Contestant(
            "all on",
            "trackside with timers, memory, bar, CSV, TensorBoard, checkpoint",
            _trackside(has_all=True),
            num_processes=3,
        ),
        Contestant("Trainer", "trackside.Trainer as it comes: a row every step, CSV, a checkpoint every epoch", _short),
        Contestant("keras by hand", "Keras' model and optimizer in a hand-written jitted step", _keras_by_hand),
        Contestant("keras", "Keras 3 on JAX, no bar", _keras(False), True, "keras by hand"),
        Contestant("keras bar", "Keras 3 on JAX, defaults", _keras(True), True, "keras by hand"),
        Contestant("torch by hand", "hand-written PyTorch loop", _torch_by_hand),
        Contestant("lightning", "Lightning, no bar, log or checkpoint", _lightning(False), True, "torch by hand"),
        Contestant("lightning bar", "Lightning, defaults", _lightning(True), True, "torch by hand"),
    )
}
