"""The time of steps in a loop that logs nothing of its training: readers find step times in its rows."""

from trackside.clock import Clock
from trackside.logger import Logger
from trackside.measured_run.logged_values import LoggedValues
from trackside.profiling.call_record import CallRecord

MIN_INTERVAL_S = 0.1
MAX_INTERVAL_S = 10.0
SHARE_OF_RUN = 0.01
"""A short run has many rows for its length, and a long one has few in all."""


class UnloggedSteps:
    """Writes a row with the step time now and then, for as long as the loop logs no rows of training itself.

    Args:
        logger: Gets the rows.
        values: What the loop logs.
        clock: Where times come from.
    """

    def __init__(self, logger: Logger, values: LoggedValues, clock: Clock):
        self._logger = logger
        self._values = values
        self._began_s = self._next_s = clock.now()
        self._written_step = 0
        self._call: CallRecord | None = None
        """The call whose row comes next, as soon as it is known when it completed."""

    def look(self, last: CallRecord | None, now_s: float) -> None:
        """Write the row that is due.

        Args:
            last: The last call of the loop.
            now_s: What the clock shows.
        """
        if self._values.has_training:
            return
        if self._call is None and now_s >= self._next_s:
            self._call = last
        if self._call is not None and self._write(self._call):
            self._call = None
            self._next_s = now_s + min(max(SHARE_OF_RUN * (now_s - self._began_s), MIN_INTERVAL_S), MAX_INTERVAL_S)

    def finish(self, last: CallRecord | None) -> None:
        """Write the last row, when all calls have completed."""
        if last is not None and not self._values.has_training:
            self._write(last)

    def _write(self, call: CallRecord) -> bool:
        """Write a row for a call, unless it is under way."""
        if call.completed_s != call.completed_s:  # not a number
            return False
        if call.num_steps and call.last_step > self._written_step:
            self._written_step = call.last_step
            self._logger.log_rows([({}, call.last_step, call.epoch, call.completed_s)])
        return True
