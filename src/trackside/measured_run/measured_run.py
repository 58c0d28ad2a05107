"""A loop of the user's own, measured like the trainer's: its run, its steps, its batches, what it logs, its end."""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Any, Self

import jax

from trackside.callbacks import CallbackList
from trackside.callbacks.callback_list import CallbackArgument, listed_callbacks
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import ConfigError, MetricError
from trackside.findings import Finding
from trackside.findings.facts import OWN_LOOP
from trackside.findings.silencing import checked_ids
from trackside.fusing.batch_copies import is_trusted
from trackside.fusing.batch_groups import BatchGroups
from trackside.fusing.fused_function import checked_steps_per_call
from trackside.logger import Logger, LoggerConfig
from trackside.measured_run.call_book import CallBook
from trackside.measured_run.closing import RunEnd
from trackside.measured_run.host_time import HostTime
from trackside.measured_run.leg import Leg
from trackside.measured_run.logged_values import LoggedValues, checked_number, is_of_training
from trackside.measured_run.measured_batches import measure_batches
from trackside.measured_run.open_runs import (
    close_abandoned,
    is_other_process,
    raise_if_terminated,
    register,
    status_of,
    unregister,
    watch_cells,
)
from trackside.measured_run.own_measurements import OwnMeasurements, check_step
from trackside.measured_run.part import Part, checked_name
from trackside.measured_run.passes import Passes
from trackside.measured_run.plain_config import plain_config
from trackside.measured_run.progress_bar import build_bar
from trackside.measured_run.run_folder import choose_run_folder
from trackside.measured_run.run_lock import RunLock
from trackside.measured_run.run_view import RunView, bind_to_loop
from trackside.measured_run.step_meter import StepMeter
from trackside.measured_run.training_time import TrainingTime
from trackside.measured_run.unlogged_steps import UnloggedSteps
from trackside.processes import JAX_PROCESSES, Processes, ThreadProcesses
from trackside.profiling.compiles import compile_counter
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import LOGGING, OTHER, LedgerTotals
from trackside.profiling.sentinel import RecompileSentinel
from trackside.profiling.timers import profiler_writes_to
from trackside.text import a_type

LOGGER = logging.getLogger(__name__)

_NO_LIMIT = 1 << 30  # of calls in flight: the loop is not ours


