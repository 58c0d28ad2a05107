"""Training an Equinox model to decode.

The loop only feeds the device: it waits for the step before the last two, which bounds what is queued, and looks at the
loss of a step when that has completed. It evaluates every `log_every` epochs and after the last.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trackside.decoding.data import Pair, data_set, open_epoch, slices, split_pair, to_numpy
from trackside.decoding.decoding_step import LossFunction
from trackside.decoding.flat_step import FlatStep
from trackside.decoding.model_scores import STATISTICS, Evaluation, Score, evaluation_cadence, name_statistics, score
from trackside.decoding.record import TrainingRecord
from trackside.optional import require
from trackside.profiling import profile_data_loader, profile_make_step
from trackside.trainer.buffer_guard import BufferGuard

MAX_INFLIGHT_STEPS = 2
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
        save_dir: Where the event file and the best model by validation R² go; None keeps nothing on disk.
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
    data = data_set(train_tensors, "train_tensors"), data_set(val_tensors, "val_tensors")
    key = jax.random.PRNGKey(0) if key is None else key
    step = FlatStep(model, state, filter_spec, loss_fn, opt, opt_state, key)
    for pair, name in zip(data, ("train_tensors", "val_tensors"), strict=True):
        step.check_predictions(pair.inputs, pair.targets, name)
    with TrainingRecord(epochs, wandb_run_name, save_dir, BEST_NAME, enable_profiling) as record:
        training = _Training(step, train_loader, record)
        evaluator = _Evaluator(step, data, jax.random.fold_in(key, 0), eval_batch_size)
        for epoch in range(1, epochs + 1):
            mean_loss = training.run_epoch(epoch)
            if cadence.is_due(epoch) or epoch == epochs:
                grads = name_statistics(step.names, training.gradient_statistics)
                evaluation = evaluator.evaluate(epoch, training.num_steps, mean_loss, grads)
                record.add(evaluation, evaluator.save)
    return step.model_and_state()[0]


class _Training:
    """The steps of a training, epoch by epoch."""

    def __init__(self, step: FlatStep, loader: Iterable[Any], record: TrainingRecord):
        self._step, self._record, self._profiler = step, record, record.profiler
        self._guard = BufferGuard(loader, MAX_INFLIGHT_STEPS)
        self._loader = loader if self._profiler is None else profile_data_loader(loader)
        self._call: Callable[..., Any] = step.call if self._profiler is None else profile_make_step(step.call)
        self._window: deque[tuple[jax.Array, Pair]] = deque()
        self._forms: set[tuple[Any, ...]] = set()
        self._loss_sum = 0.0
        self._num_samples = 0
        self._num_retired = 0
        self.num_steps = 0
        self.gradient_statistics = np.zeros((len(step.names), len(STATISTICS)))
        """Of the last step, one row per trained leaf."""

    def run_epoch(self, epoch: int) -> float:
        """Train on every batch of the loader, and return the mean loss of their samples."""
        self._loss_sum, self._num_samples = 0.0, 0
        run_step = self._run_step if self._profiler is None else self._run_timed_step
        for batch in open_epoch(self._loader, epoch):
            inputs, targets = split_pair(batch, "a batch of train_loader")
            run_step(self._guard.protect(Pair(_to_host(inputs), _to_host(targets))))
            if self._guard.on_probation:
                self._retire_all()
        self._retire_all()
        return self._loss_sum / self._num_samples

    def _run_step(self, pair: Pair) -> None:
        if len(self._window) >= MAX_INFLIGHT_STEPS:
            self._retire()
        self._step.leaves, report = self._call(self._step.leaves, *pair)
        # JAX may read a batch until its step has completed, so the batch is held until then.
        self._window.append((report, pair))
        self.num_steps += 1

    def _run_timed_step(self, pair: Pair) -> None:
        profiler = self._profiler
        assert profiler is not None
        form = (pair.inputs.shape, pair.inputs.dtype, pair.targets.shape, pair.targets.dtype)
        if form not in self._forms:  # compiled by itself, so that the times of steps are those of steps
            self._forms.add(form)
            with profiler.time("compilation"):
                self._step.call.lower(self._step.leaves, *pair).compile()
        with profiler.time("training_step"):
            self._run_step(pair)
        profiler.step()

    def _retire(self) -> None:
        """Wait for the oldest step in flight and take its figures."""
        report, pair = self._window.popleft()
        values = np.asarray(report)
        self._num_retired += 1
        loss, num_samples = float(values[0]), len(pair.inputs)
        if not np.isfinite(loss):
            self._record.warn_of_loss(loss, self._num_retired)
        self._loss_sum += loss * num_samples
        self._num_samples += num_samples
        if not self._window:
            self.gradient_statistics = values[1:].reshape(self.gradient_statistics.shape)

    def _retire_all(self) -> None:
        while self._window:
            self._retire()


class _Evaluator:
    """Evaluates and saves the model of a training."""

    def __init__(self, step: FlatStep, data: tuple[Pair, Pair], key: jax.Array, batch_size: int | None):
        self._step, self._data, self._key, self._batch_size = step, data, key, batch_size

    def evaluate(self, epoch: int, num_steps: int, mean_loss: float, grads: dict[str, float]) -> Evaluation:
        """Find out how good the model is on the training and on the validation data."""
        train, val = (self._score(pair) for pair in self._data)
        params = name_statistics(self._step.names, self._step.param_statistics())
        return Evaluation(epoch, num_steps, mean_loss, train, val, params, grads)

    def save(self, path: Path) -> None:
        """Write model and state."""
        require("equinox", "train_decoding_jax").tree_serialise_leaves(path, self._step.model_and_state())

    def _score(self, pair: Pair) -> Score:
        def predict(part: slice) -> tuple[float, np.ndarray]:
            return self._step.evaluate(pair.inputs[part], pair.targets[part], self._key)

        return score(predict, pair.targets, list(slices(len(pair.inputs), self._batch_size)))


def _to_host(array: Any) -> Any:
    """What the compiled step takes without detours: numpy, or JAX's own where it is."""
    return array if isinstance(array, jax.Array) else to_numpy(array)
