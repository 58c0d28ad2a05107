"""What the loop keeps account of in each call: the ledger, the device's clock, and how much was trained."""

import functools
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, Protocol

import numpy as np

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.findings import Finding
from trackside.logger import Logger
from trackside.measured_run.first_array import find_first_array, first_array
from trackside.measured_run.training_time import TrainingTime
from trackside.measured_run.verdicts import Verdicts
from trackside.profiling.call_ends import CallEnds
from trackside.profiling.call_record import CallRecord
from trackside.profiling.device_clock import DeviceClock
from trackside.profiling.first_step import TimeToFirstStep
from trackside.profiling.fresh_memory import FreshMemoryMeter
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import CALLBACK, LOGGING, SET_UP_PARTS, LedgerTotals
from trackside.profiling.processor_use import ProcessorMeter
from trackside.profiling.recent_steps import RecentStepTimes

MAX_UNACCOUNTED_CALLS = 32
LOG_EVERY_S = 0.1
"""Rows of time are not closer to each other: one takes 0.3 ms or more, as much as several very short steps."""
LOG_SHARE = 0.003
"""Nor do they take a larger share of the time, whatever the logger's tools do with them."""
SAVE_EVERY_S = 10.0


class StepFigures(Protocol):
    """What is known of the steps besides their calls."""

    @property
    def step_times(self) -> RecentStepTimes:
        """How long the last steps took."""
        ...

    def step_at_peak_s(self) -> float | None:
        """How long the devices would take at their peak for the model's own FLOPs of a step; None if not known."""
        ...

    def peak_spread(self) -> tuple[float, float] | None:
        """How much shorter and longer that may be, as factors, if the peak was measured; None for one without."""
        ...


class StepMeter:
    """Keeps account of the calls of a training, and logs where the time went.

    Args:
        ledger: The ledger of the thread that trains, which runs since the trainer was built or is to train again.
        logger: Gets a row `time` with the other rows, at most one every `LOG_EVERY_S`; its run log gets the totals as
            rows `ledger`, and what comes between two epochs.
        measurements: What is known of the steps.
        time: The time of the training over all legs, for the goodput.
        max_inflight: How many calls may be under way.
        clock: Where times come from.
    """

    def __init__(
        self,
        ledger: Ledger,
        logger: Logger,
        measurements: StepFigures,
        time: TrainingTime,
        max_inflight: int,
        clock: Clock = SYSTEM_CLOCK,
    ):
        self.ledger = ledger
        self.ends = CallEnds(max_inflight, clock)
        self.device = DeviceClock(self.ends)
        self.step_times = measurements.step_times
        self.count_samples: Callable[[Any], int] = _count_first_array
        self._time = time
        self._step_at_peak_s = measurements.step_at_peak_s
        self._peak_spread = functools.cache(measurements.peak_spread)
        self._logger = logger
        self._run_log = logger.run_log
        self._verdicts = Verdicts(logger.run_log)
        self._now, self._timestamp = clock.now, clock.timestamp
        self._clock = clock
        self._processors: ProcessorMeter | None = None
        self._memory: FreshMemoryMeter | None = None
        self._epoch_ended: tuple[int, dict[str, float]] | None = None
        self._tokens_per_sample = 0
        self.first_step: TimeToFirstStep | None = None
        """How long the first step took to come; None before it was called."""
        self.go_on()
        self._logged = ledger.totals()
        self._saved_s = clock.now()
        self._next_row_s = self._saved_s + LOG_EVERY_S

    def go_on(self) -> None:
        """Keep account again, where the ledger was stopped."""
        self.ledger.start(self._take_calls)

    def _take_calls(self, calls: list[CallRecord]) -> None:
        ledger = self.ledger
        self.device.add_calls(calls, ledger.take_longest())
        while calls and (self.first_step is None or self._epoch_ended is not None):
            ledger.add_calls(calls[:1])
            if self.first_step is None and calls[0].num_steps:  # else it is a part of a step, as of a discriminator
                self._note_first_step(calls[0].last_step)
            if self._epoch_ended is not None:
                self._begin_epoch()
            del calls[0]
        ledger.add_calls(calls)
        ledger.num_tokens = ledger.num_samples * self._tokens_per_sample

    def add_samples(self, num_samples: int) -> None:
        """Count examples that calls were given, as is known only now."""
        self.ledger.num_samples += num_samples
        self.ledger.num_tokens = self.ledger.num_samples * self._tokens_per_sample

    def _note_first_step(self, step: int) -> None:
        """The first call was made: what the ledger shows now is what it took to get there."""
        self.first_step = TimeToFirstStep.of_parts(self.ledger.parts())
        self._run_log.write("first_step", step=step, **self.first_step.to_dict())

    def learn_batch(self, batch: Any) -> None:
        """Learn from the first batch how examples and tokens are counted."""
        if getattr(getattr(batch, "inputs", None), "ndim", 0):
            self.count_samples = _count_inputs
            self._tokens_per_sample = _tokens_per_sample(batch.inputs)
        else:
            self.count_samples = _count_like(batch)
            self._tokens_per_sample = _tokens_per_sample(first_array(batch))

    def totals(self) -> LedgerTotals:
        """What the ledger and the device's clock show now."""
        totals, device = self.ledger.totals(), self.device
        device.update()
        if totals.num_steps and (step_at_peak_s := self._step_at_peak_s()) is not None:
            spread = self._peak_spread()
            at_peak_s = totals.num_steps * step_at_peak_s
            at_peak_range_s = None if spread is None else (at_peak_s * spread[0], at_peak_s * spread[1])
            totals = replace(totals, at_peak_s=at_peak_s, at_peak_range_s=at_peak_range_s)
        if not device.is_known:
            return totals
        return replace(
            totals,
            device_busy_s=device.busy_s,
            device_idle_s=device.idle_s,
            device_idle_low_s=device.idle_low_s,
            device_idle_high_s=device.idle_high_s,
            idle_by_reason=dict(device.idle_by_reason),
        )

    def log_if_due(self, step: int) -> None:
        """Log where the time since the last row went, unless that was just now."""
        if self._now() >= self._next_row_s:
            self.log(step)

    def log(self, step: int) -> None:
        """Log where the time since the last row went."""
        began_s = self._now()
        with self.ledger.spend(LOGGING):
            if self._processors is None:  # from the first row on, since what comes before is mostly compiling
                self._processors = ProcessorMeter(self._clock)
                self._memory = FreshMemoryMeter(self.ledger.num_steps, self._now)
            totals = self.totals()
            recent, self._logged = totals.since(self._logged), totals
            if recent.num_steps > 0:
                self._time.in_steps_s = totals.in_steps_s
                goodput = self._time.goodput(self._timestamp())
                self._logger.log_host_metrics(time_row(recent, goodput), step, mode="time")
            ended_s = self._now()
            self._next_row_s = ended_s + max(LOG_EVERY_S, (ended_s - began_s) / LOG_SHARE)
            if ended_s - self._saved_s >= SAVE_EVERY_S:
                self.save(step)
                self._verdicts.warn_if_severe()

    def save(self, step: int) -> LedgerTotals:
        """Write the totals to the event file, where a reader finds them also if the process dies.

        Returns:
            The totals.
        """
        self._saved_s, totals = self._now(), self.totals()
        stalls = {"longest_s": longest_s} if (longest_s := self.ledger.longest_stretches()) else {}
        figures = {**totals.to_dict(), **_mfu_figures(totals), **stalls}
        self._run_log.append("ledger", leg=self._time.leg, step=step, step_time_s=self.step_times.median_s(), **figures)
        use = None if self._processors is None else self._processors.use()
        if use is not None:
            self._run_log.append("processors", step=step, **asdict(use))
        if self._memory is not None:
            self._run_log.append("fresh_memory", step=step, **asdict(self._memory.since_then(totals.num_steps)))
        return totals

    def end_epoch(self, epoch: int) -> None:
        """All steps of an epoch have completed: what comes now, until the next one begins, keeps the device waiting."""
        self._epoch_ended = epoch, self.ledger.totals().parts

    def _begin_epoch(self) -> None:
        """The first call after an epoch was made."""
        assert self._epoch_ended is not None
        (epoch, ended), self._epoch_ended = self._epoch_ended, None
        spent = {name: seconds - ended.get(name, 0.0) for name, seconds in self.ledger.parts().items()}
        parts = {name: seconds for name, seconds in spent.items() if seconds > 0}
        self._run_log.write("between_epochs", epoch=epoch, parts=parts)

    def close(self, step: int) -> LedgerTotals:
        """Stop watching the device, and write the totals."""
        self.ends.close()
        return self.save(step)

    def conclude(self) -> list[Finding]:
        """Say what the measurements find wrong, on the console and in the run log."""
        return self._verdicts.conclude()


