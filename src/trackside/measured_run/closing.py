"""The end of a measured run: everything is closed, whatever happened, and what was measured is said."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from trackside.callbacks import CallbackList
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.findings import Finding
from trackside.logger import Logger
from trackside.measured_run.progress_bar import ProgressBar, ProgressLines
from trackside.measured_run.step_meter import StepMeter
from trackside.measured_run.training_time import TrainingTime
from trackside.profiling.ledger_text import render_ledger
from trackside.profiling.ledger_totals import LedgerTotals

LOGGER = logging.getLogger(__name__)


@dataclass
class RunEnd:
    """Closes what a run has open, in the order in which one needs the other.

    Args:
        logger: The run's logger.
        meter: What keeps account of its steps.
        callbacks: Its callbacks.
        bar: Shows its progress.
        time: How long it has taken, over all legs.
        clock: Where times come from.
    """

    logger: Logger
    meter: StepMeter
    callbacks: CallbackList
    bar: ProgressBar | ProgressLines
    time: TrainingTime
    clock: Clock = SYSTEM_CLOCK
    totals: LedgerTotals | None = field(default=None, init=False)
    """Where the time of this leg went; None before the end."""
    findings: Sequence[Finding] = field(default=(), init=False)
    """What the measurements say is wrong with the run, the most severe first."""

    def close(self, status: str, step: int, ended_step: int | None = None) -> None:
        """Close everything, and say where the time of the run went and what that shows.

        Args:
            status: How the run ended.
            step: The last step.
            ended_step: The step that the run ended at, where that is not the last that was logged.
        """
        self.bar.close(step)
        self.callbacks.finalize(status)
        try:
            self.logger.close_tools(status)
        finally:  # also when the user loses patience with one of them
            self.totals = self.meter.close(step)
            if self.totals.num_steps or self.logger.run_log.facts().timers:
                self._report()
            self.logger.finalize(status, ended_step)

    def _report(self) -> None:
        """Say where the time of the run went, over all legs, and what that shows: both rest on the same figures."""
        totals = self.logger.run_log.facts().ledger
        if totals is not None:
            notes = self.time.notes(totals, self.clock.timestamp(), self.meter.first_step)
            if text := render_ledger(totals, notes):
                LOGGER.info("%s", text)
        self.findings = self.meter.conclude()
