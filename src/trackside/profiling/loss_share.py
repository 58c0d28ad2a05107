"""How much of a jitted step is its loss with the gradient, and how much the update: sampled from short captures.

Operations that were traced under a gradient (`jvp`, `transpose`) are the loss and its gradient, so that the user's
functions need no wrapper and no scope. A sample is a capture of a few steps, started, ended and analysed by a thread
while the loop goes on; only the calls that it is to hold are marked by the loop. The first is taken after warm-up.
After that there is one whenever all of them together, with everything that they cause, cost less than a hundredth of
the time that has passed.
"""

import logging
import shutil
import tempfile
import threading
import weakref
from contextlib import AbstractContextManager

import jax

from trackside.errors import CaptureError
from trackside.profiling.capture import CaptureContext, CaptureResult, start_capture
from trackside.profiling.sampled_share import SampledShare
from trackside.profiling.statistics_sketch import DurationSketch
from trackside.profiling.timers import TrainingProfiler
from trackside.trace import TraceReport

LOGGER = logging.getLogger(__name__)

BUDGET = 0.01
"""What the samples may cost, as a share of the time that has passed."""
NUM_WARM_UP_CALLS = 10
"""So many calls after one that compiled something, nothing is sampled."""
MAX_STEPS = 20
"""A sample holds so many steps, or fewer if they are long."""
MIN_STEPS = 3
MAX_WINDOW_S = 1.0
"""A sample of more than `MIN_STEPS` is not longer than that, by what the steps before took."""
MAX_FAILURES = 3
"""After so many samples that held nothing, no more are taken."""

_SLOWDOWN = 0.1  # what the steps of a sample may take longer: measured 2 to 9 %
_PATIENCE_S = 30.0  # how long a sample waits for its steps at least


