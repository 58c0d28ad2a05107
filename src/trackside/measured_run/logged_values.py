"""What a loop of the user's own logs: values that a device may still be computing, written when they are there.

Nothing waits for them. They are kept, a row for each step and mode, until the device is done with them, and written in
the order in which they were logged. Only the end of the run waits.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from numpy import asarray

from trackside.clock import Clock
from trackside.errors import ConfigError, MetricError
from trackside.logger import Logger
from trackside.measured_run.alike_rows import ONLY_REPORT, PER_STEP, AlikeRows, WaitingRow
from trackside.measured_run.values_per_step import NumbersPerStep, TrainRow, ValuesPerStep, is_number, rows_per_step
from trackside.metric_columns import MetricColumns, MetricRow
from trackside.profiling.array_state import is_ready
from trackside.profiling.call_record import CallRecord
from trackside.text import a_type

LOGGER = logging.getLogger(__name__)

MAX_ROWS = 4096
"""Rows that are kept at most. A device is rarely more than some dozens of steps behind."""
WRITE_AT = 256
WRITE_EVERY_S = 0.1
"""Rows are written a few at a time, which costs less than one by one."""
MODES = {"train": "train", "val": "val", "validation": "val", "test": "test"}
"""What a name may begin with, as in `val/loss`, and what its rows are logged under."""

MAX_STEP = 1 << 53
OWN_NAME = "step_time"
"""What the rows of training have from the run itself."""
MAX_KNOWN = 256
"""Kinds of arrays that are remembered as numbers."""

MIN_ALIKE = 4
"""Fewer rows are written together with others."""

_NUMBERS = frozenset({float, int, bool})


class LoggedValues:
    """Keeps logged values until they are there, and writes them.

    Args:
        logger: Gets the rows.
        clock: Where times come from.
        settle_calls: Called before rows are written, so that it is known when calls completed.
        say_once: Warns of something, the first time that it happens.
    """

    def __init__(
        self,
        logger: Logger,
        clock: Clock,
        settle_calls: Callable[[], None],
        say_once: Callable[[str], None],
    ):
        self.latest: dict[str, float] = {}
        """The last values of training that were written."""
        self._logger = logger
        self._now = clock.now
        self._settle_calls = settle_calls
        self._say_once = say_once
        self._added: list[WaitingRow] = []
        """What was logged since rows were written. It becomes rows there, all at once."""
        self._open: dict[str, WaitingRow] = {}
        """The row of each mode that may still get more values."""
        self._rows: list[WaitingRow] = []
        self._next_write_s = -math.inf
        self._alike = AlikeRows()
        self._array_type: type | None = None
        self._known: dict[int, Any] = {}
        """What JAX calls the abstract values of arrays that were found to be numbers: a jitted function always returns
        the same ones."""
        self._plain_names: set[str] = set()
        """Names of values that are logged as they are, which `add` has found out."""
        self._last_call: CallRecord | None = None
        """The one after which something was logged last."""

    @property
    def has_training(self) -> bool:
        """Whether values of training were logged."""
        waiting = (*self._added, *self._rows, *self._open.values())
        return bool(self.latest) or any(row[3] == "train" for row in waiting)

    def add(
        self,
        values: dict[str, Any],
        step: int,
        epoch: int,
        mode: str,
        call: CallRecord | None,
        now_s: float,
        every: int = 1,
    ) -> None:
        """Keep values.

        Args:
            values: Numbers by name, on the host or a device; dicts of them count by `name/inner_name`. They are kept.
            step: The step that they belong to.
            epoch: Its epoch.
            mode: What they are logged under, unless their names say something else.
            call: The last call of a step.
            now_s: What the clock shows.
            every: Of values for each step of the call, those at steps that this number divides are logged.

        Raises:
            MetricError: A value is no number, or JAX is tracing it.
        """
        by_mode: dict[str, dict[str, Any]] = {}
        forms: dict[str, int] = {}
        for name, value in _flat(values, ""):
            first, _, rest = name.partition("/")
            is_mode = bool(rest) and first in MODES
            row_mode = MODES[first] if is_mode else mode
            row = by_mode.setdefault(row_mode, {})
            if row_mode == "train" and ValuesPerStep.fits(value, call) and not isinstance(value, Tracer):
                forms[row_mode], checked = PER_STEP, ValuesPerStep(value, every)
            else:
                checked = self._checked(name, value)
            row[rest if is_mode else name] = checked
            if not is_mode and name in values and len(self._plain_names) < MAX_KNOWN:
                self._plain_names.add(name)
        for row_mode, row in by_mode.items():
            form = forms.get(row_mode) or self._form(row, row_mode, call)
            self._added.append((row, step, epoch, row_mode, call, form))
        self._last_call = call
        if len(self._added) >= WRITE_AT or now_s >= self._next_write_s:
            self.write()

    def add_at_once(self, values: dict[str, Any], step: int, epoch: int, call: CallRecord | None) -> bool:
        """Keep values of training if that is all there is to do: they are as before, and no rows are to be written.

        Args:
            values: As for `add`.
            step: The step that they belong to.
            epoch: Its epoch.
            call: The last call of a step, which was just made if nothing was logged since.

        Returns:
            Whether they are kept; else `add` has to be called.
        """
        added = self._added
        if call is self._last_call or call is None or len(added) >= WRITE_AT or call.dispatched_s >= self._next_write_s:
            return False
        array_type, plain_names, usual, form = self._array_type, self._plain_names, self._alike.usual, 0
        for name, value in values.items():
            kind = type(value)
            if kind is array_type:
                aval = value.aval
                if aval is usual:
                    form = ONLY_REPORT if value is call.report else 0
                elif id(aval) not in self._known:
                    return False
            elif kind is not float:
                return False
            if name not in plain_names:
                return False
        added.append((values, step, epoch, "train", call, form if len(values) == 1 else 0))
        self._last_call = call
        return True

    def _form(self, values: Mapping[str, Any], mode: str, call: CallRecord | None) -> int:
        """What kind of row values are that are not for each step of a call."""
        if mode != "train" or call is None or len(values) != 1:
            return 0
        value, usual = next(iter(values.values())), self._alike.usual
        is_usual = usual is not None and getattr(value, "aval", None) is usual
        return ONLY_REPORT if value is call.report and is_usual else 0

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values as they are now, for `add` to be called later; raises what it would raise."""
        return {name: self._checked(name, value) for name, value in _flat(values, "")}

    def _checked(self, name: str, value: Any) -> Any:
        """A value that can be read as a number once it is there."""
        kind = type(value)
        if name.removeprefix("train/") == OWN_NAME:
            raise MetricError(f"run.log: {name!r} is what the run measures itself; call yours something else")
        if kind in _NUMBERS or isinstance(value, Decimal | Fraction):
            return _to_float(name, value)
        if kind is self._array_type and id(value.aval) in self._known:
            return value
        if isinstance(value, jax.Array):
            if isinstance(value, Tracer):
                raise MetricError(
                    f"run.log: {name!r} is being traced by JAX, so it has no value; return it from the jitted "
                    "function, and log what the call gives"
                )
            if value.size != 1 or not is_number(value.dtype):
                raise _not_a_number(name, f"an array of shape {value.shape} and type {value.dtype}")
            self._know(value)
            if value.dtype == np.float32 and jax.default_backend() == "cpu":
                self._alike.usual = value.aval
            return value
        if _is_torch(value):
            if value.numel() != 1:
                raise _not_a_number(name, f"a tensor of shape {tuple(value.shape)}")
            # As it is now: it may be changed in place. Without its graph, which a loss would keep.
            return _TorchValue(value.detach().clone()) if value.is_cuda else float(value.item())
        try:
            array = np.asarray(value)
            if array.size != 1 or not is_number(array.dtype):
                raise TypeError
            return float(array.item())
        except (TypeError, ValueError):
            raise _not_a_number(name, "None" if value is None else f"{value!r}, {a_type(value)}") from None

    def _know(self, array: jax.Array) -> None:
        """Remember that arrays such as this one are numbers."""
        if len(self._known) >= MAX_KNOWN or self._array_type is not type(array):
            self._known.clear()
        self._array_type = type(array)
        self._known[id(array.aval)] = array.aval

    def _build_rows(self) -> None:
        """Make rows of what was logged: one for all that has the same step and mode."""
        opened, rows = self._open, self._rows
        for added in self._added:
            mode = added[3]
            row = opened.get(mode)
            if row is not None:
                if row[1] == added[1]:
                    row[0].update(added[0])
                    opened[mode] = (*row[:5], PER_STEP if PER_STEP in (row[5], added[5]) else 0)
                    continue
                rows.append(row)
            opened[mode] = added
        self._added.clear()

    def write(self) -> None:
        """Write the rows whose values are there, in order, up to the first whose are not."""
        self._next_write_s = self._now() + WRITE_EVERY_S
        self._build_rows()
        if not self._rows:
            return
        self._settle_calls()
        written: list[TrainRow] = []
        while rows := self._rows:
            columns, ended_s = self._alike.read(rows)
            if len(ended_s) >= MIN_ALIKE:
                self._write_train(written)
                self._write_columns(columns, ended_s)
            elif ended_s:
                written += ((*row, end_s) for row, end_s in zip(columns.rows(), ended_s, strict=True))
            elif self._read(rows[0]):
                self._write_one(rows[0], written)
            else:
                break
            del rows[: len(ended_s) or 1]
        self._write_train(written)
        if len(self._rows) > MAX_ROWS:
            del self._rows[0]
            self._say_once(
                f"run.log: the device is more than {MAX_ROWS} rows behind; the oldest are dropped. Log less often with "
                "every=N"
            )

    def finish(self) -> None:
        """Wait for all values, and write them."""
        self._build_rows()
        self._rows.extend(sorted(self._open.values(), key=lambda row: row[1]))
        self._open.clear()
        for row in self._rows:
            for name, value in list(row[0].items()):
                try:
                    if type(value) is not float:
                        value.block_until_ready()
                except Exception as error:
                    self._drop(row, name, error)
        self.write()

    def _read(self, row: WaitingRow) -> bool:
        """Put numbers in the place of values that are there, without those that cannot be read; whether all are."""
        for name, value in list(row[0].items()):
            try:
                if type(value) is not float:
                    if not is_ready(value):
                        return False
                    is_one = not isinstance(value, ValuesPerStep | NumbersPerStep)
                    row[0][name] = float(asarray(value).item()) if is_one else value.read()
            except Exception as error:
                self._drop(row, name, error)
        return True

    def _drop(self, row: WaitingRow, name: str, error: Exception) -> None:
        row[0].pop(name, None)
        why = "it was donated to a later call before it was there; log a value that no call is given"
        is_donated = "deleted" in str(error)
        self._say_once(f"run.log: {name!r} could not be read: {why if is_donated else error}")

    def _write_one(self, row: WaitingRow, written: list[TrainRow]) -> None:
        """Write a row that was read, behind those that wait to be written; one of training waits as well."""
        values, step, epoch, mode, call, _ = row
        if not values:
            return
        is_seen = call is not None and call.completed_s == call.completed_s  # else it is not a number
        ended_s = call.completed_s if call is not None and is_seen else self._now()
        if mode != "train":
            self._write_train(written)
            self._write_other(row)
        elif any(isinstance(value, NumbersPerStep) for value in values.values()):
            began_s = call.began_s if call is not None and is_seen else ended_s
            self._write_train(written)
            since_s = max(began_s, self._logger.last_step_time or began_s) if is_seen else ended_s
            self._write_train(rows_per_step(values, step, epoch, ended_s, since_s))
        else:
            written.append((values, step, epoch, ended_s))

    def _write_other(self, row: WaitingRow) -> None:
        values, step, epoch, mode, *_ = row
        logger, before = self._logger, self._logger.epoch
        logger.epoch = epoch
        try:
            logger.log_host_metrics(values, step, mode)
        finally:
            logger.epoch = before

    def _write_train(self, rows: list[TrainRow]) -> None:
        """Write rows of training, all at once, and forget them."""
        if rows:
            self.latest = rows[-1][0]
            self._log_train(lambda: self._logger.log_rows(rows), lambda: rows)
            rows.clear()

    def _write_columns(self, columns: MetricColumns, ended_s: list[float]) -> None:
        """Write rows of training that have the same metrics."""
        self.latest = dict(zip(columns.names, columns.flat[-len(columns.names) :], strict=True))
        self._log_train(lambda: self._logger.log_columns(columns, ended_s), columns.rows)

    def _log_train(self, log: Callable[[], None], rows: Callable[[], Iterable[TrainRow | MetricRow]]) -> None:
        """Log rows of training, and write down the first value that is not finite."""
        logger, had_nans = self._logger, self._logger.found_nans
        log()
        if had_nans or not logger.found_nans:
            return
        for values, step, *_ in rows():
            if bad := {name: value for name, value in values.items() if not math.isfinite(value)}:
                logger.report_non_finite(bad, step)
                return


