"""What callbacks cost per step that have nothing to do.

What they cost is time of the thread that trains, so that is what is measured: the processor's time of that thread, of
which other programs take nothing. Starting and ending a training costs the same however long it is, so the cost of a
step is that of a long training less that of a short one, over the steps between. Plain and attached, short and long
take turns; the figure is the median of the differences within a round. Where that is noise, the number of function
calls that the thread makes per step tells: counted the same way, once; only what goes by the clock varies.
"""

import contextlib
import io
import logging
import pathlib
import statistics
import sys
import tempfile
import time
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


def count_calls(function: Callable[[], None]) -> int:
    """The calls of Python and C functions that this thread makes."""
    num_calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return num_calls


def measure(title: str, make_callbacks: Callable[[pathlib.Path], list[Callback]]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        root = pathlib.Path(folder)
        contestants = trainings(root, "plain", []) | trainings(root, "attached", make_callbacks(root))
        times = race(contestants, 1, NUM_ROUNDS, clock=time.thread_time)
        calls = {name: count_calls(train) for name, train in contestants.items()}

    def per_step_us(name: str) -> list[float]:
        pairs = zip(times[f"{name} long"].rounds_s, times[f"{name} short"].rounds_s, strict=True)
        return [(long - short) / (LONG_STEPS - SHORT_STEPS) * 1e6 for long, short in pairs]

    def calls_per_step(name: str) -> float:
        return (calls[f"{name} long"] - calls[f"{name} short"]) / (LONG_STEPS - SHORT_STEPS)

    plain, attached = per_step_us("plain"), per_step_us("attached")
    differences = sorted(b - a for a, b in zip(plain, attached, strict=True))
    quarter = len(differences) // 4
    print(
        f"{title}: {statistics.median(differences):+.2f} us of processor time per step of "
        f"{statistics.median(plain):.0f} us "
        f"(half of the rounds between {differences[quarter]:+.2f} and {differences[-quarter - 1]:+.2f}); "
        f"{calls_per_step('attached') - calls_per_step('plain'):+.2f} calls of {calls_per_step('plain'):.1f}"
    )


def main() -> None:
    logging.getLogger("trackside").setLevel(logging.ERROR)
    logging.getLogger("trackside").addHandler(logging.NullHandler())
    measure("nothing, against itself", lambda folder: [])
    measure("early stopping, checkpoints and progress bar, idle", idle_control)
    measure("three profilers, idle", idle_profilers)


if __name__ == "__main__":
    main()
