"""What the loop keeps account of in each call: the ledger, the device's clock, and how much was trained."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.logger import Logger
from trackside.profiling.device_clock import DeviceClock
from trackside.profiling.ledger import CALLBACK, LOGGING, CallTimes, Ledger, LedgerTotals
from trackside.profiling.recent_steps import RecentStepTimes
from trackside.trainer.legs import TrainingTime
from trackside.trainer.run_events import RunEvents

MAX_UNACCOUNTED_CALLS = 32
LOG_EVERY_S = 0.1
"""Rows of time are not closer to each other: one takes 0.3 ms or more, as much as several very short steps."""
LOG_SHARE = 0.003
"""Nor do they take a larger share of the time, whatever the logger's tools do with them."""
SAVE_EVERY_S = 10.0


class StepMeter:
    """Keeps account of the calls of a training, and logs where the time went.

    Args:
        ledger: The ledger of the thread that trains.
        logger: Gets a row `time` with the other rows, at most one every `LOG_EVERY_S`.
        events: Gets the totals as rows `ledger`, and what lies between two epochs.
        max_inflight: How many calls may be under way.
        time: The time of the training over all legs, of which the goodput is told.
        step_at_peak_s: How long the devices would take for a step's FLOPs at their peak; None where that is not known.
            Asked once, when a step was made.
        clock: Where times come from.
    """

    def __init__(
        self,
        ledger: Ledger,
        logger: Logger,
        events: RunEvents,
        max_inflight: int,
        time: TrainingTime,
        step_at_peak_s: Callable[[], float | None],
        clock: Clock = SYSTEM_CLOCK,
    ):
        self.ledger = ledger
        self._time = time
        self._step_at_peak_s = functools.cache(step_at_peak_s)
        self.step_times = RecentStepTimes()
        self._events = events
        self._epoch_ended: tuple[int, dict[str, float]] | None = None
        self.device = DeviceClock(jax.default_backend() == "cpu", max_inflight, clock)
        self._logger = logger
        self._now, self._timestamp = clock.now, clock.timestamp
        self.calls: list[CallTimes] = []
        """Calls that are not accounted for yet. The loop adds to it, and calls `account` now and then."""
        self.count_samples: Callable[[Any], int] = _count_first_array
        self._tokens_per_sample = 0
        ledger.before_switch = self.account
        self._logged = ledger.totals()
        self._saved_s = clock.now()
        self._next_row_s = self._saved_s + LOG_EVERY_S

    def account(self) -> None:
        """Account for the calls in `calls`: done for several at once, which costs less than for one by one."""
        if not self.calls:
            return
        calls = self.calls[:]
        self.calls.clear()
        ledger = self.ledger
        self.device.add_calls(calls, ledger.take_longest())
        if self._epoch_ended is not None:
            ledger.add_calls(calls[:1])
            self._begin_epoch()
            del calls[0]
        ledger.add_calls(calls)
        ledger.num_tokens = ledger.num_samples * self._tokens_per_sample

    def learn_batch(self, batch: Any) -> None:
        """Learn from the first batch how examples and tokens are counted."""
        if getattr(getattr(batch, "inputs", None), "ndim", 0):
            self.count_samples = _count_inputs
            self._tokens_per_sample = _tokens_per_sample(batch.inputs)
        elif arrays := _arrays(batch):
            self._tokens_per_sample = _tokens_per_sample(arrays[0])

    def totals(self) -> LedgerTotals:
        """What the ledger and the device's clock show now."""
        totals, device = self.ledger.totals(), self.device
        if totals.num_steps and (step_at_peak_s := self._step_at_peak_s()) is not None:
            totals = replace(totals, at_peak_s=totals.num_steps * step_at_peak_s)
        if not device.is_known:
            return totals
        return replace(
            totals,
            device_busy_s=device.busy_s,
            device_idle_s=device.idle_s,
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
                self._events.warn_if_severe(self.step_times.median_s())

    def save(self, step: int) -> None:
        """Write the totals to the event file, where a reader finds them also if the process dies."""
        self._saved_s, totals = self._now(), self.totals()
        mfu = {} if totals.mfu is None else {"mfu": totals.mfu}
        self._events.write("ledger", step=step, **totals.to_dict(), **mfu)

    def end_epoch(self, epoch: int) -> None:
        """All steps of an epoch have completed: what comes now, until the next one begins, keeps the device waiting."""
        self._epoch_ended = epoch, self.ledger.totals().parts

    def _begin_epoch(self) -> None:
        """The first call after an epoch was made."""
        assert self._epoch_ended is not None
        (epoch, ended), self._epoch_ended = self._epoch_ended, None
        spent = {name: seconds - ended.get(name, 0.0) for name, seconds in self.ledger.parts().items()}
        parts = {name: seconds for name, seconds in spent.items() if seconds > 0}
        self._events.write("between_epochs", epoch=epoch, parts=parts)

    def close(self, step: int) -> LedgerTotals:
        """Stop, and write the totals."""
        self.account()
        self.device.close()
        self.ledger.stop()
        self.save(step)
        return self.totals()


def time_row(recent: LedgerTotals, goodput: float | None) -> dict[str, float]:
    """Where the time of some steps went, for people: milliseconds per step, and how much was trained per second.

    Args:
        recent: What the ledger shows of these steps.
        goodput: That of the training so far. What is not known has no place in the row.
    """
    per_step = 1e3 / recent.num_steps
    row = {f"{name}_ms": seconds * per_step for name, seconds in recent.parts.items() if not name.startswith(CALLBACK)}
    row["callbacks_ms"] = sum(recent.parts[name] for name in recent.parts if name.startswith(CALLBACK)) * per_step
    row["steps_per_second"] = recent.steps_per_second
    row["samples_per_second"] = recent.samples_per_second
    if recent.num_tokens:
        row["tokens_per_second"] = recent.tokens_per_second
    known = {"device_idle_share": recent.idle_share, "mfu": recent.mfu, "goodput": goodput}
    return row | {name: value for name, value in known.items() if value is not None}


def _count_inputs(batch: Any) -> int:
    return batch.inputs.shape[0]


def _count_first_array(batch: Any) -> int:
    return next((len(array) for array in _arrays(batch)), 0)


def _arrays(batch: Any) -> list[Any]:
    """The leaves of a batch that have a length; a step size or a temperature has none."""
    return [leaf for leaf in jax.tree.leaves(batch) if np.ndim(leaf)]


def _tokens_per_sample(leaf: Any) -> int:
    """The tokens of an example, for batches of sequences of token numbers; 0 for all others."""
    is_tokens = np.ndim(leaf) == 2 and np.issubdtype(leaf.dtype, np.integer)
    return np.shape(leaf)[1] if is_tokens else 0
