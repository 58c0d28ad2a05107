"""Saving a training and putting saved ones back: which folder, which step, which of them are kept."""

import contextlib
import logging
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from trackside.callbacks import ModelCheckpoint
from trackside.callbacks.trainer_view import Keep, StageMetrics
from trackside.errors import CheckpointError
from trackside.logger.run_log import RunLog
from trackside.processes import Processes
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import CHECKPOINTING, RESTORING
from trackside.run_layout import CHECKPOINTS_FOLDER, WHERE_A_RUN_IS_GIVEN_ITS_FOLDER
from trackside.trainer import saved_training
from trackside.trainer.checkpoint_store import CheckpointStore
from trackside.trainer.engine import Engine
from trackside.trainer.progress import Progress
from trackside.trainer.train_state import Carry

LOGGER = logging.getLogger(__name__)

NO_STEP = -1
CHECK_NAME = "check of a checkpoint"
"""What the program is called that looks whether all of a state is finite."""


@jax.jit
def _is_finite(carry: Carry) -> jax.Array:
    """Whether parameters are finite, and nothing else is NaN: a mask of a model may hold infinities from the start."""
    params, others = (_floats(tree) for tree in (carry.params, carry._replace(params=None)))
    checks = [jnp.isfinite(leaf).all() for leaf in params] + [~jnp.isnan(leaf).any() for leaf in others]
    return jnp.stack(checks).all() if checks else jnp.array(True)


def _floats(tree: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


class Checkpoints:
    """The checkpoints that a trainer writes and reads.

    Args:
        run_log: Gets a row for each checkpoint.
        ledger: Where the time for saving is booked.
        processes: The processes that save together.
        named: Gives the compiles of a function a name.
    """

    def __init__(
        self, run_log: RunLog, ledger: Ledger, processes: Processes, named: Callable[[Callable, str], Callable]
    ):
        self._run_log = run_log
        self._ledger = ledger
        self._processes = processes
        self._is_finite = named(_is_finite, CHECK_NAME)
        self._stores: dict[pathlib.Path, CheckpointStore] = {}

    def store(self, directory: str | pathlib.Path | None) -> CheckpointStore:
        """The checkpoints in a folder; by default those in the run's own."""
        if directory is None:
            if self._run_log.path is None:
                raise CheckpointError(
                    f"no folder for checkpoints: give the run one ({WHERE_A_RUN_IS_GIVEN_ITS_FOLDER}), or name a "
                    "directory for the checkpoints"
                )
            directory = self._run_log.path / CHECKPOINTS_FOLDER
        path = pathlib.Path(directory).absolute()
        return self._stores.setdefault(path, CheckpointStore(path, self._processes))

    def has_store(self, directory: pathlib.Path) -> bool:
        """Whether the trainer has used this folder before."""
        return directory.absolute() in self._stores

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(
        self,
        store: CheckpointStore,
        progress: Progress,
        record: Mapping[str, Any],
        keep: Keep | None,
    ) -> None:
        """Save a training. Returns as soon as it may continue.

        Args:
            store: Where to.
            progress: The training, with all steps in flight settled.
            record: What is saved in addition to its state.
            keep: Chooses the steps to keep; if left out, all are kept.

        Raises:
            CheckpointError: The last save to this folder has failed.
        """
        for other in self._stores.values():
            failure = self._finish(other)
            if other is store:
                self._processes.raise_together(failure)
        is_finite, step = self._is_finite(progress.carry), progress.cursor.step

        def after_commit() -> None:
            self._run_log.append("checkpoint", step=step, path=str(store.root))
            if keep is not None:
                saved = stages_of_steps(store)
                store.delete(saved.keys() - set(keep(saved)))

        store.save(
            step,
            saved_training.to_trees(progress.carry),
            {**record, "loaders_by_process": self._processes.gather(record["loaders"])},
            is_good=lambda: bool(is_finite),
            after_commit=after_commit,
        )

    def finish(self) -> None:
        """Wait for checkpoints that are being written. One that failed is reported; the earlier ones are intact."""
        with self._ledger.spend(CHECKPOINTING):
            for store in self._stores.values():
                self._finish(store)

    def _finish(self, store: CheckpointStore) -> CheckpointError | None:
        try:
            store.wait()
        except CheckpointError as error:
            LOGGER.error("%s", error)
            self._run_log.append("checkpoint_failed", path=str(store.root), error=str(error))
            return error
        return None

    # --- choosing -----------------------------------------------------------------------------------------------------

    def step_to_resume(self, directory: pathlib.Path, mode: str) -> int:
        """The step of a folder to continue from; `NO_STEP` for a training that begins, or that wrote there before.

        Args:
            directory: The folder that the training saves to.
            mode: `TrainerConfig.resume`.

        Raises:
            CheckpointError: The folder holds another training, or nothing to continue from where that was demanded.
        """
        is_known = self.has_store(directory)
        store = self.store(directory)
        if is_known:
            return NO_STEP
        decide = self._processes.main_decides
        num_steps = decide(lambda: _look_into(store, mode), f"resume={mode!r}: {store.root}")
        return self.choose(store, NO_STEP) if num_steps or mode == "must" else NO_STEP

    def choose(self, store: CheckpointStore, step_idx: int, load_best: bool = False) -> int:
        """The step to load, verified, the same on all processes; see `choose_step`."""
        decide = self._processes.main_decides
        return decide(lambda: choose_step(store, step_idx, load_best), f"loading from {store.root}")

    def _best(
        self, keeper: ModelCheckpoint, engine: Engine, progress: Progress
    ) -> tuple[Carry, tuple[int, int] | None]:
        """The state of the best step that a callback has kept, with its step and epoch.

        The current state, and None, if that is the best, or none is known.

        Args:
            keeper: The callback, which knows what is best.
            engine: What the training runs on.
            progress: The training.
        """
        if keeper.monitor is None:
            return progress.carry, None
        store, current = self.store(keeper.directory), progress.cursor.step
        best = self._processes.main_decides(lambda: _best_step(store, keeper, current), "the best model")
        if best in (NO_STEP, current):
            return progress.carry, None
        LOGGER.info("the best model is that of step %d", best)
        carry = progress.carry
        saved_training.check_form(store, best, carry, with_optimizer=True)
        # The optimizer's state too: callbacks may keep there what they evaluate on.
        loaded = carry._replace(**saved_training.load_state(store, best, carry, engine.carry_shardings, True))
        return loaded, (best, int(store.record(best)["epoch"]))

    @contextlib.contextmanager
    def holding_best(self, keeper: ModelCheckpoint | None, engine: Engine, progress: Progress) -> Iterator[None]:
        """For the length of a block, a training has the state of the best step, if one is known.

        Args:
            keeper: The callback that has kept it; None if no callback keeps any.
            engine: What the training runs on.
            progress: The training.
        """
        before = progress.carry, progress.lent_from
        if keeper is not None:
            with self._ledger.spend(RESTORING):
                progress.carry, progress.lent_from = self._best(keeper, engine, progress)
        try:
            yield
        finally:
            progress.carry, progress.lent_from = before

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(
        self,
        store: CheckpointStore,
        step: int,
        engine: Engine,
        progress: Progress,
        with_optimizer: bool,
        deletes_first: bool = False,
    ) -> dict[str, Any]:
        """Put a verified step in place of what the training has.

        Args:
            store: The folder.
            step: The step.
            engine: What the training runs on.
            progress: The training. Without the optimizer it begins at step 0 with the saved parameters.
            with_optimizer: Whether to load the optimizer's state, and with it everything else.
            deletes_first: Whether to free the current parameters first.

        Returns:
            The step's record.
        """
        record = store.record(step)
        abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), progress.form)
        saved_training.check_form(store, step, abstract, with_optimizer)
        if deletes_first and progress.is_made:
            jax.tree.map(lambda leaf: leaf.delete(), progress.carry.params)
        loaded = saved_training.load_state(store, step, abstract, engine.carry_shardings, with_optimizer)
        carry = progress.with_fields(loaded)
        if with_optimizer:
            own = saved_training.own_loaders(record, self._processes)
            progress.restore(carry, record, own.get("train"))
        else:  # parameters of another training: this one starts at its own beginning
            progress.begin_at(carry._replace(step=jnp.zeros((), jnp.int32)), 0)
        LOGGER.info("loaded step %d of %s", step, store.root)
        return record


