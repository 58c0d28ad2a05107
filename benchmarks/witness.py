"""Trainings whose steps note on the device when they begin and end, in situations that make that hard to see.

A step's work is a loop of matrix products, as many as its batch asks for, between two operations that read the clock
(`device_stamps`). They are a part of the step, so what they note is true, whatever the training does meanwhile.
"""

import contextlib
import io
import logging
import pathlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.device_stamps import BEGIN, END, clear_stamps, stamp, stamps_s
from trackside.callbacks import CheckpointConfig
from trackside.logger import LoggerConfig
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    TrainerConfig,
    TrainerModule,
)

STEPS_PER_EPOCH = 20
_WIDTH = 192


@dataclass(frozen=True)
class Situation:
    """What a training does between its steps, and how long they take."""

    name: str
    num_rounds: int = 30
    """How much work a step has."""
    data_s: float = 0.0
    """How long the loader takes for a batch."""
    holds_lock: bool = False
    """Whether it computes in Python meanwhile, and does not wait."""
    spike_every_n_steps: int = 0
    spike_factor: int = 5
    """How much more work such a step has."""
    validates: bool = False
    save_every_n_steps: int = -1
    log_every_n_steps: int = 1
    num_epochs: int = 12
    steps_per_call: int | Literal["auto"] = "auto"


@dataclass(frozen=True)
class Witness:
    """When the steps of a training began and ended on the device."""

    begins_s: np.ndarray
    ends_s: np.ndarray
    calls_s: np.ndarray
    """When the calls that made them had returned; empty where a call makes several steps."""


class _Model(nn.Module):
    config: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        return nn.Dense(1)(x)


class _WitnessedTrainer(TrainerModule):
    """Its steps stamp their begin and their end, and its calls are noted when they are made."""

    def loss_function(self, params: Any, apply_fn: Any, batch: Batch, rng: Any, train: bool = True) -> Any:
        work = jnp.zeros(())
        if train:
            matrix = jnp.full((_WIDTH, _WIDTH), 1e-3) + stamp(BEGIN, batch.inputs[0, 0])
            num_rounds = batch.targets[0, 0].astype(jnp.int32)
            work = jax.lax.fori_loop(0, num_rounds, lambda _, x: jnp.tanh(x @ x), matrix)[0, 0]
        error = (apply_fn({"params": params}, batch.inputs, train=train) + work) ** 2
        return error.mean(), ({"loss": {"value": error.sum(), "count": error.size}}, None)

    def create_training_step_function(self) -> Any:
        train_step = super().create_training_step_function()

        def stamped_step(state: Any, batch: Any, metrics: Any) -> tuple[Any, Any]:
            state, metrics = train_step(state, batch, metrics)
            stamp(END, jax.tree.leaves(state.params)[0].ravel()[0])
            return state, metrics

        return stamped_step


class _Loader:
    def __init__(self, situation: Situation):
        self.situation, self.num_given = situation, 0

    def __len__(self) -> int:
        return STEPS_PER_EPOCH

    def __iter__(self) -> Iterator[Batch]:
        situation = self.situation
        for _ in range(STEPS_PER_EPOCH):
            self.num_given += 1
            is_spike = situation.spike_every_n_steps and self.num_given % situation.spike_every_n_steps == 0
            num_rounds = situation.num_rounds * (situation.spike_factor if is_spike else 1)
            if situation.holds_lock:
                _compute_in_python(situation.data_s)
            elif situation.data_s:
                time.sleep(situation.data_s)
            yield make_batch(num_rounds)


def _compute_in_python(seconds: float) -> None:
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        sum(range(100))


def make_batch(num_rounds: int) -> Batch:
    """A batch whose step computes this many products."""
    return Batch(np.ones((8, 4), np.float32), np.full((8, 1), num_rounds, np.float32))


def train(situation: Situation, folder: pathlib.Path) -> tuple[Witness, LedgerTotals]:
    """Train, logging to a folder.

    Returns:
        When its steps began and ended, and what its ledger shows.
    """
    logging.getLogger("trackside").setLevel(logging.ERROR)
    keeper = CheckpointConfig(every_n_steps=situation.save_every_n_steps, every_n_epochs=-1)
    with contextlib.redirect_stderr(io.StringIO()):
        trainer = _WitnessedTrainer(
            TrainerConfig(
                logger=LoggerConfig(log_path=folder, log_every_n_steps=situation.log_every_n_steps),
                callbacks=[keeper] if situation.save_every_n_steps > 0 else [],
                check_val_every_n_epoch=1 if situation.validates else -1,
                check_val_every_n_steps=13 if situation.validates else -1,
                enable_progress_bar=False,
                steps_per_call=situation.steps_per_call,
            ),
            ModelConfig(model_class=_Model, parallel=ParallelConfig(data_axis_size=1)),
            OptimizerConfig(name="sgd", scheduler=SchedulerConfig(name="constant", lr=1e-6)),
            batch=make_batch(1),
        )
        clear_stamps()
        val_loader = [make_batch(1)] * 4 if situation.validates else None
        calls_s = _note_calls(trainer)
        trainer.train_model(_Loader(situation), val_loader, num_epochs=situation.num_epochs)
    assert trainer.ledger_totals is not None
    num_steps = STEPS_PER_EPOCH * situation.num_epochs
    # Steps before those were tried out.
    witness = Witness(stamps_s(BEGIN)[-num_steps:], stamps_s(END)[-num_steps:], np.array(calls_s[-num_steps:]))
    if not len(witness.begins_s) == len(witness.ends_s) == num_steps:
        raise RuntimeError(f"steps: expected {num_steps} that noted their end, got {len(witness.ends_s)}")
    return witness, trainer.ledger_totals


def _note_calls(trainer: TrainerModule) -> list[float]:
    """When calls of the training step return, from now on."""
    calls_s: list[float] = []
    call = trainer.engine.train_call

    def train_call(layout: Any) -> Any:
        function = call(layout)

        def noted(*args: Any) -> Any:
            result = function(*args)
            calls_s.append(time.perf_counter())
            return result

        return noted

    object.__setattr__(trainer.engine, "train_call", train_call)  # it is frozen
    return calls_s
