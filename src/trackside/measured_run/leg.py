"""The rows with which a process begins and ends to work on a run, whoever owns its loop."""

from dataclasses import dataclass
from typing import Protocol

from trackside.clock import Clock
from trackside.logger.run_log import RunLog
from trackside.measured_run.training_time import TrainingTime


class Position(Protocol):
    """How far a loop is."""

    step: int
    epoch: int


@dataclass(frozen=True)
class Leg:
    """What one process does of a run.

    Args:
        run_log: Gets the rows.
        position: How far the loop is.
        time: How long the run has taken, over all legs.
        clock: Where times come from.
    """

    run_log: RunLog
    position: Position
    time: TrainingTime
    clock: Clock

    def begin(self, goal: int | None, spent_s: float = 0.0) -> None:
        """Begin.

        Args:
            goal: The steps of the whole run, if that is known.
            spent_s: How long it took to get here.
        """
        clock, position, time = self.clock, self.position, self.time
        time.start(clock.now(), clock.timestamp(), spent_s)
        self.run_log.write(
            "leg", leg=time.leg, step=position.step, epoch=position.epoch, train_time_s=time.earlier_s, goal=goal
        )

    def end(self, in_steps_s: float) -> None:
        """End.

        Args:
            in_steps_s: How much of the leg's time was spent in steps.
        """
        clock, position, time = self.clock, self.position, self.time
        time.in_steps_s = in_steps_s
        time.stop(clock.now())
        self.run_log.write(
            "leg_end",
            leg=time.leg,
            step=position.step,
            epoch=position.epoch,
            train_time_s=time.earlier_s,
            goodput=time.goodput(clock.timestamp()),
        )