def _look_into(store: CheckpointStore, mode: str) -> int:
    """Clear up what a dead process has left, and count the steps to continue from."""
    store.clean()
    steps = store.steps()
    if steps and mode == "never":
        raise CheckpointError(
            f"resume='never': {store.root} holds checkpoints of steps {steps}; "
            "set resume='auto' to continue from them, or choose another folder"
        )
    return len(steps)


def stages_of_steps(store: CheckpointStore) -> dict[int, StageMetrics]:
    """The metrics of all steps whose manifest can be read. The others are nothing to choose from."""
    stages: dict[int, StageMetrics] = {}
    for step in store.steps():
        try:
            stages[step] = saved_training.saved_stages(store.record(step))
        except CheckpointError as error:
            LOGGER.warning("skipping a checkpoint: %s", error)
    return stages


def _best_step(store: CheckpointStore, keeper: ModelCheckpoint, current_step: int) -> int:
    """The best step that is not damaged; the current one need not be looked at."""
    ranks = {step: keeper.rank(stages) for step, stages in stages_of_steps(store).items()}
    for step in best_first(ranks):
        try:
            if step != current_step:
                store.verify(step)
        except CheckpointError as error:
            LOGGER.warning("skipping a checkpoint: %s", error)
            continue
        return step
    return NO_STEP


def best_first(ranks: Mapping[int, float]) -> Iterable[int]:
    """Steps that have a finite rank, the best first; of steps that are equally good, the first."""
    known = [step for step in sorted(ranks) if math.isfinite(ranks[step])]
    return sorted(known, key=lambda step: ranks[step])


def find_checkpoints(path: pathlib.Path) -> tuple[pathlib.Path, int]:
    """The folder of checkpoints that a path means, and the step: `NO_STEP` unless the path is that of a step.

    The path may be the folder itself, the run's folder that has it, or the folder of one step.
    """
    for candidate in (path, path / CHECKPOINTS_FOLDER):
        if CheckpointStore(candidate).steps():
            return candidate, NO_STEP
    if path.name.isdecimal() and int(path.name) in CheckpointStore(path.parent).steps():
        return path.parent, int(path.name)
    raise CheckpointError(f"checkpoint: {path} holds no checkpoint, and neither does {path / CHECKPOINTS_FOLDER}")


def choose_step(store: CheckpointStore, step_idx: int, load_best: bool) -> int:
    """The step to load, verified. Damaged ones are skipped, unless asked for by their number."""
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
            LOGGER.warning("skipping a checkpoint: %s", error)
            continue
        if not load_best:
            return step
    if not good:
        raise CheckpointError(f"there is no checkpoint in {store.root} that can be loaded")
    return next(iter(best_first(saved_training.saved_ranks(good))), max(good))
