"""The part of the trainer that saves its state and puts saved ones back."""

import dataclasses
import logging
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp

from trackside.config import ConfigDict
from trackside.errors import CheckpointError, ConfigError
from trackside.logger import LoggerConfig
from trackside.logger.redact import redact
from trackside.profiling.ledger import CHECKPOINTING
from trackside.run_layout import CHECKPOINTS_FOLDER
from trackside.trainer import export, processes, snapshot
from trackside.trainer.batch import slice_batch
from trackside.trainer.checkpoint import CheckpointStore
from trackside.trainer.config import TrainerConfig
from trackside.trainer.goal import Position
from trackside.trainer.models import ModelConfig
from trackside.trainer.optimizer import OptimizerConfig
from trackside.trainer.restore import restore_carry, restore_loaders
from trackside.trainer.setup import TrainerSetup

LOGGER = logging.getLogger(__name__)

_Config = TypeVar("_Config", bound=ConfigDict)
_NO_STEP = -1

# From the metrics of all saved steps, chooses the steps to keep.
Keep = Callable[[Mapping[int, Mapping[str, float]]], Iterable[int]]


@jax.jit
def _is_finite(carry: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(carry) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]).all() if floats else jnp.array(True)


class SavedStates(TrainerSetup):
    """Saves and loads the training: state, position, metrics and configs together."""

    _stores: dict[pathlib.Path, CheckpointStore]

    def save_checkpoint(
        self,
        directory: str | pathlib.Path | None = None,
        metrics: Mapping[str, float] | None = None,
        keep: Keep | None = None,
    ) -> None:
        """Save the training at its current step. Returns as soon as training may go on.

        A state that holds anything that is not finite is not saved; the log says so. If the last save to this folder
        has failed, that is raised.

        Args:
            directory: The folder of the checkpoints; `checkpoints` in the run's folder if left out.
            metrics: Metrics that go with the checkpoint.
            keep: Chooses the steps to keep from the metrics of all; if left out, all are kept.
        """
        with self.ledger.spend(CHECKPOINTING):
            self._save(self._store(directory), dict(metrics or {}), keep)

    def _save(self, store: CheckpointStore, metrics: dict[str, float], keep: Keep | None) -> None:
        for other in self.__dict__.get("_stores", {}).values():
            failure = self._finish(other)
            if other is store:
                processes.raise_together(failure)
        self._position.time.in_steps_s = self.ledger.totals().in_steps_s
        record = snapshot.to_record(self._position, metrics, self.callbacks.rank(metrics), self.clock.now())
        record["configs"] = self._plain_configs()
        record["callbacks"] = self.callbacks.state_dict()
        record["loaders_by_process"] = processes.gather(record["loaders"])
        is_finite, step = _is_finite(self._position.carry), self.global_step

        def after_commit() -> None:
            if self.logger.is_open:
                self.logger.events.write("checkpoint", step=step, path=str(store.root))
            if keep is not None:
                saved = _metrics_of_steps(store)
                store.delete(saved.keys() - set(keep(saved)))

        store.save(
            step,
            snapshot.to_trees(self._position.carry),
            record,
            is_good=lambda: bool(is_finite),
            after_commit=after_commit,
        )

    def finish_saving(self) -> None:
        """Wait for checkpoints that are being written. One that failed is reported; the earlier ones are intact."""
        with self.ledger.spend(CHECKPOINTING):
            for store in self.__dict__.get("_stores", {}).values():
                self._finish(store)

    def _finish(self, store: CheckpointStore) -> CheckpointError | None:
        try:
            store.wait()
        except CheckpointError as error:
            LOGGER.error("%s", error)
            if self.logger.is_open:
                self.logger.events.write("checkpoint_failed", path=str(store.root), error=str(error))
            return error
        return None

    def resume(self) -> None:
        """Go on from the newest good checkpoint of the callbacks' folder, as `TrainerConfig.resume` says.

        A folder that this trainer has not written to and must not go on from is refused, so that no run is mixed with
        another.
        """
        directory = next((callback.directory for callback in self.callbacks if callback.directory), None)
        mode = self.trainer_config.resume
        if directory is None:
            if mode == "must":
                raise CheckpointError("resume='must': no callback keeps checkpoints; add a CheckpointConfig")
            return
        is_known = directory.absolute() in self.__dict__.get("_stores", {})
        store = self._store(directory)
        if is_known:
            return
        num_steps = processes.main_decides(lambda: _look_into(store, mode), f"resume={mode!r}: {store.root}")
        if not num_steps and mode != "must":
            return
        step = self._load(store, -1, load_best=False, load_optimizer=True)
        if self._logs_rows:
            self.logger.rewind(step)
        self.callbacks.load_state_dict(store.record(step)["callbacks"])

    def export_params(self, path: str | pathlib.Path) -> None:
        """Write the parameters to a safetensors file, those that evaluation uses.

        With several processes all have to call this, and the first one writes.
        """
        params = self.callbacks.evaluation_params(self._position.carry)
        params = processes.whole(self._position.carry.params if params is None else params)
        if processes.is_main():
            export.export_params(params, path)

    def import_params(self, path: str | pathlib.Path) -> None:
        """Take over parameters from a safetensors file; the optimizer stays as it is."""
        carry = self._position.carry
        params = export.import_params(carry.params, path)
        self._position.carry = carry._replace(params=jax.device_put(params, self._carry_shardings.params))

    def _store(self, directory: str | pathlib.Path | None) -> CheckpointStore:
        if directory is None:
            if self.logger.log_path is None:
                raise CheckpointError(
                    "no folder for checkpoints: set LoggerConfig.log_path, or name a directory for the checkpoints"
                )
            directory = self.logger.log_path / CHECKPOINTS_FOLDER
        path = pathlib.Path(directory).absolute()
        stores = self.__dict__.setdefault("_stores", {})
        return stores.setdefault(path, CheckpointStore(path))

    @contextmanager
    def best_model(self) -> Iterator[None]:
        """For as long as it is open, the trainer holds the best model that its callbacks have saved."""
        directory = next((callback.directory for callback in self.callbacks if callback.directory), None)
        self.finish_saving()
        store = self._store(directory) if directory is not None else None
        best = _NO_STEP if store is None else processes.main_decides(lambda: self._best_step(store), "the best model")
        if store is None or best in (_NO_STEP, self.global_step):
            yield
            return
        snapshot.check_form(store, best, self._position.carry, with_optimizer=True)
        position = self._position
        carry = position.carry
        # The optimizer's state too: callbacks may keep there what they evaluate on.
        state = snapshot.load_state(store, best, carry, self._carry_shardings, with_optimizer=True)
        position.carry = carry._replace(**state)
        LOGGER.info("the best model is that of step %d", best)
        try:
            yield
        finally:
            position.carry = carry

    def _best_step(self, store: CheckpointStore) -> int:
        ranks = {step: self.callbacks.rank(snapshot.saved_metrics(store.record(step))) for step in store.steps()}
        known = {step: rank for step, rank in ranks.items() if rank is not None and math.isfinite(rank)}
        best = min(known, key=lambda step: (known[step], -step), default=_NO_STEP)
        if best not in (_NO_STEP, self.global_step):
            store.verify(best)
        return best

    def _plain_configs(self) -> dict[str, Any]:
        configs = {"trainer": self.trainer_config, "model": self.model_config, "optimizer": self.optimizer_config}
        plain = {}
        for name, config in configs.items():
            try:
                plain[name] = redact(config.to_dict())
            except ConfigError as error:  # say, a model class that was defined in a function
                LOGGER.warning("the %s config is not saved, so load_from_checkpoint will not work: %s", name, error)
        return plain

    def load_model(self, step_idx: int = -1, raise_if_not_found: bool = True) -> None:
        """Load the training from the run's folder: parameters, optimizer, batch statistics, position.

        Args:
            step_idx: The step; -1 for the latest that is not damaged.
            raise_if_not_found: Whether it is an error if there is none; otherwise a warning.
        """
        self.finish_saving()
        try:
            self._load(self._store(None), step_idx, load_best=False, load_optimizer=self._has_optimizer)
        except CheckpointError as error:
            if raise_if_not_found:
                raise
            LOGGER.warning("no model was loaded: %s", error)

    def load_data_loaders(
        self, step_idx: int = -1, train_loader: Any = None, val_loader: Any = None, test_loader: Any = None
    ) -> None:
        """Put the positions of loaders back that were saved in the run's folder.

        Args:
            step_idx: The step; -1 for the trainer's current one.
            train_loader: Set to its saved position, if given.
            val_loader: Set to its saved position, if given.
            test_loader: Set to its saved position, if given.
        """
        self._load_loaders(self._store(None), step_idx, train_loader, val_loader, test_loader)

    def _load_loaders(self, store: CheckpointStore, step_idx: int, train: Any, val: Any, test: Any) -> None:
        record = store.record(self.global_step if step_idx < 0 else step_idx)
        positions = {name: snapshot.decode_position(saved) for name, saved in snapshot.own_loaders(record).items()}
        self.restore_data_loaders(positions, train, val, test)

    def load_pretrained_model(
        self,
        checkpoint_path: str | pathlib.Path,
        step_idx: int = -1,
        load_best: bool = False,
        load_optimizer: bool = True,
        train_loader: Any = None,
        val_loader: Any = None,
        test_loader: Any = None,
        delete_params_before_loading: bool = True,
    ) -> int:
        """Load a model from a folder of checkpoints.

        Args:
            checkpoint_path: The folder.
            step_idx: The step; -1 for the latest that is not damaged.
            load_best: Whether to load the best step instead, by the metric that was monitored when it was saved, else
                by its validation loss.
            load_optimizer: Whether to load the optimizer's state too.
            train_loader: Set to its saved position, if given.
            val_loader: Set to its saved position, if given.
            test_loader: Set to its saved position, if given.
            delete_params_before_loading: Whether to free the current parameters first. Saves memory on the device.
                What does not fit is found before; should reading itself fail, they are gone.

        Returns:
            The step that was loaded.
        """
        self.finish_saving()
        store = self._store(find_checkpoints(pathlib.Path(checkpoint_path)))
        with_optimizer = load_optimizer and self._has_optimizer
        step = self._load(store, step_idx, load_best, with_optimizer, delete_params_before_loading)
        if any(loader is not None for loader in (train_loader, val_loader, test_loader)):
            self._load_loaders(store, step, train_loader, val_loader, test_loader)
        return step

    @property
    def _has_optimizer(self) -> bool:
        return self._position.carry.opt_state is not None

    def _load(
        self, store: CheckpointStore, step_idx: int, load_best: bool, load_optimizer: bool, delete_first: bool = False
    ) -> int:
        step = processes.main_decides(lambda: choose_step(store, step_idx, load_best), f"loading from {store.root}")
        carry = self._position.carry
        abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), carry)
        snapshot.check_form(store, step, abstract, load_optimizer)
        if delete_first:
            jax.tree.map(lambda leaf: leaf.delete(), carry.params)
        state = snapshot.load_state(store, step, abstract, self._carry_shardings, load_optimizer)
        carry = carry._replace(**state)
        layout = self.init_train_metrics(self.exmp_batch).layout if load_optimizer else None
        if layout is None:  # parameters of another training: this one starts at its own beginning
            self._position = Position(carry._replace(step=jnp.zeros((), jnp.int32)))
        else:
            self._position = snapshot.to_position(carry, store.record(step), layout)
        self._start_step = self._position.step
        LOGGER.info("loaded step %d of %s", step, store.root)
        return step

    @classmethod
    def load_from_checkpoint(cls, checkpoint: str | pathlib.Path, exmp_input: Any = None, batch_size: int = -1) -> Self:
        """Build a trainer with the configs and the latest state of a run.

        Nothing is written to the run's folder until the trainer trains or evaluates; then its rows go there, also if
        the folder was moved.

        Args:
            checkpoint: The run's folder, or its folder of checkpoints.
            exmp_input: An example batch, from which shapes are inferred.
            batch_size: How many examples of it to use; -1 for all.
        """
        if exmp_input is None:
            raise CheckpointError("exmp_input: an example batch is needed to build the model; arrays or their shapes")
        root = find_checkpoints(pathlib.Path(checkpoint))
        store = CheckpointStore(root)
        configs = store.record(choose_step(store, -1, load_best=False))["configs"]
        for name in ("trainer", "model", "optimizer"):
            if name not in configs:
                raise CheckpointError(
                    f"checkpoint {root}: the {name} config was not saved, since it could not be written; build the "
                    "trainer yourself and use load_pretrained_model"
                )
        trainer_config = _read_saved(TrainerConfig, configs["trainer"])
        logger_config, trainer_config.logger = _logger_where_it_lies(trainer_config.logger, root), None
        model_config = _read_saved(ModelConfig, configs["model"])
        optimizer_config = _read_saved(OptimizerConfig, configs["optimizer"])
        batch = exmp_input if batch_size < 0 else slice_batch(exmp_input, slice(0, batch_size))
        trainer = cls(trainer_config, model_config, optimizer_config, batch)
        trainer.trainer_config.logger = logger_config
        if logger_config is not None:  # a look at a run writes nothing to it, and starts no tool
            trainer.init_logger(logger_config, opens_now=False)
        trainer.load_pretrained_model(root)
        return trainer

    def restore_model(self, state_dict: dict[str, Any]) -> None:
        """Put a saved state in place of the current one, whose class is kept.

        Args:
            state_dict: The saved `params`, and optionally `step`, `opt_state`, `mutable_variables` and `rng`. The
                optimizer's state is taken over only if the current state has one.
        """
        carry = self._position.carry
        carry = restore_carry(carry, self._carry_shardings, state_dict, is_pruned=carry.opt_state is None)
        self._position = Position(carry, step=int(carry.step))
        self._start_step = self._position.step

    @staticmethod
    def restore_data_loaders(
        state_dict: dict[str, Any], train_loader: Any = None, val_loader: Any = None, test_loader: Any = None
    ) -> None:
        """Put saved positions back into loaders.

        Args:
            state_dict: Positions under `train`, `val` and `test`.
            train_loader: Set to the position under `train`, if given.
            val_loader: Set to the position under `val`, if given.
            test_loader: Set to the position under `test`, if given.
        """
        restore_loaders(state_dict, {"train": train_loader, "val": val_loader, "test": test_loader})


