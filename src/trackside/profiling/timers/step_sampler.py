"""How much of a jitted step is its loss with the gradient, and how much the update: sampled from short captures.

Operations that were traced under a gradient (`jvp`, `transpose`) are the loss and its gradient, so the user's functions
need neither a wrapper nor a scope. A sample is a capture of a few steps. A thread starts, ends and analyzes it while
the loop continues; the loop itself only marks the calls that belong to it. A sample gives way to any other profile.

One sample says little on a machine that is busy with other programs: an operation that uses all cores waits for
whichever core was taken away, so the parts of a step do not slow down alike. What can be seen to be waiting is left out
(`trackside.trace.undisturbed_phases`). The first few samples are taken one after the other, and nothing is reported
before. After that there is one whenever all of them together, with everything that they cause, took less than a
hundredth of the time that has passed.
"""

import logging
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import jax

from trackside import jax_internals
from trackside.errors import CaptureError
from trackside.profiling.capture import CaptureContext, CaptureResult, start_capture
from trackside.profiling.timers.durations import DurationSketch
from trackside.profiling.timers.sampled_shares import MIN_SAMPLES, SampledShare, ShareSample
from trackside.profiling.timers.training_profiler import TrainingProfiler
from trackside.trace.undisturbed_phases import UndisturbedPhases

LOGGER = logging.getLogger(__name__)

BUDGET = 0.01
"""What the samples may cost, as a share of the time that has passed."""
NUM_WARM_UP_CALLS = 10
"""Nothing is sampled for this many calls after one that compiled something."""
MAX_STEPS = 20
"""The most steps that a sample has; fewer if they are long."""
MAX_FIRST_STEPS = 8
"""The same for the first samples, of which there are several in a row."""
MAX_FIRST_ATTEMPTS = 2 * MIN_SAMPLES
"""How many attempts at these may be made regardless of the budget."""
MIN_STEPS = 3
MAX_WINDOW_S = 1.0
"""A sample of more than `MIN_STEPS` steps is not longer than this, judging by earlier steps."""
MAX_FAILURES = 3
"""No more samples are taken after this many that contained nothing."""

_LOSS_PHASES = ("forward", "backward", "recompute")
_SLOWDOWN = 0.1  # how much longer the steps of a sample may take: measured 2 to 9 %
_PATIENCE_S = 30.0  # how long a sample waits for its steps at least


class SampleBudget:
    """Says when the next sample may be taken.

    Args:
        now_s: The time at which the training began.
    """

    def __init__(self, now_s: float):
        self._started_s = now_s
        self._cost_s = 0.0
        self._num_attempts = self._num_samples = self._num_failures = 0

    @property
    def max_steps(self) -> int:
        """How many steps the next sample may have."""
        return MAX_FIRST_STEPS if self._num_samples < MIN_SAMPLES else MAX_STEPS

    def is_due(self, now_s: float) -> bool:
        """Whether a sample may be taken now."""
        if self._num_failures >= MAX_FAILURES:
            return False
        is_first = self._num_samples < MIN_SAMPLES and self._num_attempts < MAX_FIRST_ATTEMPTS
        return is_first or now_s >= self._started_s + self._cost_s / BUDGET

    def spend(self, cost_s: float) -> None:
        """Account for an attempt, whatever came of it."""
        self._cost_s += cost_s
        self._num_attempts += 1

    def succeed(self) -> None:
        """Account for a sample."""
        self._num_samples += 1

    def fail(self) -> bool:
        """Account for a sample that contained nothing; whether it is the one after which no more are taken."""
        self._num_failures += 1
        return self._num_failures == MAX_FAILURES


