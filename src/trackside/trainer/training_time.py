"""How long a training has taken, over every process and every call that worked on it."""

from dataclasses import dataclass

from trackside.profiling.ledger import LedgerTotals


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

    def start(self, now_s: float, timestamp: float) -> None:
        """Start the clock of a call."""
        self._started_s = now_s
        self.began_at = self.began_at or timestamp

    def stop(self, now_s: float) -> None:
        """Stop it. Stopping it again does nothing."""
        self.earlier_s, self._started_s = self.total_s(now_s), None
        self.earlier_in_steps_s, self.in_steps_s = self.earlier_in_steps_s + self.in_steps_s, 0.0

    def goodput(self, timestamp: float) -> float | None:
        """The share of the time since the training began that went into steps whose results were kept.

        Everything else counts against it: compilation, waiting for data, validation, checkpoints, steps that were lost
        with a process, and the time until it was resumed.
        """
        elapsed_s = timestamp - self.began_at
        return (self.earlier_in_steps_s + self.in_steps_s) / elapsed_s if self.began_at and elapsed_s > 0 else None

    def notes(self, totals: LedgerTotals, timestamp: float) -> list[str]:
        """What there is to say of the run's speed as a whole.

        Args:
            totals: Where the time went.
            timestamp: The time now.
        """
        notes = []
        if totals.mfu is not None:
            notes.append(f"FLOPs utilisation {100 * totals.mfu:.1f} % in steps and waiting for data")
        goodput = self.goodput(timestamp)
        if goodput is not None and self.leg > 1:
            notes.append(
                f"goodput {100 * goodput:.1f} %: training steps in {timestamp - self.began_at:.0f} s since it began, "
                f"over {self.leg} legs"
            )
        return notes

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