class _TorchValue:
    """A number of PyTorch, which a GPU may still be computing."""

    def __init__(self, tensor: Any):
        self._tensor = tensor
        self._event = None
        if tensor.is_cuda:
            torch = sys.modules["torch"]
            self._event = torch.cuda.current_stream(tensor.device).record_event()

    def is_ready(self) -> bool:
        return self._event is None or self._event.query()

    def block_until_ready(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        del dtype, copy
        return np.asarray(self._tensor.item())


def is_of_training(values: Any, mode: str) -> bool:
    """Whether values are those of a training step.

    Args:
        values: What is logged, by name.
        mode: What it is logged under if the names do not say otherwise.
    """
    stages = (MODES.get(str(name).partition("/")[0], mode) for name in values)
    return all(stage == "train" for stage in stages)


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise MetricError(f"run.log: expected names that are strings, such as 'loss', got {name!r}")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _to_float(name: str, value: float | Decimal | Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        raise MetricError(f"run.log: {name!r} is a number that no float can hold; log its logarithm") from None


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _not_a_number(name: str, what: str) -> MetricError:
    return MetricError(
        f"run.log: {name!r} is {what}, which is not one number; log a scalar, such as its mean, or use run.logger for "
        "images, text and histograms"
    )


def checked_number(value: Any, name: str, least: int) -> int:
    """A number of steps.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(value, jax.Array):
        raise ConfigError(
            f"run.log: {name}={value!r} is on a device, and reading it would wait; leave it out, since the run counts "
            "steps itself, or give a number of your own"
        )
    if not isinstance(value, int | np.integer) or not least <= value < MAX_STEP:
        raise ConfigError(f"run.log: {name}={value!r}: expected a whole number of steps, {least} or more")
    return int(value)
