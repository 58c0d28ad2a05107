"""What the training loop is given: a plan, and the instruments that watch it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.measured_run.interrupts import Interrupts, StopRequest
from trackside.measured_run.progress_bar import ProgressBar, ProgressLines
from trackside.measured_run.step_meter import StepMeter
from trackside.metrics import MetricLayout
from trackside.profiling.sentinel import RecompileSentinel
from trackside.trainer.first_look import FirstLook
from trackside.trainer.goal import Goal
from trackside.trainer.kept_memory import KeptMemory
from trackside.trainer.measurements import TrainMeasurements
from trackside.trainer.read_ahead import NOT_AHEAD, AheadPlan
from trackside.trainer.steps_per_call import PLAIN, StepsPerCall


@dataclass(frozen=True)
class LoopPlan:
    """What to train on, how far, and how often to look up."""

    goal: Goal
    loader: Iterable
    layout: MetricLayout
    """The metrics of the step."""
    max_inflight_steps: int | Literal["auto"] = "auto"
    can_widen: bool = False
    """Whether more than two calls may be under way where steps are short, if nobody says how many."""
    steps_per_call: StepsPerCall = PLAIN
    ahead: AheadPlan = NOT_AHEAD
    """How many batches are read ahead."""
    first_look: FirstLook = field(default_factory=FirstLook)
    """Who has looked at the loader before."""
    log_every_n_steps: int = -1
    check_val_every_n_steps: int = -1
    check_val_every_n_epoch: int = -1
    skips_bad_batches: bool = False
    """Whether batches that are not finite are left out, and counted."""

    def validates_epoch(self, epoch: int) -> bool:
        """Whether a validation follows an epoch."""
        return self.check_val_every_n_epoch > 0 and epoch % self.check_val_every_n_epoch == 0

    @property
    def validates(self) -> bool:
        """Whether the training validates at all."""
        return self.check_val_every_n_epoch > 0 or self.check_val_every_n_steps > 0


@dataclass(frozen=True)
class Instruments:
    """What watches the loop."""

    meter: StepMeter
    measurements: TrainMeasurements
    bar: ProgressBar | ProgressLines
    stop: StopRequest
    interrupts: Interrupts
    kept_memory: KeptMemory
    sentinel: RecompileSentinel | None = None
    clock: Clock = SYSTEM_CLOCK
