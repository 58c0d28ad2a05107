"""The short way to a training: a model of any library, a loss function, an optimizer.

`Trainer` builds a `TrainerModule` when it sees the first batch, and does everything through it.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import optax

from trackside.callbacks import CheckpointConfig, ModelCheckpoint
from trackside.callbacks.callback_list import CallbackArgument
from trackside.config.declared_types import check_types
from trackside.errors import ConfigError, DataError
from trackside.logger import FileLoggerConfig, LoggerConfig
from trackside.logger.run_log import without_opening_runs
from trackside.measured_run.batch_size import batch_size
from trackside.measured_run.run_folder import holds_run
from trackside.processes import JAX_PROCESSES
from trackside.trainer.batch import DataloaderModule, check_dataset
from trackside.trainer.batch_limit import BatchLimit
from trackside.trainer.first_look import NO_BATCH, FirstLook
from trackside.trainer.learning_rate_curve import LearningRateTest
from trackside.trainer.learning_rate_test import MakeOptimizer
from trackside.trainer.loaders import has_position
from trackside.trainer.logged_evaluation import Loaders
from trackside.trainer.loss_trainer import Loss, LossTrainer, Spec, parameters_of
from trackside.trainer.model_summary import ModelSummary
from trackside.trainer.models import FunctionModel
from trackside.trainer.optimizer import OptimizerConfig
from trackside.trainer.precision import PrecisionConfig, to_precision
from trackside.trainer.run_weights import load_weights_of_run
from trackside.trainer.sharding import ParallelConfig
from trackside.trainer.trainer import TrainerModule
from trackside.trainer.trainer_config import TrainerConfig


class Trainer:
    """Trains a model of any library with a loss function.

    Args:
        model: A Flax Linen, Flax NNX or Equinox model, or a pair of functions `(init_fn, apply_fn)`. A model with
            `eqx.nn.State` comes as the pair that `eqx.nn.make_with_state` gives. A function of `rngs` (NNX) or `key`
            (Equinox) that builds the model makes its arrays where they belong on several devices.
        loss_fn: `loss_fn(model, batch, rng) -> loss`, or `loss, metrics`. The model is in training mode, or in
            evaluation in inference mode; the function is given `train` as well if it takes that. Batch statistics and
            variables of NNX are kept up by themselves. For a model whose state is passed on (Equinox, functions), the
            function takes `state`, and returns it last.
        optimizer: Any optax optimizer, or an `OptimizerConfig`.
        run: The folder of the run. A run in it that did not end is resumed; one that did keeps the folder, and the new
            run goes to `<run>-2`. None writes nothing.
        config: Everything else of the training: seed, gradient accumulation, validation, callbacks, logger.
        parallel: The mesh, and how parameters are spread over it.
        precision: Mixed precision, as in `TrainerConfig.precision`: `"bf16"`, `"fp16"` or a `PrecisionConfig`.
        remat: Patterns of layers that compute their intermediate results again in the backward pass, as in
            `TrainerConfig.remat`.
        inputs: What the model gets of a batch, for `predict` and where shapes are inferred; by default `batch.inputs`,
            `batch["inputs"]`, `batch["x"]`, or the first of a tuple.
        predict_fn: `predict_fn(model, batch, rng)`, what `predict` gives for a batch; the model's output by default. It
            is given the model's `state` as well if it takes that.
        steps_per_call: How many steps a call of the compiled program makes, instead of what the config says.
        prefetch_batches: How many batches of the training loader a thread reads ahead, as in
            `TrainerConfig.prefetch_batches`.
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[..., Any],
        optimizer: optax.GradientTransformation | optax.MultiSteps | OptimizerConfig,
        run: str | Path | None = None,
        *,
        config: TrainerConfig | None = None,
        parallel: ParallelConfig | None = None,
        precision: PrecisionConfig | str | None = None,
        remat: list[str] | None = None,
        inputs: Callable[[Any], Any] | None = None,
        predict_fn: Callable[..., Any] | None = None,
        steps_per_call: int | Literal["auto"] | None = None,
        prefetch_batches: int | None = None,
    ):
        _check_arguments(model, loss_fn, optimizer)
        if predict_fn is not None:
            _check_takes_three("predict_fn", predict_fn)
        check_types(Trainer.__init__, run=run, config=config, parallel=parallel, inputs=inputs, predict_fn=predict_fn)
        self._model = FunctionModel(*model) if _are_functions(model) else model
        self._loss = Loss(loss_fn, predict_fn)
        self._optimizer = optimizer.gradient_transformation() if isinstance(optimizer, optax.MultiSteps) else optimizer
        self._run = None if run is None else Path(run)
        self._config = _with_arguments(
            config if config is not None else TrainerConfig(),
            precision=to_precision(precision),
            remat=remat,
            steps_per_call=steps_per_call,
            prefetch_batches=prefetch_batches,
        )
        self._parallel = parallel if parallel is not None else ParallelConfig()
        self._inputs = inputs
        self._dataset = DataloaderModule()
        self._module: LossTrainer | None = None
        self._preview: LossTrainer | None = None
        self._only_looks = False
        self._first_look = FirstLook()

    @property
    def module(self) -> TrainerModule:
        """The full trainer behind this one, with everything else that can be done; there once it has seen a batch."""
        if self._module is None:
            raise ConfigError("trainer: it is built with the first batch; call fit, evaluate, predict or build first")
        return self._module

    @property
    def model(self) -> Any:
        """The model as it is trained now, as its library knows it; the parameters of plain functions."""
        if self._module is None:
            return self._model
        carry = self._module.engine.to_evaluate(self._module.progress.carry)
        copies = jax.tree.map(lambda leaf: leaf.copy(), (carry.params, carry.mutable_variables))  # steps overwrite them
        return self._module.adapter.rebuild(*copies)

    def build(self, batch: Any, validates: bool = False) -> TrainerModule:
        """Build the full trainer, unless it is there, for batches such as the one given.

        Args:
            batch: An example batch: arrays, or `jax.ShapeDtypeStruct`.
            validates: Whether the training will validate, so that checkpoints are chosen by the validation loss.
        """
        if self._module is None:
            self._preview = None
            self._module = self._build(batch, validates)
            self._module.resumes_by_itself = self._run is not None
        return self._module

    def _build(self, batch: Any, validates: bool) -> "LossTrainer":
        spec = Spec(self._model, self._loss, self._optimizer, self._inputs)
        module = LossTrainer(spec, self._trainer_config(validates), self._parallel, batch)
        module.first_look = self._first_look
        return module

    def set_dataset(self, dataset: DataloaderModule) -> None:
        """Set the loaders that `fit` uses where it is given none."""
        check_dataset(dataset)
        self._dataset = dataset

    def fit(
        self,
        train_loader: Iterable | None = None,
        val_loader: Loaders | None = None,
        test_loader: Loaders | None = None,
        *,
        num_epochs: int | None = None,
        num_train_steps: int | None = None,
        steps_per_epoch: int | None = None,
        callbacks: CallbackArgument = None,
    ) -> dict[str, dict[str, float]]:
        """Train. One epoch unless told otherwise; the arguments and results are those of `TrainerModule.fit`."""
        train_loader = self._dataset.train_dataloader if train_loader is None else train_loader
        val_loader = self._dataset.val_dataloader if val_loader is None else val_loader
        if train_loader is None:
            raise ConfigError("train_loader: there is none; pass one, or set the loaders with set_dataset before")
        if self._module is None or self._only_looks:
            self._module, self._only_looks = None, False
            batch = self._look(train_loader, "train_loader", is_to_train=True)
            # The losses of several validation sets have names of their own, among which none is the one to go by.
            self.build(batch, validates=val_loader is not None and not isinstance(val_loader, dict))
        return self.module.fit(
            train_loader,
            val_loader,
            self._dataset.test_dataloader if test_loader is None else test_loader,
            num_epochs=num_epochs,
            num_train_steps=num_train_steps,
            steps_per_epoch=steps_per_epoch,
            callbacks=callbacks,
        )

    def evaluate(self, loader: Loaders, mode: str = "eval") -> dict[str, float]:
        """The metrics over a loader, in evaluation mode.

        Before `fit`, the model is the last one that was saved in the folder `run`, if that holds a run, finished or
        not; else the one that was given.

        Args:
            loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
            mode: What they are logged under.
        """
        if self._module is None and isinstance(loader, dict):
            if not loader:
                raise DataError("loader: it is a dict without loaders; the first batch shows the shapes of the model")
            first = next(iter(loader))
            self._build_to_look(self._look(loader[first], f"loader[{first!r}]"))
        elif self._module is None:
            self._build_to_look(self._look(loader, "loader"))
        return self.module.eval_model(loader, mode, self.module.epoch)

    def predict(self, loader: Iterable) -> Any:
        """The model's outputs for every example of a loader, as numpy arrays in the loader's order.

        Before `fit`, the model is that of `evaluate`. An output that is one number for a batch gives one per batch.
        """
        if self._module is None:
            self._build_to_look(self._look(loader, "loader"))
        return self.module.predict(loader)

    def summary(self, loader: Iterable | None = None, *, depth: int | None = None) -> ModelSummary:
        """Parameters, operations of a training step and bytes by module; see `TrainerModule.summary`.

        Args:
            loader: Its first batch shows the shapes; those to train on, set by `set_dataset`, if left out. A trainer
                that has seen a batch needs none.
            depth: How deep modules are shown; None for all.
        """
        return self._to_ask(loader).summary(depth)

    def find_learning_rate(
        self,
        loader: Iterable | None = None,
        *,
        lowest: float | None = None,
        highest: float | None = None,
        num_steps: int = 100,
        optimizer: MakeOptimizer | None = None,
    ) -> LearningRateTest:
        """Train a copy of the model with a growing learning rate, and suggest one.

        The arguments are those of `TrainerModule.find_learning_rate`.
        """
        loader = self._dataset.train_dataloader if loader is None else loader
        if loader is None:
            raise ConfigError("loader: there is none; pass one, or set the loaders with set_dataset before")
        module = self._to_ask(loader)
        return module.find_learning_rate(
            loader, lowest=lowest, highest=highest, num_steps=num_steps, optimizer=optimizer
        )

    def largest_batch(
        self,
        loader: Iterable | None = None,
        limit_bytes: int | None = None,
        *,
        max_size: int | None = None,
        max_compiles: int = 10,
    ) -> BatchLimit:
        """The largest batch that fits into memory; see `TrainerModule.largest_batch`.

        Args:
            loader: As for `summary`.
            limit_bytes: As there, like those that follow.
            max_size: The largest size to try.
            max_compiles: How often to compile at most.
        """
        return self._to_ask(loader).largest_batch(limit_bytes, max_size=max_size, max_compiles=max_compiles)

    def _to_ask(self, loader: Iterable | None) -> "LossTrainer":
        """The full trainer; before there is one, another that writes nothing, and that `fit` replaces.

        Only `fit` knows whether the training validates, and so by which loss its checkpoints are chosen.
        """
        if self._module is not None:
            return self._module
        if self._preview is None:
            loader = self._dataset.train_dataloader if loader is None else loader
            if loader is None:
                raise ConfigError("loader: there is none; pass one, or call build with a batch before")
            if isinstance(loader, Iterator) and not has_position(loader):
                raise DataError("loader: its batches can be read only once; pass a list of some, or call build before")
            batch = self._look(loader, "loader", is_to_train=True)
            with without_opening_runs():
                self._preview = self._build(batch, validates=False)
        return self._preview

    def _look(self, loader: Iterable, name: str, is_to_train: bool = False) -> Any:
        """The first batch of a loader, which shows the shapes of the model; whoever opens the loader has it, too."""
        first = self._first_look.look(loader, name, is_to_train)
        if first is NO_BATCH:
            raise DataError(f"{name}: it has no batches; the first one shows the shapes of the model")
        batch_size(first)  # raises if it is no batch, before the model fails on it
        return first

    def _build_to_look(self, batch: Any) -> None:
        """Build the full trainer with the weights of the run in the folder, if there is one, which is left alone."""
        run = self._run
        if run is None or not JAX_PROCESSES.main_decides(lambda: int(holds_run(run)), f"run {run}"):
            self.build(batch)
            return
        with without_opening_runs():
            module = self.build(batch)
        self._only_looks = True
        load_weights_of_run(module, run, self._config.callbacks)

    def _trainer_config(self, validates: bool) -> TrainerConfig:
        config, run = self._config, self._run
        if run is None:
            return config
        logger = config.logger if config.logger is not None else LoggerConfig()
        if logger.log_path is None:
            tools = logger.log_tools or [FileLoggerConfig()]
            logger = replace(logger, log_path=run, log_tools=tools)
        callbacks: Sequence[Any] = config.callbacks
        if not any(isinstance(one, CheckpointConfig | ModelCheckpoint) for one in callbacks):
            callbacks = [*callbacks, CheckpointConfig(monitor="val_loss" if validates else None)]
        resume = config.resume
        if resume == "never" and JAX_PROCESSES.main_decides(lambda: int(_is_unfinished(run)), f"run {run}"):
            resume = "auto"
        return replace(config, logger=logger, callbacks=list(callbacks), resume=resume)


