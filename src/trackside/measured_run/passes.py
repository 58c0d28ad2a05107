"""The passes of a loop over its loaders: which of them are epochs, and what comes between two of them."""

import logging
import weakref
from typing import Any

import jax
import numpy as np

from trackside.clock import Clock
from trackside.logger import Logger
from trackside.measured_run.call_book import CallBook
from trackside.measured_run.host_time import HostTime
from trackside.measured_run.loader_description import describe_loader
from trackside.measured_run.measured_batches import MeasuredIterator
from trackside.measured_run.opened_batches import OpenedBatches
from trackside.measured_run.progress_bar import ProgressBar, ProgressLines
from trackside.measured_run.step_meter import StepMeter

LOGGER = logging.getLogger(__name__)


def _form_of_one(leaf: Any) -> Any:
    """The form of one of several arrays in a stack."""
    return jax.ShapeDtypeStruct(np.shape(leaf)[1:], leaf.dtype) if np.ndim(leaf) else leaf


class Passes:
    """Counts epochs: a pass that does not begin inside of one is the next.

    Args:
        host: What the host does.
        book: The calls.
        meter: Hears of the end of an epoch.
        logger: Gets a row for each epoch.
        bar: Shows which epoch it is.
        clock: Where times come from.
    """

    def __init__(
        self,
        host: HostTime,
        book: CallBook,
        meter: StepMeter,
        logger: Logger,
        bar: ProgressBar | ProgressLines,
        clock: Clock,
    ):
        self.host = host
        self.clock = clock
        self.say_once = book.say_once
        self._book = book
        self._meter = meter
        self._logger = logger
        self._bar = bar
        self._opened = OpenedBatches(host, book, meter.add_samples)
        self._current: weakref.ref[MeasuredIterator] | None = None
        """The pass that is the epoch."""
        self._began_s = clock.now()
        self._ended: tuple[int, float] | None = None
        """The last step of an epoch that is over, and how long it took."""

    def begin_pass(self, iterator: MeasuredIterator, loader: Any) -> None:
        """A pass begins; it is an epoch unless the one before is under way.

        Passes inside of it do not count: a second loader, such as one of examples without labels, may go on for longer.
        """
        self.host.end_set_up()
        self._opened.begin_pass(iterator)
        if self._current is not None and self._current() is not None and self._ended is None:
            return
        if self._current is None:
            self._logger.log_environment({"loaders": {"train": describe_loader(loader).to_dict()}})
        else:
            self.end_epoch()
            self._book.epoch += 1
            self._logger.start_epoch(self._book.epoch, self._book.step)
        self._current, self._began_s = weakref.ref(iterator), self.clock.now()
        self._bar.start_epoch(self._book.epoch)
        self._meter.step_times.break_off()

    def learn_batch(self, batch: Any) -> None:
        """Learn from the first batch how tokens are counted."""
        num_stacked = max((made.steps_per_call for made in self._book.functions), default=1)
        if num_stacked > 1 and self.host.stack[0] == num_stacked:
            batch = jax.tree.map(_form_of_one, batch)
        self._meter.learn_batch(batch)

    def end_pass(self, iterator: MeasuredIterator) -> None:
        """A pass is over. If it was an epoch, what follows comes between epochs."""
        self._opened.end_pass(iterator)
        if self._current is not None and self._current() is iterator and self._ended is None:
            self.host.settle()
            self._ended = self._book.step, self.clock.now() - self._began_s
            self._meter.end_epoch(self._book.epoch)

    def finish(self) -> None:
        """No more passes are measured."""
        if self._current is not None and not self._book.functions:
            LOGGER.warning(
                "run.batches was read, but no function was given to run.step: no steps are counted, and all that was "
                "logged belongs to step %d; wrap what makes a step, as in train_step = run.step(train_step)",
                self._book.step,
            )
        self._opened.finish()
        self.end_epoch()

    def end_epoch(self) -> None:
        """Write the row of the epoch, if there was one."""
        if self._current is None:
            return
        step, epoch_time_s = self._ended or (self._book.step, self.clock.now() - self._began_s)
        self._ended = None
        self._logger.end_epoch({"epoch_time": epoch_time_s}, step, is_complete=True)
