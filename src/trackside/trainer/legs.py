"""How long a training has taken, over every process and every call that worked on it."""

from dataclasses import dataclass


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
    _started_s: float | None = None

    def start(self, now_s: float) -> None:
        """Start the clock of a call."""
        self._started_s = now_s

    def stop(self, now_s: float) -> None:
        """Stop it. Stopping it again does nothing."""
        self.earlier_s, self._started_s = self.total_s(now_s), None

    def total_s(self, now_s: float) -> float:
        """How long the training has taken by now."""
        return self.earlier_s + (0.0 if self._started_s is None else now_s - self._started_s)

    def epoch_s(self, now_s: float) -> float:
        """How long the current epoch has taken by now."""
        return self.total_s(now_s) - self.epoch_start_s

    def to_plain(self, now_s: float) -> dict[str, float]:
        """What is saved of it."""
        return {"leg": self.leg, "total_s": self.total_s(now_s), "epoch_start_s": self.epoch_start_s}

    @classmethod
    def from_plain(cls, saved: dict[str, float]) -> "TrainingTime":
        """The next leg of a training that was saved."""
        return cls(int(saved["leg"]) + 1, saved["total_s"], saved["epoch_start_s"])
