"""Training an Equinox model to decode: the trainer's loop, with an evaluation every `log_every` epochs."""

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

from trackside.callbacks import Callback
from trackside.decoding.data import Pairs, data_set, to_numpy, to_pair
from trackside.decoding.decoding_step import LossFunction
from trackside.decoding.decoding_trainer import LOSS_OF_EPOCH, DecodingTrainer
from trackside.decoding.model_scores import evaluation_cadence
from trackside.decoding.record import TrainingRecord, check_run_name
from trackside.decoding.step_timer import StepTimer
from trackside.decoding.task import DecodingTask
from trackside.optional import require
from trackside.profiling import get_profiler, profile_data_loader
from trackside.profiling.ledger_totals import LOGGING
from trackside.schedule import Every

BEST_NAME = "best.eqx"
"""The best model and its state: read them with `equinox.tree_deserialise_leaves(path, (model, state))`."""


def train_decoding_jax(
    model: Any,
    filter_spec: Any,
    train_loader: Iterable[Any],
    train_tensors: Any,
    val_tensors: Any,
    loss_fn: LossFunction,
    state: Any,
    opt: Any,
    opt_state: Any,
    epochs: int,
    log_every: int = 10,
    key: jax.Array | None = None,
    wandb_run_name: str | None = None,
    enable_profiling: bool = False,
    *,
    save_dir: str | os.PathLike[str] | None = None,
    eval_batch_size: int | None = None,
) -> Any:
    """Train an Equinox model to predict targets from inputs.

    Arrays may be numpy's, JAX's or PyTorch's. Training goes the same way, to the bit, whatever is logged or profiled.

    Args:
        model: The model, called as `model(input, state, key)` with one sample; it returns `(prediction, state)`.
        filter_spec: Which of its leaves are trained, as for `equinox.partition`.
        train_loader: Gives batches `(inputs, targets)`, samples first; iterated over again in each epoch.
        train_tensors: The training data `(inputs, targets)` to evaluate on.
        val_tensors: The validation data `(inputs, targets)`.
        loss_fn: The loss: `mse_loss`, or a function with the same arguments that returns `((value, state), grads)` or
            only `(value, state)`.
        state: The model's state; None for a model that has none.
        opt: An optax optimizer.
        opt_state: Its state, from `opt.init(equinox.filter(model, filter_spec))`.
        epochs: How many times to go through the loader.
        log_every: Evaluate and log the profile every N epochs, and always after the last.
        key: The random key of the training; `jax.random.PRNGKey(0)` unless given.
        wandb_run_name: What to call the W&B run that is started if none is active; None starts none.
        enable_profiling: Whether the global profiler, `trackside.profiling.get_profiler()`, times the training. It is
            reset at the start.
        save_dir: Where the run and the best model by validation R² go; None keeps nothing on disk. If it holds a run
            already, the new one goes to `<save_dir>-2`, and the best model is replaced.
        eval_batch_size: How many samples to evaluate at once; all unless given.

    Returns:
        The model as last trained. The one given is left as it was.

    Raises:
        ConfigError: An argument that cannot work.
        DataError: Data that cannot be trained or evaluated on, or a loader that gives no batch.
        MetricError: A loss that is not a scalar, or not of the form above.
        MissingExtraError: equinox is not installed.
    """
    require("equinox", "train_decoding_jax")
    cadence = evaluation_cadence("epochs", epochs, log_every, eval_batch_size)
    check_run_name(wandb_run_name)
    data = data_set(train_tensors, "train_tensors"), data_set(val_tensors, "val_tensors")
    key = jax.random.PRNGKey(0) if key is None else jax.numpy.asarray(key)
    task = DecodingTask(model, state, filter_spec, loss_fn, opt, opt_state, key)
    task.check({"train_tensors": data[0], "val_tensors": data[1]})
    loader = _pairs(train_loader, enable_profiling)
    directory = None if save_dir is None else Path(save_dir)
    timer = StepTimer(get_profiler()) if enable_profiling else None
    trainer = DecodingTrainer(task, data, directory, eval_batch_size, timer)
    best = None if directory is None else directory / BEST_NAME
    with (
        TrainingRecord(trainer.logger, epochs, wandb_run_name, best, enable_profiling) as record,
        contextlib.nullcontext() if timer is None else contextlib.closing(timer),
    ):
        trainer.fit(loader, num_epochs=epochs, callbacks=[_Evaluations(trainer, record, cadence, epochs)])
    return trainer.model_and_state()[0]


def _pairs(loader: Iterable[Any], is_profiled: bool) -> Iterable[Any]:
    """The loader with batches as the trainer takes them. A list stays one, whose batches nobody overwrites."""
    if type(loader) in (list, tuple) and len(loader):  # type: ignore[arg-type]
        pairs = [to_pair(batch, _to_host) for batch in loader]
        return profile_data_loader(pairs) if is_profiled else pairs
    is_iterable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    return Pairs(profile_data_loader(loader) if is_profiled and is_iterable else loader, _to_host)


def _to_host(array: Any) -> Any:
    """What the compiled step takes without detours: numpy, or JAX's own where it is."""
    return array if isinstance(array, jax.Array) else to_numpy(array)


class _Evaluations(Callback):
    """Evaluates the model at the end of epochs, and warns of a loss that is not finite."""

    def __init__(self, trainer: DecodingTrainer, record: TrainingRecord, cadence: Every, num_epochs: int):
        super().__init__()
        self._decoding, self._record, self._cadence, self._num_epochs = trainer, record, cadence, num_epochs

    @property
    def ledger_part(self) -> str:
        """Evaluating is booked as such; what is left is logging."""
        return LOGGING

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Evaluate if that is due."""
        loss = train_metrics[LOSS_OF_EPOCH]
        if not math.isfinite(loss):
            self._record.warn_of_loss(loss, self._decoding.first_bad_step())
        if self._cadence.is_due(epoch_idx) or epoch_idx == self._num_epochs:
            self._record.add(self._decoding.evaluate(epoch_idx, loss), self._decoding.save)
