"""How long a training has taken, over every process and every call that worked on it."""

from dataclasses import dataclass

from trackside.logger.run_log import RunLog
from trackside.profiling.first_step import TimeToFirstStep
from trackside.profiling.ledger_totals import LedgerTotals
from trackside.text import percent_of_peak


@dataclass
class TrainingTime:
    """Time that went into a training.

    Goes with the state: what a killed process did after its last checkpoint is lost with the steps that it made.
    """

    leg: int = 1
    """Which process works on the training now, counted from 1."""
    earlier_s: float = 0.0
    """What earlier legs and calls took."""
    epoch_start_s: float = 0.0
    """How long the training had taken when the current epoch began."""
    began_at: float = 0.0
    """When the first leg began, in seconds since the epoch."""
    earlier_in_steps_s: float = 0.0
    """How much of what earlier legs and calls took was spent in training steps."""
    in_steps_s: float = 0.0
    """The same of the current call, as far as it was accounted for."""
    _started_s: float | None = None

    def start(self, now_s: float, timestamp: float, set_up_s: float = 0.0) -> None:
        """Start the clock of a call.

        Args:
            now_s: What the clock shows.
            timestamp: The time now.
            set_up_s: How long it took to get here, for a training that begins.
        """
        self._started_s = now_s
        self.began_at = self.began_at or timestamp - set_up_s

    def stop(self, now_s: float) -> None:
        """Stop it. Stopping it again does nothing."""
        self.earlier_s, self._started_s = self.total_s(now_s), None
        self.earlier_in_steps_s, self.in_steps_s = self.earlier_in_steps_s + self.in_steps_s, 0.0

    @property
    def is_running(self) -> bool:
        """Whether a call is under way."""
        return self._started_s is not None

    def goodput(self, timestamp: float) -> float | None:
        """The share of the time since the training began that went into steps whose results were kept.

        It begins with the building of the trainer. Everything else counts against it: set-up, compilation, waiting for
        data, validation, checkpoints, steps that were lost with a process, and the time until it was resumed.
        """
        elapsed_s = timestamp - self.began_at
        return (self.earlier_in_steps_s + self.in_steps_s) / elapsed_s if self.began_at and elapsed_s > 0 else None

    def notes(self, totals: LedgerTotals, timestamp: float, first_step: TimeToFirstStep | None = None) -> list[str]:
        """What there is to say of the run's speed as a whole.

        Args:
            totals: Where the time of all legs went.
            timestamp: The time now.
            first_step: How long the first step of this leg took to come.
        """
        notes = [] if first_step is None else [f"first step after {first_step.text}"]
        if totals.mfu is not None:
            share = percent_of_peak(totals.mfu, totals.mfu_range)
            notes.append(f"FLOPs utilization {share} in steps and waiting for data")
        goodput = self.goodput(timestamp)
        if goodput is not None and self.leg > 1:
            notes.append(
                f"goodput {100 * goodput:.1f} %: training steps in {timestamp - self.began_at:.0f} s since it began, "
                f"over {self.leg} legs"
            )
        return notes

    @classmethod
    def of_earlier_legs(cls, run_log: RunLog) -> "TrainingTime":
        """The next leg of a run, by what its event file says of those before: there is no checkpoint to ask."""
        ledger, began_at = run_log.facts().ledger, run_log.began_at
        if ledger is None:
            return cls(run_log.num_earlier_legs + 1, began_at=began_at)
        return cls(run_log.num_earlier_legs + 1, ledger.wall_s, 0.0, began_at, ledger.in_steps_s)

    def total_s(self, now_s: float) -> float:
        """How long the training has taken by now."""
        return self.earlier_s + (0.0 if self._started_s is None else now_s - self._started_s)

    def epoch_s(self, now_s: float) -> float:
        """How long the current epoch has taken by now."""
        return self.total_s(now_s) - self.epoch_start_s

    def to_plain(self, now_s: float) -> dict[str, float]:
        """What is saved of it."""
        return {
            "leg": self.leg,
            "total_s": self.total_s(now_s),
            "epoch_start_s": self.epoch_start_s,
            "began_at": self.began_at,
            "in_steps_s": self.earlier_in_steps_s + self.in_steps_s,
        }

    @classmethod
    def from_plain(cls, saved: dict[str, float]) -> "TrainingTime":
        """The next leg of a training that was saved."""
        return cls(
            int(saved["leg"]) + 1, saved["total_s"], saved["epoch_start_s"], saved["began_at"], saved["in_steps_s"]
        )
