"""Continuing a training from what the folder of its run holds."""

import logging
from typing import TYPE_CHECKING

from trackside.errors import CheckpointError
from trackside.trainer.checkpoints import NO_STEP
from trackside.trainer.saved_training import MisfitError

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule

LOGGER = logging.getLogger(__name__)


def resume_training(trainer: "TrainerModule") -> bool:
    """Continue from the newest good checkpoint, or refuse a folder that must not be continued.

    Args:
        trainer: The trainer, whose config says what is wanted.

    Returns:
        Whether a checkpoint was loaded.
    """
    step = _step_to_resume(trainer)
    if step == NO_STEP:
        _continue_without_checkpoint(trainer)
        return False
    assert trainer.checkpoint_callback is not None
    store = trainer.checkpoints.store(trainer.checkpoint_callback.directory)
    try:
        record = trainer.checkpoints.load(store, step, trainer.engine, trainer.progress, with_optimizer=True)
    except MisfitError as error:
        why = trainer.run_configs.explain_misfit(store.record(step), trainer.callbacks.state_dict())
        raise MisfitError(f"step {step} of {store.root} cannot be resumed; {why}\n{error}") from None
    trainer.run_configs.log_changes_since(record["configs"])
    if trainer.logs_rows:
        trainer.logger.rewind(step)
    trainer.callbacks.load_state_dict(record["callbacks"])
    return True


def _step_to_resume(trainer: "TrainerModule") -> int:
    keeper, mode = trainer.checkpoint_callback, trainer.trainer_config.resume
    if keeper is not None:
        return trainer.checkpoints.step_to_resume(keeper.directory, mode)
    if mode == "must":
        raise CheckpointError("resume='must': no callback keeps checkpoints; add a CheckpointConfig")
    if mode == "auto":
        LOGGER.warning("resume='auto': no callback keeps checkpoints to resume from; add a CheckpointConfig")
    return NO_STEP


def _continue_without_checkpoint(trainer: "TrainerModule") -> None:
    """See whether a run that others have trained may continue from the state that this trainer has."""
    log, step = trainer.run_log, trainer.global_step
    if log.has_trained or not log.num_earlier_legs:
        return
    is_finished = trainer.processes.main_decides(lambda: int(log.earlier_status == "success"), "resume")
    if step == 0 and is_finished:
        raise CheckpointError(
            f"resume={trainer.trainer_config.resume!r}: {log.path} holds a finished run and no checkpoint to continue "
            "from; choose another folder for the run, or set resume='never', which starts in a folder of its own"
        )
    LOGGER.info("the run in %s continues from step %d%s", log.path, step, "" if step else ": it has no checkpoint")
    trainer.logger.rewind(step or -1)  # of a training that begins again, rows before its first step go as well
