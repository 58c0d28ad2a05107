"""The rows with which a process begins and ends to work on a run whose loop is the user's."""

from dataclasses import dataclass

from trackside.clock import Clock
from trackside.logger import Logger
from trackside.measured_run.call_book import CallBook
from trackside.measured_run.training_time import TrainingTime
from trackside.profiling.ledger_totals import LedgerTotals


@dataclass(frozen=True)
class Leg:
    """What one process does of a run.

    Args:
        logger: Gets the rows.
        book: Knows step and epoch.
        time: How long the run has taken, over all legs.
        clock: Where times come from.
    """

    logger: Logger
    book: CallBook
    time: TrainingTime
    clock: Clock

    def begin(self, goal: int | None) -> None:
        """Begin.

        Args:
            goal: The steps of the whole run, if that is known.
        """
        clock, book, time = self.clock, self.book, self.time
        self.logger.on_training_start()
        time.start(clock.now(), clock.timestamp())
        self.logger.run_log.write(
            "leg", leg=time.leg, step=book.step, epoch=book.epoch, train_time_s=time.earlier_s, goal=goal
        )
        self.logger.start_epoch(book.epoch, book.step)

    def end(self, totals: LedgerTotals) -> None:
        """End.

        Args:
            totals: Where the leg's time went.
        """
        clock, book, time = self.clock, self.book, self.time
        time.in_steps_s = totals.in_steps_s
        time.stop(clock.now())
        self.logger.run_log.write(
            "leg_end",
            leg=time.leg,
            step=book.step,
            epoch=book.epoch,
            train_time_s=time.earlier_s,
            goodput=time.goodput(clock.timestamp()),
        )
