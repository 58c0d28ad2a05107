"""The time of a run that the rules on the ledger judge: what comes with every step, and not once with the process.

Set-up, compiling and closing happen once. In a short run they hide what is wrong with the steps, and what they take in
the middle of something else is not held against that: a validation that compiles its step is not a slow validation.
"""

from dataclasses import dataclass

from trackside.findings.compile_rules import compile_time_s
from trackside.findings.facts import RunFacts
from trackside.profiling.ledger_totals import CALLBACK, COMPILE, DATA_WAIT, SETUP, VALIDATION, LedgerTotals, is_once
from trackside.text import percent

# With fewer steps, or less time, it is a trial run, whose shares say nothing about a real one.
MIN_STEPS = 20
MIN_WALL_S = 1.0
MIN_JUDGED_S = 0.5
"""The least time outside of what happens once."""

MIN_OBSERVED_S = 0.5
"""A device that was observed for less time may have been observed at an unusual moment."""
MAX_OBSERVED = 1.1
"""A device cannot be observed for longer than the run takes: such times were estimated wrongly, and are not used."""
KEPT_BUSY = 0.9
"""A device that computes for this share of the time loses nothing to what the host does meanwhile."""
MAX_NOTICED = 0.5
"""If the device idled for this share of what the host did, it was not done while the device computed."""

_MIN_ONCE = 0.05
"""If what happens once, most of which is compiling, took this share of the run, titles say that it was left out."""
_TRAIN_STEP = "train_step"
_INITIAL_STATE = "make_carry"
"""What earlier versions called the function that makes the initial state. It is compiled before the ledger begins."""
_EVALUATION = "eval_"
"""What the compiled functions of an evaluation begin with."""


@dataclass(frozen=True)
class JudgedTime:
    """The time of a run without what happens once."""

    ledger: LedgerTotals
    total_s: float
    """Its length."""
    validation_compile_s: float
    """How long the evaluation's step compiled, as far as the ledger counts it as validation."""
    doubtful_s: float
    """Other time of compiling that the ledger counts as something else: no one knows as what."""
    first_batch_s: float = 0.0
    """How long the very first batch took, for which a loader may start its workers."""

    @classmethod
    def of(cls, facts: RunFacts) -> "JudgedTime | None":
        """The time of a run; None if there is too little of it to judge."""
        ledger = facts.ledger
        if ledger is None or ledger.num_steps < MIN_STEPS or ledger.wall_s < MIN_WALL_S:
            return None
        elsewhere_s = _compile_elsewhere_s(facts, ledger)
        evaluation_s = sum(compile_time_s(row) for row in facts.compiles if row["function"].startswith(_EVALUATION))
        validation_s = min(evaluation_s, elsewhere_s, ledger.parts.get(VALIDATION, 0.0))
        once_s = sum(part_s for part, part_s in ledger.parts.items() if is_once(part))
        total_s = ledger.wall_s - once_s - elsewhere_s - facts.first_batch_s
        if total_s < MIN_JUDGED_S:
            return None
        return cls(ledger, total_s, validation_s, elsewhere_s - validation_s, facts.first_batch_s)

    def seconds(self, part: str) -> float:
        """How long a part took, without what happens once. A callback gets the benefit of the doubt."""
        part_s = self.ledger.parts.get(part, 0.0)
        if part == DATA_WAIT:
            part_s -= self.first_batch_s
        elif part == VALIDATION:
            part_s -= self.validation_compile_s
        elif part.startswith(CALLBACK):
            part_s -= self.doubtful_s
        return max(part_s, 0.0)

    def share(self, part: str) -> float:
        """A part's share of the time."""
        return self.seconds(part) / self.total_s

    def of_what(self) -> str:
        """What shares are of, for a title."""
        is_all = self.ledger.wall_s - self.total_s < _MIN_ONCE * self.ledger.wall_s
        return "of the time" if is_all else "of the time, compiling aside"

    def share_text(self, share: float) -> str:
        """A share with what it is of."""
        return f"{percent(share)} {self.of_what()}"

    @property
    def knows_compiles(self) -> bool:
        """Whether the ledger knew of each compile while it was under way, and counts nothing else of that time."""
        return _knows_compiles(self.ledger)

    # --- the device ---------------------------------------------------------------------------------------------------

    def idle_share(self, *reasons: str) -> float | None:
        """The share of the observed time in which the device was idle for a reason; None if it was not observed."""
        if not self.is_observed:
            return None
        return sum(self.ledger.idle_by_reason.get(reason, 0.0) for reason in reasons) / self.observed_s

    @property
    def observed_s(self) -> float:
        """How long the device was observed."""
        return (self.ledger.device_busy_s or 0.0) + (self.ledger.device_idle_s or 0.0)

    @property
    def is_observed(self) -> bool:
        """Whether the device was observed for long enough, and for no longer than is possible."""
        return MIN_OBSERVED_S <= self.observed_s <= MAX_OBSERVED * self.ledger.wall_s

    @property
    def is_kept_busy(self) -> bool:
        """Whether the device is known to compute nearly all the time. In a validation it is busy with that."""
        training_s = self.total_s - self.seconds(VALIDATION)
        return self.is_observed and (self.ledger.device_busy_s or 0.0) >= KEPT_BUSY * training_s

    def is_hidden(self, part: str) -> bool:
        """Whether a part of the host's time costs nothing: the device is kept busy, and hardly idled because of it."""
        idle_s = self.ledger.idle_by_reason.get(part, 0.0) if self.is_observed else 0.0
        return self.is_kept_busy and idle_s < MAX_NOTICED * self.seconds(part)


def _knows_compiles(ledger: LedgerTotals) -> bool:
    return SETUP in ledger.parts


def _compile_elsewhere_s(facts: RunFacts, ledger: LedgerTotals) -> float:
    """How long the training's thread compiled while the ledger counted something else.

    A ledger that has the set-up counts every compile as such; that of an earlier version, only the training step's.
    """
    if _knows_compiles(ledger):
        return 0.0
    threads = {row.get("thread") for row in facts.compiles if row["function"] == _TRAIN_STEP}
    own = [row for row in facts.compiles if not threads or row.get("thread") in threads]
    counted_s = sum(compile_time_s(row) for row in own if row["function"] == _TRAIN_STEP)
    others_s = sum(compile_time_s(row) for row in own if row["function"] not in (_TRAIN_STEP, _INITIAL_STATE))
    rest_s = max(ledger.parts.get(COMPILE, 0.0) - counted_s, 0.0)
    return max(others_s + facts.operation_compile_s - rest_s, 0.0)