def time_row(recent: LedgerTotals, goodput: float | None) -> dict[str, float]:
    """Where the time of some steps went, for people: milliseconds per step, and how much was trained per second.

    Args:
        recent: What the ledger shows of these steps.
        goodput: That of the training so far. What is not known has no place in the row.
    """
    per_step = 1e3 / recent.num_steps
    callbacks = {name: seconds for name, seconds in recent.parts.items() if name.startswith(CALLBACK)}
    own = {name: seconds for name, seconds in recent.parts.items() if name not in callbacks}
    row = {f"{name}_ms": seconds * per_step for name, seconds in own.items() if seconds or name not in SET_UP_PARTS}
    row["callbacks_ms"] = sum(callbacks.values()) * per_step
    row |= {f"{name}_ms": seconds * per_step for name, seconds in callbacks.items() if seconds > 0}
    row["steps_per_second"] = recent.steps_per_second
    row["samples_per_second"] = recent.samples_per_second
    if recent.num_tokens:
        row["tokens_per_second"] = recent.tokens_per_second
    known = {"device_idle_share": recent.idle_share, **_mfu_figures(recent), "goodput": goodput}
    return row | {name: value for name, value in known.items() if value is not None}


def _mfu_figures(totals: LedgerTotals) -> dict[str, float]:
    """The utilization, and its range if the peak was measured; nothing where it is not known."""
    if totals.mfu is None:
        return {}
    low, high = totals.mfu_range or (None, None)
    figures = {"mfu": totals.mfu, "mfu_low": low, "mfu_high": high}
    return {name: value for name, value in figures.items() if value is not None}


def _count_inputs(batch: Any) -> int:
    return batch.inputs.shape[0]


def _count_first_array(batch: Any) -> int:
    return len(first_array(batch))


def _count_like(batch: Any) -> Callable[[Any], int]:
    """Count as `_count_first_array` does, and fast for batches in which that array is where it is in this one."""
    get, length_of = find_first_array(batch)

    def count(batch: Any) -> int:
        try:
            return length_of(get(batch))
        except (AttributeError, LookupError, TypeError):
            return _count_first_array(batch)

    return count


def _tokens_per_sample(leaf: Any) -> int:
    """The tokens of an example, for batches of sequences of token numbers; 0 for all others."""
    is_tokens = np.ndim(leaf) == 2 and "int" in str(leaf.dtype)  # also PyTorch's
    return np.shape(leaf)[1] if is_tokens else 0
