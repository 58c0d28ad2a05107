"""The calls of a loop that is not ours: each becomes a record, as the calls of the trainer's loop do.

Nothing here waits for the device, but for what was asked for: a capture, or a sample of the memory, begins and ends
between two steps, so there the steps in flight are waited for.
"""

import contextlib
import functools
import logging
import math
from collections import deque
from collections.abc import Callable
from itertools import islice, pairwise
from threading import get_ident
from typing import Any

from jax.profiler import StepTraceAnnotation

from trackside.callbacks import CallbackList
from trackside.clock import Clock
from trackside.fusing import FusedSteps
from trackside.measured_run.call_output import CallOutput
from trackside.measured_run.host_time import HostTime
from trackside.measured_run.measured_object import MeasuredObject, is_plain_function
from trackside.measured_run.own_measurements import OwnMeasurements, StepFunction
from trackside.measured_run.own_waits import MIN_WAIT_S, waited_after
from trackside.measured_run.step_meter import StepMeter
from trackside.profiling.array_state import is_ready
from trackside.profiling.call_record import STEP_MARKER, CallRecord, OwnCall
from trackside.profiling.compiles import compile_counter
from trackside.profiling.ledger_totals import DEVICE_WAIT, OTHER
from trackside.profiling.sentinel import RecompileSentinel, carry_over_methods
from trackside.profiling.signature import jitted_name
from trackside.profiling.timers.device_outputs import TracedOutputError

LOGGER = logging.getLogger(__name__)

MAX_INFLIGHT_CALLS = 4096
"""A device that is further behind is no longer followed."""
LOOK_EVERY_S = 0.1
"""How often rows that are due are written, and progress is shown."""
LOOK_SHARE = 0.003
"""That does not take a larger share of the time, whatever the logger's tools do with rows."""


