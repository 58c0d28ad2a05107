"""Training a PyTorch model to decode, measured as the JAX loop is.

On CPU a step is over when its call returns, and so are the times that are taken of it. On CUDA the times are those of
the host, and nothing in the loop waits for the device before the end of an epoch.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from trackside.decoding.data import Pair, data_set, is_torch_tensor, open_epoch, slices, split_pair
from trackside.decoding.model_scores import (
    Evaluation,
    Score,
    array_statistics,
    evaluation_cadence,
    name_statistics,
    score,
)
from trackside.decoding.record import TrainingRecord, check_run_name
from trackside.errors import ConfigError, DataError, MetricError
from trackside.logger import LoggerConfig
from trackside.measured_run import MeasuredRun
from trackside.optional import require
from trackside.profiling import profile_data_loader
from trackside.text import a_type

BEST_NAME = "best.safetensors"
"""What the best model is called: read it with `safetensors.torch.load_model(model, path)`."""


def train_decoding_torch(
    model: Any,
    train_loader: Iterable[Any],
    train_tensors: Any,
    val_tensors: Any,
    optimizer: Any,
    loss_fn: Callable[[Any, Any], Any],
    num_epochs: int,
    wandb_run_name: str | None = None,
    enable_profiling: bool = False,
    log_every: int = 10,
    device: Any = None,
    save_dir: str | os.PathLike[str] | None = None,
    *,
    eval_batch_size: int | None = None,
) -> Any:
    """Train a PyTorch model to predict targets from inputs.

    Arrays may be numpy's, JAX's or PyTorch's; floating-point ones are given to the model in the type of its parameters.
    Training goes the same way, to the bit, whatever is profiled.

    Args:
        model: The model, a `torch.nn.Module` that is called with a batch of inputs.
        train_loader: Gives batches `(inputs, targets)`, samples first; iterated over again in each epoch.
        train_tensors: The training data `(inputs, targets)` to evaluate on.
        val_tensors: The validation data `(inputs, targets)`.
        optimizer: A PyTorch optimizer of the model's parameters.
        loss_fn: Takes predictions and targets and returns a scalar.
        num_epochs: How many times to go through the loader.
        wandb_run_name: What to call the W&B run that is started if none is active; None starts none.
        enable_profiling: Whether the global profiler, `trackside.profiling.get_profiler()`, times the training. It is
            reset at the start.
        log_every: Evaluate and log the profile every N epochs, and always after the last.
        device: Where to train; CUDA where there is one unless given, else the CPU. The model is moved there.
        save_dir: Where the run and the best model by validation R² go; None keeps nothing on disk. If it holds a run
            already, the new one goes to `<save_dir>-2`, and the best model is replaced.
        eval_batch_size: How many samples to evaluate at once; all unless given.

    Returns:
        The model given, as last trained.

    Raises:
        ConfigError: An argument that cannot work.
        DataError: Data that cannot be trained or evaluated on, or a loader that gives no batch.
        MetricError: A loss that is not a scalar.
        MissingExtraError: torch is not installed.
    """
    require("torch", "train_decoding_torch")
    cadence = evaluation_cadence("num_epochs", num_epochs, log_every, eval_batch_size)
    check_run_name(wandb_run_name)
    data = data_set(train_tensors, "train_tensors"), data_set(val_tensors, "val_tensors")
    place = _Placement(model, device)
    best = None if save_dir is None else Path(save_dir) / BEST_NAME
    with (
        MeasuredRun(LoggerConfig(log_path=None if save_dir is None else Path(save_dir))) as run,
        TrainingRecord(run.logger, num_epochs, wandb_run_name, best, enable_profiling) as record,
        _restored_mode(model),
    ):
        training = _Training(model, train_loader, optimizer, loss_fn, place, run, record)
        evaluator = _Evaluator(model, loss_fn, place, data, eval_batch_size)
        for epoch in range(1, num_epochs + 1):
            mean_loss = training.run_epoch(epoch)
            if cadence.is_due(epoch) or epoch == num_epochs:
                with run.part("validation"):
                    evaluation = evaluator.evaluate(epoch, training.num_steps, mean_loss)
                record.add(evaluation, evaluator.save)
    return model


@contextlib.contextmanager
def _restored_mode(model: Any) -> Any:
    """Leave the model in training or evaluation mode, as it was."""
    was_training = model.training
    try:
        yield
    finally:
        model.train(was_training)


class _Placement:
    """Brings arrays to where the model is, in the floating-point type of its parameters."""

    def __init__(self, model: Any, device: Any):
        self._torch = torch = require("torch", "train_decoding_torch")
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"model: expected a torch.nn.Module, got {a_type(model)}")
        try:
            self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            model.to(self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"device: {device!r} cannot be used: {error}") from error
        self._dtype = next((param.dtype for param in model.parameters() if param.is_floating_point()), torch.float32)

    def __call__(self, array: Any) -> Any:
        """The array as a tensor on the device."""
        tensor = array if is_torch_tensor(array) else self._torch.as_tensor(_convertible(array))
        return tensor.to(self.device, self._dtype if tensor.is_floating_point() else None)


def _convertible(array: Any) -> np.ndarray:
    """The array in a form that PyTorch takes: writable, and of a type that it knows."""
    array = np.asarray(array)
    if array.dtype.kind == "V":  # such as bfloat16
        return array.astype(np.float32)
    return array if array.flags.writeable else array.copy()


class _Training:
    """The steps of a training, epoch by epoch."""

    def __init__(
        self,
        model: Any,
        loader: Iterable[Any],
        optimizer: Any,
        loss_fn: Callable[[Any, Any], Any],
        place: _Placement,
        run: MeasuredRun,
        record: TrainingRecord,
    ):
        self._model, self._optimizer, self._loss_fn, self._place = model, optimizer, loss_fn, place
        self._run, self._record, self._profiler = run, record, record.profiler
        self._loader = loader if self._profiler is None else profile_data_loader(loader)
        self._step = run.step(self._run_step, name="train_step")
        self._time: Callable[[str], Any] = _no_span if self._profiler is None else self._profiler.time
        self.num_steps = 0

    def run_epoch(self, epoch: int) -> float:
        """Train on every batch of the loader, and return the mean loss of their samples."""
        self._model.train()
        loss_sum, num_samples = 0.0, 0
        for batch in self._run.batches(open_epoch(self._loader, epoch)):
            inputs, targets = split_pair(batch, "a batch of train_loader")
            # The sum stays where the losses are, so that no step has to wait for its loss.
            loss_sum = loss_sum + self._step(inputs, targets) * len(inputs)
            num_samples += len(inputs)
            if self._profiler is not None:
                self._profiler.step()
        mean_loss = float(loss_sum) / num_samples
        if not np.isfinite(mean_loss):
            self._record.warn_of_loss(mean_loss, self.num_steps)
        return mean_loss

    def _run_step(self, inputs: Any, targets: Any) -> Any:
        time = self._time
        with time("training_step"):
            inputs, targets = self._place(inputs), self._place(targets)
            with time("loss_fn_computation"):
                self._optimizer.zero_grad()
                with time("forward"):
                    predictions = self._model(inputs)
                    loss = self._loss_fn(predictions, targets)
                if self.num_steps == 0:
                    _check_first(predictions, targets, loss)
                with time("backward"):
                    loss.backward()
            with time("optimizer_step"):
                self._optimizer.step()
        self.num_steps += 1
        return loss.detach()


def _no_span(name: str) -> contextlib.nullcontext[None]:
    del name
    return contextlib.nullcontext()


def _check_first(predictions: Any, targets: Any, loss: Any) -> None:
    if not is_torch_tensor(predictions):
        raise ConfigError(f"model: expected it to return a tensor of predictions, got {a_type(predictions)}")
    if predictions.shape != targets.shape:
        raise DataError(
            f"train_loader: the model predicts shape {tuple(predictions.shape)} and the targets have shape "
            f"{tuple(targets.shape)}"
        )
    if not is_torch_tensor(loss):
        raise MetricError(f"loss_fn: expected it to return a scalar tensor, got {a_type(loss)}")
    if loss.numel() != 1:
        raise MetricError(
            f"loss_fn: its value has shape {tuple(loss.shape)}. It has to be a scalar: take a mean or a sum"
        )


class _Evaluator:
    """Evaluates and saves the model of a training."""

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[[Any, Any], Any],
        place: _Placement,
        data: tuple[Pair, Pair],
        batch_size: int | None,
    ):
        self._torch = require("torch", "train_decoding_torch")
        self._model, self._loss_fn, self._place = model, loss_fn, place
        self._data, self._batch_size = data, batch_size

    def evaluate(self, epoch: int, num_steps: int, mean_loss: float) -> Evaluation:
        """Find out how good the model is on the training and on the validation data."""
        trained = [(name, param) for name, param in self._model.named_parameters() if param.requires_grad]
        params = self._statistics(trained)
        grads = self._statistics([(name, param.grad) for name, param in trained if param.grad is not None])
        self._model.eval()
        with self._torch.no_grad():
            train, val = (self._score(pair) for pair in self._data)
        return Evaluation(epoch, num_steps, mean_loss, train, val, params, grads)

    def save(self, path: Path) -> None:
        """Write the model's parameters and buffers."""
        from safetensors.torch import save_model  # imports torch

        save_model(self._model, str(path))

    def _score(self, pair: Pair) -> Score:
        def predict(part: slice) -> tuple[float, np.ndarray]:
            predictions = self._model(self._place(pair.inputs[part]))
            loss = self._loss_fn(predictions, self._place(pair.targets[part]))
            return float(loss), self._to_numpy(predictions)

        return score(predict, pair.targets, list(slices(len(pair.inputs), self._batch_size)))

    def _statistics(self, named: list[tuple[str, Any]]) -> dict[str, float]:
        rows = [array_statistics(self._to_numpy(tensor)) for _, tensor in named]
        return name_statistics([name for name, _ in named], np.asarray(rows))

    def _to_numpy(self, tensor: Any) -> np.ndarray:
        tensor = tensor.detach().cpu()
        return tensor.numpy() if tensor.dtype != self._torch.bfloat16 else tensor.float().numpy()