class LossShareSampler:
    """Samples a step that is called again and again by one thread.

    Args:
        profiler: What measures, and gets the samples.
        step_name: What the step is called.
        program: What XLA calls the step; None where that is not known.
        steps: What the steps took.
    """

    def __init__(self, profiler: TrainingProfiler, step_name: str, program: str | None, steps: DurationSketch):
        self.step_name = step_name
        self._shares = profiler.sampled
        self._now = profiler.clock.now
        self._program = program
        self._steps = steps
        self._names = "", ""
        """What the loss and the update were said to be called."""
        self._expected: tuple[SampledShare, ...] = ()
        """Those of the loss and of the update."""
        self._num_clears = 0
        self._num_calls = 0
        self._num_to_mark = 0
        """Calls that the open capture still lacks. Raised by its thread, lowered by the loop."""
        self._num_marked = self._num_seen = 0
        self._first_marked = 0
        self._next_call = NUM_WARM_UP_CALLS
        self._started_s = self._next_s = self._now()
        self._cost_s = 0.0
        self._num_failures = 0
        self._thread: threading.Thread | None = None
        self._window_is_over = threading.Event()
        self._has_compiled = False
        self._shares.add_source(self)

    def expect(self, loss_name: str, update_name: str) -> None:
        """Say what the two parts of the step are called."""
        num_clears = self._shares.num_clears
        names = loss_name, update_name
        if names != self._names:
            for loss in self._expected[:1]:
                self._shares.forget(loss)
            self._expected = tuple(self._shares.expect(name, self._steps, self) for name in names)
        elif num_clears != self._num_clears:  # by the names that they had before
            self._expected = tuple(self._shares.expect(share.name, self._steps, self) for share in self._expected)
        self._names, self._num_clears = names, num_clears

    def mark_call(self) -> AbstractContextManager | None:
        """Count a call of the step that is about to be made; if a capture is to hold it, the mark to make it under."""
        self._num_calls += 1
        if self._num_clears != self._shares.num_clears:
            self.expect(*self._names)
        if self._num_to_mark > 0:
            self._num_to_mark -= 1
            self._num_marked += 1
            return jax.profiler.StepTraceAnnotation("train", step_num=self._num_calls)
        if self._num_calls >= self._next_call:
            self._start_if_due()
        return None

    def warm_up(self) -> None:
        """A call compiled something: the next ones are not typical, and a capture that holds it is of no use."""
        self._next_call = self._num_calls + NUM_WARM_UP_CALLS
        self._has_compiled = True

    def on_marked_seen(self) -> None:
        """A call that was marked is complete."""
        self._num_seen += 1
        if self._num_to_mark <= 0 and self._num_seen >= self._num_marked:
            self._window_is_over.set()

    def finish(self, timeout_s: float | None) -> bool:
        """End a sample that is being taken, with the steps that it has, and wait for what it says."""
        thread = self._thread
        self._window_is_over.set()
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def _start_if_due(self) -> None:
        self._next_call = self._num_calls + NUM_WARM_UP_CALLS
        if self._thread is not None or self._num_failures >= MAX_FAILURES or self._now() < self._next_s:
            return
        self._window_is_over.clear()
        self._thread = threading.Thread(target=self._take_sample, name="trackside-loss-share", daemon=True)
        self._thread.start()

    def _take_sample(self) -> None:
        began_s, window_s = self._now(), 0.0
        directory = tempfile.mkdtemp(prefix="trackside-loss-share-")
        remove = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)  # also when the process ends
        try:
            window_s, result = self._capture(directory)
            if result is not None:
                self._take_in(result)
        except CaptureError as error:  # somebody else is taking a profile: later, then
            LOGGER.debug("No sample of the step: %s", error)
        except Exception:
            self._num_failures += 1
            LOGGER.exception("The step could not be sampled")
        finally:
            remove()
            self._cost_s += self._now() - began_s - window_s * (1 - _SLOWDOWN)
            self._next_s = self._started_s + self._cost_s / BUDGET
            self._thread = None

    def _capture(self, directory: str) -> tuple[float, CaptureResult | None]:
        """Capture the next calls. How long that took, and what became of it; None if the calls did not come."""
        mean_s = self._steps.summarise().mean_s
        num_steps = int(min(max(MAX_WINDOW_S / mean_s, MIN_STEPS), MAX_STEPS)) if mean_s > 0 else MAX_STEPS
        capture = start_capture(directory, "loss-share", self._num_calls + 1, reason="loss share", for_perfetto=False)
        began_s = self._now()
        self._num_marked = self._num_seen = 0
        self._has_compiled = False
        self._num_to_mark = num_steps  # from here on the loop marks its calls
        self._window_is_over.wait(max(_PATIENCE_S, 10 * num_steps * mean_s))
        self._num_to_mark = 0
        window_s = self._now() - began_s
        if not self._num_seen or self._has_compiled:
            capture.cancel()
            return window_s, None
        capture.stop(self._num_calls, CaptureContext(program=self._program))
        return window_s, capture.wait()

    def _take_in(self, result: CaptureResult) -> None:
        if result.report is None and self._program is not None:
            self._program = None  # XLA calls it otherwise: count all that runs meanwhile
            return
        parts = None if result.report is None else split_step(result.report)
        if parts is None:
            self._num_failures += 1
            if self._num_failures == MAX_FAILURES:
                LOGGER.warning(
                    "%s and %s cannot be told: %s.",
                    *(share.name for share in self._expected),
                    result.error or "no operation of the step was traced under a gradient of JAX",
                )
            return
        loss_s, update_s, busy_s = parts
        for share, seconds in zip(self._expected, (loss_s, update_s), strict=True):
            share.add(seconds, busy_s)


def split_step(report: TraceReport) -> tuple[float, float, float] | None:
    """Busy seconds of the loss with its gradient, of the update, and of all; None where no gradient is to be found.

    The update is what lies under a scope `optimizer` or `update`. Without such a scope it is all but the loss.
    """
    phases = report.phases
    busy_s = sum(phases.values())
    loss_s = sum(phases.get(phase, 0.0) for phase in ("forward", "backward", "recompute"))
    if not loss_s:
        return None
    return loss_s, phases.get("optimizer", busy_s - loss_s), busy_s