class CallBook:
    """Keeps the records of a loop's calls.

    Args:
        meter: Keeps account of them.
        host: What the host does in between.
        sentinel: Explains compiles.
        measurements: What else is known of the steps.
        callbacks: Who acts between steps.
        look_up: Called now and then, after everything is accounted for.
        clock: Where times come from.
        step: Steps done before.
    """

    def __init__(
        self,
        meter: StepMeter,
        host: HostTime,
        sentinel: RecompileSentinel,
        measurements: OwnMeasurements,
        callbacks: CallbackList,
        look_up: Callable[[], None],
        clock: Clock,
        step: int,
    ):
        self.step = step
        """Steps so far."""
        self.is_amid_step = False
        """Whether the last call was a part of the step that comes next."""
        self.epoch = 1
        self.is_closed = False
        self.last: CallRecord | None = None
        """The last call."""
        self.functions: list[StepFunction] = []
        """What is measured."""
        self._is_busy = True
        """Whether a call is not to be recorded as usual: it is the first, inside of another, or the run is over."""
        self._window: deque[CallRecord] = deque()
        self._behind: CallRecord | None = None
        """The last call that was let go of."""
        self._meter = meter
        self._host = host
        self._sentinel = sentinel
        self._measurements = measurements
        self._callbacks = callbacks
        self._look_up = look_up
        self._clock = clock
        self._first_step = step
        self._has_begun = False
        self._next_boundary = math.inf
        self._next_look_s = 0.0
        self._said: set[str] = set()
        measurements.functions = self.functions
        meter.ends.latest = lambda: self.last

    def measure(self, function: Callable[..., Any], name: str, steps_per_call: int) -> Callable[..., Any]:
        """The function, with each of its calls recorded.

        Args:
            function: The function.
            name: What it is called.
            steps_per_call: How many steps a call makes.
        """
        owner = getattr(function, "measured_by", None)
        if owner is not None and owner.is_closed:  # as in a cell of a notebook that is run again
            function = function.__wrapped__  # type: ignore[attr-defined]
        fused = function if isinstance(function, FusedSteps) and steps_per_call else None
        steps_per_call = steps_per_call if fused is None else fused.steps_per_call
        made = StepFunction(function, name, steps_per_call)
        self.functions.append(made)
        host, meter, now, calls, window = (
            self._host,
            self._meter,
            self._clock.now,
            self._meter.ledger.calls,
            self._window,
        )
        ends, counter, output, thread_id = (
            meter.ends,
            compile_counter(),
            CallOutput(jitted_name(function) is not None),
            get_ident(),
        )
        is_new, first_step, max_kept = True, self._first_step, output.max_kept
        find, measurements = output.find, self._measurements
        is_plain = is_plain_function(function)

        # One plain function, with everything in reach: this is paid for at every step.
        @functools.wraps(function, updated=functools.WRAPPER_UPDATES if is_plain else ())
        def measured(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_new, max_kept
            if self._is_busy or get_ident() != thread_id:
                if not self._may_begin():
                    return self._call_unrecorded(made, args, kwargs)
                self._begin()
            if host.depth and not steps_per_call:
                return self._call_in_part(made, args, kwargs)
            self._is_busy = True
            if host.watched is not None:
                host.end_watch()
            started_s = now()
            num_events = counter.num_events
            if host.waits_s is None or host.batch_s < host.waits_s:
                host.begin_call(started_s)
            else:
                host.before, host.call_s = [], started_s
            try:
                was_idle = not window or (not (last := window[-1].report).is_deleted() and last.is_ready())
            except Exception:  # gone: it was donated to a later call
                was_idle = False
            try:
                if measurements.capture_state == "tracing":
                    with StepTraceAnnotation(STEP_MARKER, step_num=self.step + 1, num_steps=steps_per_call or 1):
                        result = function(*args, **kwargs)
                else:
                    result = function(*args, **kwargs) if kwargs else function(*args)
                dispatched_s = now()
                try:
                    report = output.get(result)
                except (TypeError, LookupError, AttributeError):  # another structure than before
                    report = None
                if type(report) is not output.kind:
                    report, max_kept = find(result, (args, kwargs)), output.max_kept
            except BaseException as error:
                self._is_busy = False
                host.end_failed_call(now())
                if type(error) is TracedOutputError:  # part of another function, which JAX is tracing
                    made.was_traced = True
                    return result  # pyright: ignore[reportPossiblyUnboundVariable]
                raise
            num_samples, num_steps = host.num_samples, steps_per_call
            if fused is not None:
                num_steps = fused.num_steps
            elif num_steps > 1 and num_steps == host.stack[0]:
                num_steps, num_samples = made.count_stacked(num_samples, host.stack[1], result)
            call_s, waits_s, batch_s = host.call_s, host.waits_s, host.batch_s
            if waits_s is None:
                waits_s = batch_s = call_s  # later than its start if something was compiled, which is accounted for
            record = OwnCall(
                self.step + 1,
                num_steps,
                num_samples,
                self.epoch,
                waits_s,
                batch_s,
                batch_s,
                call_s,
                dispatched_s,
                was_idle,
                False,
                report,
                None,
            )
            if host.before:
                record.before = host.before
            host.before = host.waits_s = None
            host.num_samples = 0
            self.last = record
            self.step = step = self.step + num_steps
            self.is_amid_step = not num_steps and made.leads(step - first_step)
            made.num_calls += 1
            calls.append(record)
            if report is None:
                self._let_go(record)
            else:
                window.append(record)
            if counter.num_events != num_events or is_new:
                is_new = False
                shown = args if fused is None else fused.describe(args)
                self._account_compile(record, made, shown, kwargs, num_events, started_s)
            elif started_s > ends.next_watch_s and report is not None:
                ends.watch(record)
                host.watch_computing(record)
            if len(calls) >= max_kept:
                self.retire()
                meter.ledger.account()
            if step >= self._next_boundary or dispatched_s >= self._next_look_s:
                measurements.call = made, args, kwargs, result
                self._between_steps()
            self._is_busy = False
            return result

        made.output = output
        if not is_plain:
            return MeasuredObject(measured, function, self)
        carry_over_methods(function, measured)
        measured.measured_by = self  # type: ignore[attr-defined]
        return measured

    # --- calls that are no steps of this loop -------------------------------------------------------------------------

    def _call_unrecorded(self, made: StepFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call inside of another, or after the end, or on another thread: nothing but a call."""
        if self.is_closed:
            self.say_once(f"{made.name} was called after the run was closed: it works, and is not measured")
        elif not self._host.is_own_thread:
            self.say_once(
                f"{made.name} was called on another thread than the one that opened the run: it works, and is not "
                "measured; open the run on the thread that trains"
            )
        made.num_other_calls += 1
        return made.function(*args, **kwargs)

    def _call_in_part(self, made: StepFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a function that makes no step, in a part of its own: the part has its time."""
        num_events = compile_counter().num_events
        result = made.function(*args, **kwargs)
        made.num_other_calls += 1
        self._pause_device()
        if compile_counter().num_events != num_events or made.num_other_calls == 1:
            self._explain(made, args, kwargs, num_events, self.step)
        return result

    def say_once(self, message: str) -> None:
        """Warn of something, the first time that it happens."""
        if message not in self._said:
            self._said.add(message)
            LOGGER.warning("%s", message)

    # --- after a call -------------------------------------------------------------------------------------------------

    def _account_compile(
        self,
        record: CallRecord,
        made: StepFunction,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        num_events: int,
        started_s: float,
    ) -> None:
        """Something was compiled during a call, or it is the first: remember its arguments, and say what changed."""
        if made.num_calls == 1:
            self._learn_device(record.report)
            self._measurements.learn_eager(made, compile_counter().events_since(num_events))
        has_compiled = compile_counter().num_events != num_events
        if has_compiled:
            self._pause_device()  # such a call says nothing about the device
        made.learn(args, kwargs)
        try:
            is_own = self._explain(made, args, kwargs, num_events, self.step + self.is_amid_step)
        except BaseException:
            self._is_busy = False
            raise
        if is_own:
            record.is_disturbed = True
            self._measurements.exclude_span(started_s, record.ready_s)  # until what was compiled began to run

    def _learn_device(self, report: Any) -> None:
        """Learn from what shows that a call has completed where it runs."""
        self._measurements.learn_device(report)
        self._meter.device.is_host = self._measurements.is_on_host

    def _explain(
        self, made: StepFunction, args: tuple[Any, ...], kwargs: dict[str, Any], num_events: int, step: int
    ) -> bool:
        """Whether the function itself was compiled; the sentinel says why."""
        if compile_counter().num_events == num_events:
            self._sentinel.remember(made.name, args, kwargs, made.function)
            return False
        is_own = self._sentinel.compiled(made.name, args, kwargs, step=step, function=made.function, since=num_events)
        if not is_own and made.num_calls + made.num_other_calls <= 1:
            self._sentinel.remember(made.name, args, kwargs, made.function)
        return is_own

    def _may_begin(self) -> bool:
        return not (self._has_begun or self.is_closed) and self._host.is_own_thread

    def _begin(self) -> None:
        """The first call is about to be made."""
        self._has_begun, self._is_busy = True, False
        self._host.end_set_up()
        self._host.settle()
        self._callbacks.call("on_training_epoch_start", self.epoch)
        self._next_boundary = self._callbacks.next_boundary(self.step)

    def retire(self, num_kept: int = 1) -> None:
        """Let go of calls that have completed.

        Args:
            num_kept: How many are kept: the last, which shows whether the device is idle.
        """
        window, ledger, now_s = self._window, self._meter.ledger, self._clock.now()
        done: list[CallRecord] = []
        while len(window) > num_kept:
            record = window[0]
            if len(window) == 1 or not window[1].was_idle:  # else it was found complete then
                try:
                    if not is_ready(record.report):
                        if len(window) <= MAX_INFLIGHT_CALLS:
                            break
                        self._let_go(record)
                except Exception:  # donated, or failed, which JAX reports where the value is used
                    self._lose(record)
            if record.found_s > now_s:
                record.found_s = now_s
            done.append(window.popleft())
        self._meter.ends.conclude([record for record in done if record.completed_s != record.completed_s], window)
        behind = self._behind
        for record, following in pairwise([*done, *islice(window, 1)]):
            if record.completed_s - record.dispatched_s >= MIN_WAIT_S:
                ledger.move(OTHER, DEVICE_WAIT, waited_after(record, following, behind))
            behind = record
        self._behind = done[-1] if done else self._behind
        self._meter.step_times.add_calls(done, self._measurements.capture_state != "none")
        for record in done:
            record.report = None

    def _lose(self, record: CallRecord) -> None:
        for made in self.functions:
            made.output.on_lost()
        self._let_go(record)

    def _let_go(self, record: CallRecord) -> None:
        """Record that it is not known when a call completed."""
        record.is_disturbed, record.completed_s = True, record.dispatched_s

    def wait_for_calls(self) -> None:
        """Wait for the calls in flight."""
        before = self._host.enter(DEVICE_WAIT)
        for record in self._window:
            with contextlib.suppress(Exception):  # gone, or failed: see `retire`
                if not is_ready(record.report):
                    record.report.block_until_ready()
                    record.awaited_s = self._clock.now()
        self._host.enter(before)
        self.retire(num_kept=0)

    # --- between two steps --------------------------------------------------------------------------------------------

    def _between_steps(self) -> None:
        """Do what is due after a step, before its result is given to the loop."""
        self._host.settle()
        acted = OTHER
        try:
            if self.step >= self._next_boundary:
                acted = self._at_boundary()
            self._look()
        finally:
            self._measurements.call = None  # it must not keep arrays alive
            self._is_busy = False
            self._host.settle()
            if acted != OTHER:
                self._host.begin_after(acted)

    def _look(self) -> None:
        began_s = self._clock.now()
        if self._meter.device.is_host and self._window:  # a function may have returned nothing at first
            self._learn_device(self._window[-1].report)
        self.retire()
        self._sentinel.flush(self.step)
        self._meter.log_if_due(self.step)
        self._look_up()
        ended_s = self._clock.now()
        self._next_look_s = ended_s + max(LOOK_EVERY_S, (ended_s - began_s) / LOOK_SHARE)

    def _at_boundary(self) -> str:
        """Let callbacks act that want to.

        Returns:
            The part of the ledger that took the longest.
        """
        acting, longest = self._callbacks.decide(self.step), OTHER
        if acting:
            self.wait_for_calls()
            self._host.settle()
            self._callbacks.act(acting, self.epoch, self.step)
            self._meter.step_times.break_off()
            self._callbacks.call("on_settled", self.epoch, self.step)
            longest = self._meter.ledger.take_longest()
        self._next_boundary = self._callbacks.next_boundary(self.step)
        return longest

    def interrupt(self, is_validation: bool) -> None:
        """Something that is no training is about to begin.

        Args:
            is_validation: Whether the device is busy with it, and captures of steps are to end before.
        """
        self._meter.step_times.break_off()
        if is_validation:
            self._pause_device()
            if self._measurements.capture_state == "tracing":
                self.wait_for_calls()
                self._host.settle()
                self._callbacks.call("on_validation_epoch_start", self.epoch, self.step)
                self._next_boundary = self._callbacks.next_boundary(self.step)

    def _pause_device(self) -> None:
        """What the device does between the calls so far and the next is not of interest: no step."""
        self._meter.ledger.account()  # else it would be taken for what comes before these calls
        self._meter.device.pause()

    def warn_of_unused(self) -> None:
        """Say which functions were never called."""
        for made in self.functions:
            name = made.name if made.name.isidentifier() else "step"
            if made.num_calls + made.num_other_calls:
                continue
            if made.was_traced:
                LOGGER.warning(
                    "run.step(%s) was called only while JAX traced a function around it, so nothing was measured: "
                    "wrap the jitted function, as in %s = run.step(jax.jit(%s))",
                    *(made.name, name, name),
                )
            else:
                LOGGER.warning(
                    "run.step(%s) was never called: call what it returns, as in %s = run.step(%s)",
                    *(made.name, name, name),
                )

    def close(self) -> None:
        """Wait for the calls in flight, and record none from now on."""
        self.is_closed = self._is_busy = True
        self.wait_for_calls()
