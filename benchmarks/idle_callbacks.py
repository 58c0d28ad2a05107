"""What callbacks cost per step that have nothing to do.

Starting and ending a training costs the same however long it is, so the cost of a step is that of a long training less
that of a short one, over the steps between. Plain and attached, short and long take turns; the figure is the median of
the differences within a round.
"""

import contextlib
import io
import logging
import pathlib
import statistics
import tempfile
from collections.abc import Callable

from benchmarks.interleaved import race
from benchmarks.loop_overhead import MLP, make_batches, make_trainer
from trackside.callbacks import (
    Callback,
    CheckpointConfig,
    EarlyStopping,
    EarlyStoppingConfig,
    JAXProfiler,
    JaxProfiler,
    JaxProfilerConfig,
    MemoryProfileConfig,
    MemoryProfiler,
    ModelCheckpoint,
    ProfilingConfig,
    ProgressBarCallback,
)

FAR = 10**9
SHORT_STEPS, LONG_STEPS = 200, 4200
NUM_ROUNDS = 21


def idle_control(folder: pathlib.Path) -> list[Callback]:
    return [
        ProgressBarCallback(),
        EarlyStopping(EarlyStoppingConfig(monitor="train_loss", patience=FAR)),
        ModelCheckpoint(CheckpointConfig(dirpath=str(folder / "checkpoints"), every_n_epochs=-1, every_n_steps=FAR)),
    ]


def idle_profilers(folder: pathlib.Path) -> list[Callback]:
    return [
        JaxProfiler(JaxProfilerConfig(profile_first_step=FAR)),
        JAXProfiler(ProfilingConfig(log_dir=str(folder / "profiles"), start_step=FAR, end_step=FAR + 5)),
        MemoryProfiler(MemoryProfileConfig(log_dir=str(folder / "memory"), profile_every_n_steps=FAR)),
    ]


def trainings(folder: pathlib.Path, name: str, callbacks: list[Callback]) -> dict[str, Callable[[], None]]:
    """A short and a long training, each going on where the last one ended."""
    batches = make_batches(8, 64)
    trainer = make_trainer(MLP, batches[0], folder / name, log_every_n_steps=50)

    def train(num_steps: int) -> Callable[[], None]:
        epoch = [batches[index % len(batches)] for index in range(num_steps)]
        return lambda: trainer.fit(epoch, num_train_steps=trainer.global_step + num_steps, callbacks=callbacks) and None

    return {f"{name} short": train(SHORT_STEPS), f"{name} long": train(LONG_STEPS)}


def measure(title: str, make_callbacks: Callable[[pathlib.Path], list[Callback]]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        root = pathlib.Path(folder)
        contestants = trainings(root, "plain", []) | trainings(root, "attached", make_callbacks(root))
        times = race(contestants, 1, NUM_ROUNDS)

    def per_step_us(name: str) -> list[float]:
        pairs = zip(times[f"{name} long"].rounds_s, times[f"{name} short"].rounds_s, strict=True)
        return [(long - short) / (LONG_STEPS - SHORT_STEPS) * 1e6 for long, short in pairs]

    plain, attached = per_step_us("plain"), per_step_us("attached")
    differences = sorted(b - a for a, b in zip(plain, attached, strict=True))
    quarter = len(differences) // 4
    print(
        f"{title}: {statistics.median(differences):+.2f} us per step of {statistics.median(plain):.0f} us "
        f"(half of the rounds between {differences[quarter]:+.2f} and {differences[-quarter - 1]:+.2f})"
    )


def main() -> None:
    logging.getLogger("trackside").setLevel(logging.ERROR)
    logging.getLogger("trackside").addHandler(logging.NullHandler())
    measure("nothing, against itself", lambda folder: [])
    measure("early stopping, checkpoints and progress bar, idle", idle_control)
    measure("three profilers, idle", idle_profilers)


if __name__ == "__main__":
    main()