class MeasuredRun:
    """A run whose loop is the user's. Made by `trackside.run`, and open from then on.

    Args:
        logger_config: Where to log.
        config: What the run's `config.json` says.
        resume: Whether to continue the run that is in the folder.
        start_step: Steps done before.
        num_steps: Steps in all, if that is known.
        callbacks: Who acts between steps.
        progress: Whether to show progress.
        max_recompiles: How often a function may compile again before there is a warning.
        silence_findings: Findings that are not reported.
        clock: Where times come from.
    """

    def __init__(
        self,
        logger_config: LoggerConfig,
        config: Any = None,
        resume: bool = False,
        start_step: int = 0,
        num_steps: int | None = None,
        callbacks: CallbackArgument = (),
        progress: bool = False,
        max_recompiles: int = -1,
        silence_findings: Iterable[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ):
        silenced = checked_ids(silence_findings, "silence_findings")
        callbacks = listed_callbacks(callbacks)  # now, while nothing is written yet
        config = None if config is None else plain_config(config)
        if start_step < 0:
            raise ConfigError(f"start_step: expected a number of steps, got {start_step}")
        self.is_entered = False
        """Whether it is used in a `with` block."""
        self._is_closed = False
        self._clock = clock
        self._num_steps = num_steps
        self._processes = _processes()
        self._other_values: deque[tuple[dict[str, Any], int]] = deque()
        """What other threads have logged."""
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            wanted = self.wanted_path = logger_config.log_path
            """The folder that was asked for; None for none."""
            if wanted is not None and close_abandoned(wanted) is not None:
                LOGGER.info("the run that was open in %s is closed, since another begins there", wanted)
            logger_config, continues = choose_run_folder(
                logger_config, "auto" if resume else "never", self._processes, clock
            )
            if self._processes.is_main:
                opened.enter_context(RunLock(logger_config.log_path))
            self._ledger = Ledger(clock)
            self._host = HostTime(self._ledger, clock)
            opened.enter_context(compile_counter().booked_by(self._host))
            self._ledger.start()
            opened.callback(self._ledger.stop)
            self.logger = Logger(logger_config, clock=clock, process_index=self._processes.index, ledger=self._ledger)
            """Logs images, text, histograms and figures."""
            opened.push(self._close_logger_on_error)
            opened.enter_context(profiler_writes_to(self.logger.run_log))
            self._build(config, continues, start_step, callbacks, progress, max_recompiles, silenced)
            self._closing = opened.pop_all()
        register(self, catches_sigterm=not self._processes.are_several)
        self._closing.callback(unregister, self)
        self._closing.callback(watch_cells(self._begin_cell, self._end_cell))
        if wanted is not None and "{time}" not in str(wanted) and self.path != wanted:
            LOGGER.info("%s holds a run already; this one goes to %s", wanted, self.path)

    def _close_logger_on_error(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.logger.finalize("error")

    def _build(
        self,
        config: Any,
        continues: bool,
        start_step: int,
        callbacks: CallbackArgument,
        progress: bool,
        max_recompiles: int,
        silenced: Iterable[str],
    ) -> None:
        """Build everything that watches the loop, and begin the leg."""
        logger, ledger, clock, log = self.logger, self._ledger, self._clock, self.logger.run_log
        self._host.settle()  # before others look at the ledger, which does not know that this is set-up
        self._time = TrainingTime.of_earlier_legs(log) if continues else TrainingTime()
        measurements = OwnMeasurements(logger, lambda: self._book.step)
        sentinel = self._sentinel = RecompileSentinel(log, max_recompiles)
        meter = self._meter = StepMeter(ledger, logger, measurements, self._time, _NO_LIMIT, clock)
        view = RunView(logger, self._processes, measurements)
        self._callbacks = CallbackList((), ledger)
        self._book = CallBook(
            meter, self._host, sentinel, measurements, self._callbacks, self._between_steps, clock, start_step
        )
        self._callbacks.callbacks += bind_to_loop(callbacks, view)
        self._values = LoggedValues(logger, clock, self._book.retire, self._book.say_once)
        self._unlogged = UnloggedSteps(logger, self._values, clock)
        self._bar = build_bar(progress, self._processes.is_main, self._book.step, self._num_steps)
        self._passes = Passes(self._host, self._book, meter, logger, self._bar, clock)
        self._end = RunEnd(logger, meter, self._callbacks, self._bar, self._time, clock)
        logger.log_environment({"loop": OWN_LOOP})
        if config is not None:
            logger.log_config(config)
        if silenced or log.facts().silenced:
            log.write("silence", findings=list(silenced))
        if continues:
            logger.rewind(start_step)
            if not start_step and self._time.earlier_s:
                LOGGER.warning(
                    "resume=True without start_step: the run in %s begins again at step 0, and rows with the same "
                    "steps are replaced; give start_step=N, the step of the checkpoint that the loop continues from",
                    self.path,
                )
        self._leg = Leg(log, self._book, self._time, clock)
        logger.on_training_start()
        self._leg.begin(self._num_steps)
        logger.start_epoch(self._book.epoch, self._book.step)
        self._callbacks.call("on_training_start")

    # --- what the loop calls ------------------------------------------------------------------------------------------

    def step(self, function: Callable[..., Any], steps_per_call: int = 1, name: str = "") -> Callable[..., Any]:
        """Measure the calls of a function: a training step, or part of one.

        Results, compiles and donated arguments stay as they are, and nothing waits for the device. What else the
        function has, such as `lower`, is reached as before.

        Args:
            function: Anything callable: jitted by JAX, Flax or Equinox, of PyTorch, or plain.
            steps_per_call: How many training steps a call makes: K for one that scans over K batches, 0 for a function
                that is only part of a step, such as the discriminator's half, one of several microbatches, or an
                evaluation.
            name: What rows and messages call it; its own name by default.

        Returns:
            The function to call instead.

        Raises:
            ConfigError: It is not callable.
        """
        check_step(function, steps_per_call, name)
        if getattr(function, "measured_by", None) is self._book:
            self._book.say_once("run.step: this function is wrapped already; it is measured once")
            return function
        inner = getattr(function, "func", function)  # of a partial
        shown = name or getattr(function, "__name__", "") or getattr(inner, "__name__", type(inner).__name__)
        return self._book.measure(function, shown, steps_per_call)

    def batches(self, loader: Any, steps_per_call: int | None = None) -> Any:
        """Measure how long the loop waits for each batch of a loader.

        A pass that does not begin inside of another counts as an epoch.

        Args:
            loader: Any iterable of batches. It is not changed.
            steps_per_call: Give lists of up to as many batches of one form, for a function of `trackside.fuse_steps`.

        Returns:
            The loader to iterate over instead, with its other attributes, and its length unless it gives lists.

        Raises:
            DataError: It cannot be iterated over.
            ConfigError: `steps_per_call` is no number of steps.
        """
        measured = measure_batches(loader, self._passes)
        if steps_per_call is None:
            return measured
        return BatchGroups(measured, checked_steps_per_call(steps_per_call), is_trusted(loader))

    def log(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        every: int = 1,
        **named: Any,
    ) -> None:
        """Log numbers, on the host or on a device. They are written when they are there, and never waited for.

        Rows are of training, or of validation inside of a part of that name. Names that begin with `train/`, `val/` or
        `test/`, and dicts under these names, say otherwise.

        Args:
            values: Numbers by name; dicts of them count as `name/inner_name`. After a call of K steps, an array of K
                numbers becomes a row for each step.
            step: The step that they belong to; if left out, the steps so far, or the step under way after a call that
                is part of it (`steps_per_call=0`).
            every: Log only at steps that this number divides.
            **named: More numbers.

        Raises:
            MetricError: A value has no name, is not one number, or is being traced by JAX.
            ConfigError: `step` or `every` is no number of steps.
        """
        book, host = self._book, self._host
        at = book.step if step is None else checked_number(step, "step", 0)
        if book.is_amid_step and step is None and is_of_training(named if values is None else values, host.mode):
            at += 1  # as what the rest of this step will log
        if every != 1:
            checked_number(every, "every", 1)
            num_steps = 1 if step is not None or book.last is None else max(book.last.num_steps, 1)
            if at // every == (at - num_steps) // every:  # no step of the last call is one of them
                return
        try:
            given = named if values is None else {**values, **named}
        except TypeError:
            raise MetricError(
                f"run.log: expected numbers by name, got {a_type(values)} without one; write run.log(loss=...), or "
                'run.log({"loss": ...})'
            ) from None
        if self._is_closed or get_ident() != host.thread_id:
            self._log_elsewhere(given, at)
            return
        part = host.part
        if part == OTHER and self._values.add_at_once(given, at, book.epoch, book.last):
            return  # in less time than it takes to keep account of
        if host.watched is not None:
            host.note_computing()
        now_s = self._clock.now()
        host.end_span(part, now_s)
        self._values.add(given, at, book.epoch, host.mode, book.last, now_s, every)
        host.end_span(LOGGING, self._clock.now())

    def _log_elsewhere(self, values: dict[str, Any], step: int) -> None:
        """Log from another thread, whose time nobody keeps account of; or after the end, which is too late."""
        if self._is_closed:
            self._book.say_once("run.log was called after the run was closed: nothing is logged")
        else:
            self._other_values.append((self._values.checked(values), step))

    def part(self, name: str) -> Part:
        """A block of the loop whose time is shown under a name of its own: `with run.part("validation"): ...`.

        Batches inside of it, and calls of functions that make no step, are part of it. The ledger's own names may be
        used: `validation`, `checkpointing`, `device_wait` around a value that is waited for, `host_to_device`, and so
        on.

        Args:
            name: The name.

        Raises:
            ConfigError: It cannot be one.
        """
        return Part(checked_name(name), self._host, self._book, self.logger, self._clock)

    # --- what there is to see -----------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The run's folder; None for a run that keeps nothing on disk."""
        return self.logger.log_path

    @property
    def num_steps(self) -> int:
        """Steps so far, with those done before."""
        return self._book.step

    @property
    def ledger_totals(self) -> LedgerTotals:
        """Where the time of this leg went, so far or in all."""
        if self._end.totals is not None:
            return self._end.totals
        if self._host.is_own_thread:
            self._book.retire()
            self._host.settle()
        return self._meter.totals()

    @property
    def findings(self) -> list[Finding]:
        """What the measurements say is wrong with the run, the most severe first; empty before its end."""
        return list(self._end.findings)

    # --- beginning and end --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(status_of(error))

    def close(self, status: str = "success") -> None:
        """Write everything, say where the time went and what that shows, and close the run. Again, it does nothing.

        Args:
            status: How the run ended: `success`, or another word for what went wrong.
        """
        if self._is_closed or is_other_process():
            return
        self._is_closed = True
        with self._closing:
            try:
                self._finish(status)
            finally:
                self._end.close(status, self._book.step, self._book.step or None)

    def _finish(self, status: str) -> None:
        """Write what is not written yet."""
        book, host = self._book, self._host
        if not host.is_own_thread:
            LOGGER.warning("the run is closed on another thread than the one that opened it: its last steps are lost")
            return
        self._ledger.start()  # between two cells of a notebook, it is not running
        self._meter.go_on()
        host.depth = 0
        book.close()
        before = host.enter(LOGGING)
        self._look_up()
        self._values.finish()
        self._unlogged.finish(book.last)
        self._passes.finish()
        host.enter(before)
        host.settle()
        book.warn_of_unused()
        host.close()
        self._sentinel.flush(book.step)
        if status == "success":
            self._callbacks.call("on_training_end")
        self._leg.end(self._ledger.totals().in_steps_s)

    def _between_steps(self) -> None:
        """Now and then, between two steps: look up, and end if SIGTERM came where Python ignores what it raises."""
        self._look_up()
        raise_if_terminated()

    def _look_up(self) -> None:
        """Now and then, between two steps: write what is there, and show progress."""
        now_s = self._clock.now()
        while self._other_values:
            values, step = self._other_values.popleft()
            self._values.add(values, step, self._book.epoch, "train", None, now_s)
        self._values.write()
        self._unlogged.look(self._book.last, now_s)
        if now_s >= self._bar.next_refresh_s:
            self._bar.show(self._book.step, self._values.latest, now_s)

    def _begin_cell(self) -> None:
        """A cell of a notebook begins: keep account again."""
        self._meter.go_on()
        self._meter.device.pause()
        self._meter.step_times.break_off()

    def _end_cell(self) -> None:
        """A cell of a notebook is over: what the user does until the next is not the run's time."""
        if self._host.is_own_thread:
            self._host.settle()
            self._ledger.stop()


def _processes() -> Processes:
    """The processes of the run. JAX is asked only if it knows of several: asking starts its backend."""
    return JAX_PROCESSES if jax.distributed.is_initialized() else ThreadProcesses.group(1)[0]