def _look_into(store: CheckpointStore, mode: str) -> int:
    """Clear up what a dead process has left, and say how many steps there are to go on from."""
    store.clean()
    steps = store.steps()
    if steps and mode == "never":
        raise CheckpointError(
            f"resume='never': {store.root} holds checkpoints of steps {steps}; "
            "set resume='auto' to go on from them, or choose another folder"
        )
    return len(steps)


def _metrics_of_steps(store: CheckpointStore) -> dict[int, dict[str, float]]:
    """The metrics of all steps whose manifest can be read. The others are nothing to choose from."""
    metrics = {}
    for step in store.steps():
        try:
            metrics[step] = snapshot.saved_metrics(store.record(step))
        except CheckpointError as error:
            LOGGER.warning("a checkpoint is passed over: %s", error)
    return metrics


def _read_saved(config_class: type[_Config], data: Any) -> _Config:
    """A config from a checkpoint, whose version of trackside may have had other fields: those only cause a warning."""
    return ConfigDict.from_dict(config_class, data, strict_classname_parsing=False, ignore_extensive_attributes=True)


def _logger_where_it_lies(config: LoggerConfig | None, checkpoints: pathlib.Path) -> LoggerConfig | None:
    """A run's logger config, with its folder where it is now."""
    if config is None or config.log_path is None or checkpoints.name != CHECKPOINTS_FOLDER:
        return config
    return dataclasses.replace(config, log_path=checkpoints.parent)


