"""The ledger of a trainer from one training to the next: when it begins again, and what comes after a training."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule


def begin_ledger(trainer: "TrainerModule") -> None:
    """Start again for another training, with what was called since the last; the first begins with the trainer."""
    if trainer.run_log.has_trained and not trainer.ledger.is_running:
        trainer.ledger.reset(trainer.ledger_totals)


def write_ledger_again(trainer: "TrainerModule") -> None:
    """Write the ledger of a training that is over: what is done with its model afterwards is in it, too."""
    if trainer.meter is not None and trainer.run_log.has_trained:
        trainer.ledger_totals = trainer.meter.save(trainer.global_step)


def write_ledger_if_closed(trainer: "TrainerModule") -> None:
    """The same, if the run's files are closed; otherwise a later row has it."""
    if not trainer.logger.is_open:
        write_ledger_again(trainer)