class StepSampler:
    """Samples a step that one thread calls again and again. Samples nothing until `expect` is called.

    Args:
        profiler: Measures, and receives the samples.
        step_name: What the step is called.
        program: What XLA calls the step; None when that is not known, or when the step runs several programs.
        steps: What the steps took.
    """

    def __init__(self, profiler: TrainingProfiler, step_name: str, program: str | None, steps: DurationSketch):
        self.step_name = step_name
        self._shares = profiler.sampled
        self._now = profiler.clock.now
        self._program = program
        self._steps = steps
        self._names: tuple[str, str] | None = None
        """What the loss and the update were said to be called."""
        self._expected: tuple[SampledShare, ...] = ()
        """The shares of the loss and of the update."""
        self._num_clears = 0
        self._budget = SampleBudget(self._now())
        self._next_call = NUM_WARM_UP_CALLS
        self._num_calls = 0
        self._num_to_mark = 0
        """Calls that the open capture still lacks. Raised by its thread, lowered by the loop."""
        self._num_marked = self._num_seen = 0
        self._is_spoiled = False
        """Whether the open capture cannot be used: something compiled, or another profile wants to start."""
        self._thread: threading.Thread | None = None
        self._window_is_over = threading.Event()
        self._shares.add_source(self)

    @property
    def is_sampling(self) -> bool:
        """Whether a sample is being taken or analyzed."""
        return self._thread is not None

    def expect(self, loss_name: str, update_name: str) -> None:
        """Say what the two parts of the step are called."""
        num_clears, names = self._shares.num_clears, (loss_name, update_name)
        if names != self._names:
            for loss in self._expected[:1]:
                self._shares.forget(loss)
            self._expected = tuple(self._shares.expect(name, self._steps, self) for name in names)
        elif num_clears != self._num_clears:  # by the names that they had before
            self._expected = tuple(self._shares.expect(share.name, self._steps, self) for share in self._expected)
        self._names, self._num_clears = names, num_clears

    def mark_call(self) -> AbstractContextManager | None:
        """Count a call of the step that is about to be made.

        Returns:
            The mark to make it under if it belongs to a capture; else None.
        """
        if self._names is None:
            return None
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
        """A call compiled something: the next ones are not typical, and a capture of it is of no use."""
        self._next_call = self._num_calls + NUM_WARM_UP_CALLS
        self._is_spoiled = True

    def on_marked_seen(self) -> None:
        """A marked call is complete."""
        self._num_seen += 1
        if self._num_to_mark <= 0 and self._num_seen >= self._num_marked:
            self._window_is_over.set()

    def finish(self, timeout_s: float | None) -> bool:
        """End a sample that is being taken, with the steps that it has, and wait for its result."""
        thread = self._thread
        self._window_is_over.set()
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def give_way(self) -> None:
        """Drop a sample that is being taken, because something else wants to take a profile."""
        self._is_spoiled = True
        self._window_is_over.set()

    def _start_if_due(self) -> None:
        self._next_call = self._num_calls + NUM_WARM_UP_CALLS
        if self.is_sampling or not self._budget.is_due(self._now()):
            return
        self._window_is_over.clear()
        self._thread = threading.Thread(target=self._take_sample, name="trackside-step-sampler", daemon=True)
        self._thread.start()

    def _take_sample(self) -> None:
        began_s, window_s = self._now(), 0.0
        directory = tempfile.mkdtemp(prefix="trackside-step-sample-")
        remove = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)  # also when the process ends
        try:
            window_s, result = self._capture(directory)
            if result is not None:
                self._take_in(result)
        except CaptureError as error:  # another profile is being taken: try again later
            LOGGER.debug("No sample of the step: %s", error)
        except Exception:
            self._budget.fail()
            LOGGER.exception("The step could not be sampled")
        finally:
            remove()
            self._budget.spend(self._now() - began_s - window_s * (1 - _SLOWDOWN))
            self._thread = None

    def _capture(self, directory: str) -> tuple[float, CaptureResult | None]:
        """Capture the next calls.

        Returns:
            How long that took, and its result; None if the calls did not come, or the capture cannot be used.

        Raises:
            CaptureError: Another profile is being taken.
        """
        if jax_internals.is_profile_running():
            raise CaptureError("a profile by jax.profiler is running")
        mean_s, max_steps = self._steps.summarise().mean_s, self._budget.max_steps
        num_steps = int(min(max(MAX_WINDOW_S / mean_s, MIN_STEPS), max_steps)) if mean_s > 0 else max_steps
        self._num_marked = self._num_seen = 0
        self._is_spoiled = False
        capture = start_capture(
            directory,
            "step-sample",
            self._num_calls + 1,
            reason="loss share",
            for_perfetto=False,
            on_wanted=self.give_way,
        )
        began_s = self._now()
        self._num_to_mark = num_steps  # from here on the loop marks its calls
        self._window_is_over.wait(max(_PATIENCE_S, 10 * num_steps * mean_s))
        self._num_to_mark = 0
        window_s = self._now() - began_s
        if not self._num_seen or self._is_spoiled:
            capture.cancel()
            return window_s, None
        capture.stop(self._num_calls, CaptureContext(program=self._program, has_undisturbed_phases=True))
        return window_s, capture.wait()

    def _take_in(self, result: CaptureResult) -> None:
        if result.report is None and self._program is not None:
            self._program = None  # XLA calls it otherwise: count everything that runs meanwhile
            return
        samples = None if result.undisturbed_phases is None else split_step(result.undisturbed_phases)
        if samples is None:
            if self._budget.fail():
                LOGGER.warning(
                    "%s and %s cannot be measured: %s.",
                    *(share.name for share in self._expected),
                    result.error or "no operation of the step was traced under a gradient of JAX",
                )
            return
        self._budget.succeed()
        for share, sample in zip(self._expected, samples, strict=True):
            share.add(sample)


def split_step(phases: UndisturbedPhases) -> tuple[ShareSample, ShareSample] | None:
    """The shares of the loss with its gradient, and of the update; None if there is no gradient.

    The update is what is under a scope `optimizer` or `update`. Without such a scope it is everything but the loss.
    """
    work_loss, wall_loss = (_share(times, _LOSS_PHASES) for times in (phases.work_s, phases.wall_s))
    if not work_loss or not wall_loss:
        return None
    work_update, wall_update = 1.0 - work_loss, 1.0 - wall_loss
    if "optimizer" in phases.work_s:
        work_update, wall_update = (_share(times, ("optimizer",)) for times in (phases.work_s, phases.wall_s))
    number = phases.num_in_progress
    return ShareSample(work_loss, wall_loss, number), ShareSample(work_update, wall_update, number)


def _share(times: Mapping[str, float], phases: Sequence[str]) -> float:
    whole_s = sum(times.values())
    return sum(times.get(phase, 0.0) for phase in phases) / whole_s if whole_s else 0.0