def find_checkpoints(path: pathlib.Path) -> pathlib.Path:
    """The folder of checkpoints that a path means: itself, the one in a run's folder, or that of a step."""
    for candidate in (path, path / CHECKPOINTS_FOLDER, path.parent):
        if CheckpointStore(candidate).steps() and (candidate != path.parent or path.name.isdecimal()):
            return candidate
    raise CheckpointError(f"checkpoint: {path} holds no checkpoint, and neither does {path / CHECKPOINTS_FOLDER}")


def choose_step(store: CheckpointStore, step_idx: int, load_best: bool) -> int:
    """The step to load, verified. Damaged ones are passed over, unless asked for by their number."""
    if step_idx >= 0:
        if step_idx not in store.steps():
            raise CheckpointError(f"step_idx: there is no step {step_idx} in {store.root}; there are {store.steps()}")
        store.verify(step_idx)
        return step_idx
    good = {}
    for step in reversed(store.steps()):
        try:
            good[step] = store.verify(step)
        except CheckpointError as error:
            LOGGER.warning("a checkpoint is passed over: %s", error)
            continue
        if not load_best:
            return step
    if not good:
        raise CheckpointError(f"there is no checkpoint in {store.root} that can be loaded")
    return min(good, key=lambda step: (snapshot.saved_rank(good[step]), -step))