def _with_arguments(config: TrainerConfig, **arguments: Any) -> TrainerConfig:
    """The config with what is given as arguments as well."""
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        if getattr(config, name) not in (None, "auto", 0, value):
            raise ConfigError(f"{name}: got {value!r}, and {getattr(config, name)!r} in config; say it once")
    return replace(config, **given) if given else config


def _is_unfinished(run: Path) -> bool:
    """Whether a folder holds a run that did not reach its goal."""
    if not holds_run(run):
        return False
    from trackside.runs import open_run  # which brings much that a first training does not need

    return open_run(run).status not in ("success", "running")


def _check_arguments(model: Any, loss_fn: Any, optimizer: Any) -> None:
    _check_takes_three("loss_fn", loss_fn)
    if model is None:
        raise ConfigError(
            "model: expected a model, a class, a function that builds one, or (init_fn, apply_fn); got None"
        )
    if not isinstance(optimizer, optax.GradientTransformation | optax.MultiSteps | OptimizerConfig):
        hint = "; call it with its learning rate" if callable(optimizer) else ""
        raise ConfigError(
            f"optimizer: expected an optax optimizer such as optax.adam(1e-3), or an OptimizerConfig; got "
            f"{optimizer!r}{hint}"
        )


def _check_takes_three(name: str, function: Any) -> None:
    if not callable(function):
        raise ConfigError(f"{name}: expected a function {name}(model, batch, rng), got {function!r}")
    if (taken := parameters_of(function)) and not _takes_three(taken):
        raise ConfigError(
            f"{name}: expected it to take model, batch and rng, as in {name}(model, batch, rng); it takes "
            f"({', '.join(taken)})"
        )


def _takes_three(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a function can be called with three arguments."""
    kinds = [one.kind for one in parameters.values()]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in by_position for kind in kinds) >= 3


def _are_functions(model: Any) -> bool:
    return isinstance(model, tuple) and len(model) == 2 and all(inspect.isroutine(one) for one in model)
