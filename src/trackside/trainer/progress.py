"""The progress of a training: everything that has to survive a kill, as items that save and restore themselves."""

import math
from collections.abc import Mapping
from typing import Any, SupportsFloat

import jax
import numpy as np

from trackside.measured_run.training_time import TrainingTime
from trackside.metric_columns import NamedNumbers
from trackside.metrics import HostMetrics, MetricLayout
from trackside.metrics.row import MetricTotals, RowReader
from trackside.trainer.cursor import Cursor
from trackside.trainer.init_state import FirstState
from trackside.trainer.steps_per_call import Program
from trackside.trainer.train_data import TrainData
from trackside.trainer.train_state import Carry


class Totals:
    """The metrics of training that were taken to the host: of the epoch, and since the last log row."""

    def __init__(self) -> None:
        self._interval: MetricTotals | None = None
        self._epoch: MetricTotals | None = None
        self._saved: Mapping[str, Any] = {}
        self._layout: MetricLayout | None = None
        self._read_row: RowReader | None = None

    def use_layout(self, layout: MetricLayout) -> None:
        """Say which metrics the step has. Totals of a training that had others are dropped."""
        if layout is self._layout:
            return
        self._layout, self._read_row = layout, RowReader(layout)
        saved, self._saved = self._saved, {}
        self._interval = _totals_from_plain(layout, saved.get("interval"))
        self._epoch = _totals_from_plain(layout, saved.get("epoch_totals"))

    def begin_epoch(self) -> None:
        """Nothing is known of the epoch that begins."""
        self._epoch = None

    def take_rows(self, vectors: np.ndarray) -> list[NamedNumbers]:
        """Take in the metrics of several rows, and give the numbers of each.

        Args:
            vectors: The packed metrics since the row before, or since settling, of each row.
        """
        assert self._read_row is not None
        self._epoch_totals().add_all(vectors)
        settled, self._interval = self._interval, None
        if settled is None:
            return self._read_row.read_all(vectors)
        settled.add(vectors[0])
        first = settled.compute()
        return [NamedNumbers(tuple(first), 1, list(first.values())), *self._read_row.read_all(vectors[1:])]

    def settle(self, vector: np.ndarray) -> None:
        """Take in the metrics since the last row, before the next row is due."""
        assert self._layout is not None
        self._epoch_totals().add(vector)
        if self._interval is None:
            self._interval = MetricTotals(self._layout)
        self._interval.add(vector)

    def last_step(self, vector: np.ndarray) -> dict[str, float]:
        """The metrics of the last step alone."""
        assert self._read_row is not None
        return self._read_row.last_step(vector)

    def epoch_metrics(self) -> dict[str, float]:
        """The metrics of the epoch so far."""
        return {} if self._epoch is None else self._epoch.compute()

    def epoch_sum(self, name: str) -> float:
        """The sum of a metric over the epoch so far; 0 if there is no such metric."""
        if self._epoch is None or self._layout is None or name not in self._layout.names:
            return 0.0
        return float(self._epoch.metrics.sum[self._layout.names.index(name)])

    def _epoch_totals(self) -> MetricTotals:
        if self._epoch is None:
            assert self._layout is not None
            self._epoch = MetricTotals(self._layout)
        return self._epoch

    def to_record(self) -> dict[str, Any]:
        """What is saved of them."""
        return {
            "interval": None if self._interval is None else self._interval.metrics.to_plain(),
            "epoch_totals": None if self._epoch is None else self._epoch.metrics.to_plain(),
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over saved ones, when `use_layout` says which metrics there are."""
        self._interval = self._epoch = self._layout = None
        self._saved = {name: record.get(name) for name in ("interval", "epoch_totals")}


def _totals_from_plain(layout: MetricLayout, plain: Mapping[str, Any] | None) -> MetricTotals | None:
    metrics = None if plain is None else HostMetrics.from_plain(layout, plain)
    return None if metrics is None else MetricTotals(layout, metrics)


class StageMetrics:
    """The last metrics of each stage, and those of the best validation so far."""

    def __init__(self) -> None:
        self.best: dict[str, dict[str, float]] = {}
        """`train` and `val` metrics of the best validation so far."""
        self._best_rank = math.inf
        self._latest: dict[str, tuple[int, dict[str, float]]] = {}

    def add(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Take note of the metrics of a stage, measured after a step."""
        self._latest[stage] = step, dict(metrics)

    def at(self, step: int) -> dict[str, dict[str, float]]:
        """The metrics by stage that were measured after this very step."""
        return {stage: metrics for stage, (at_step, metrics) in self._latest.items() if at_step == step}

    def latest(self, stage: str) -> dict[str, float]:
        """The last metrics of a stage."""
        return self._latest[stage][1] if stage in self._latest else {}

    def offer(self, train: Mapping[str, float], val: Mapping[str, float], rank: float) -> None:
        """Keep a validation if it is better than the best so far, or the first.

        Args:
            train: The metrics of training that go with it.
            val: Its own.
            rank: How good it is, lower being better.
        """
        if not self.best or rank < self._best_rank:
            self.best, self._best_rank = {"train": dict(train), "val": dict(val)}, rank

    def to_record(self) -> dict[str, Any]:
        """What is saved of them."""
        return {
            "best": {name: spell_all(values) for name, values in self.best.items()},
            "best_rank": spell(self._best_rank),
            "latest": {
                stage: {"step": step, "metrics": spell_all(_numbers(values))}
                for stage, (step, values) in self._latest.items()
            },
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over saved ones."""
        self.best = {name: read_all(values) for name, values in record["best"].items()}
        saved = record.get("best_rank")  # earlier versions ranked by the validation loss again
        loss = self.best.get("val", {}).get("loss", math.inf)
        self._best_rank = float(saved) if saved is not None else loss if math.isfinite(loss) else math.inf
        latest = record.get("latest", {})  # of earlier versions there is none
        self._latest = {stage: (one["step"], read_all(one["metrics"])) for stage, one in latest.items()}


class Progress:
    """Everything of a training that changes and has to survive a kill. One object for the life of a trainer.

    Args:
        first: The initial state, or what makes it when it is asked for.
    """

    def __init__(self, first: Carry | FirstState):
        if isinstance(first, FirstState):
            self.begin_at(first.form, 0)
            self._first = first
        else:
            self.begin_at(first, 0)

    @property
    def carry(self) -> Carry:
        """The state. A loader that asks for it while it makes a batch is known to follow the training."""
        self.data.note_look()
        self.make_first()
        return self.held

    @carry.setter
    def carry(self, carry: Carry) -> None:
        self.held = carry
        """The state, for the loop itself, which need not be told from a loader; its form before it is made."""
        self._first: FirstState | None = None

    @property
    def form(self) -> Carry:
        """The state, or what it looks like as long as it is not made."""
        return self.held

    @property
    def is_made(self) -> bool:
        """Whether there is a state."""
        return self._first is None

    def make_first(self) -> None:
        """Make the initial state, unless there is a state already."""
        if self._first is not None:
            self.carry = self._first.make()

    def with_fields(self, fields: Mapping[str, Any]) -> Carry:
        """The state with other fields. If nothing of the initial state is left in it, that need not be made.

        Args:
            fields: Their values by name.
        """
        kept = [getattr(self.form, name) for name in Carry._fields if name not in fields]
        return (self.carry if jax.tree.leaves(kept) else self.form)._replace(**fields)

    def begin_at(self, carry: Carry, step: int) -> None:
        """Be at a step of which nothing but the state is known."""
        self.carry = carry
        self.cursor = Cursor(step)
        self.totals = Totals()
        self.metrics = StageMetrics()
        self.data = TrainData()
        self.time = TrainingTime()
        self.lent_from: tuple[int, int] | None = None
        """Step and epoch of the weights that are held in place of the current ones; see `best_model`."""
        self.start_step = step
        """The step at which this trainer took over."""
        self.step_program: Program | None = None
        """In which program the steps so far ran; None before any. Another may differ in the last bit of a result."""

    def to_record(self, now_s: float) -> dict[str, Any]:
        """What is saved in addition to the state. Nothing in it changes afterwards.

        Args:
            now_s: What the clock shows.
        """
        return {
            "time": self.time.to_plain(now_s),
            **self.cursor.to_record(),
            **self.totals.to_record(),
            **self.metrics.to_record(),
            "step_program": self.step_program,
            "loaders": {"train": self.data.position(self.cursor.step)},
        }

    def restore(self, carry: Carry, record: Mapping[str, Any], loader_position: Any) -> None:
        """Be where a saved training was.

        Args:
            carry: The saved state.
            record: What `to_record` gave.
            loader_position: Where this process's training loader was.
        """
        self.carry = carry
        self.cursor.restore(dict(record), int(carry.step))
        self.totals.restore(record)
        self.metrics.restore(record)
        self.data.restore(loader_position)
        self.time = TrainingTime.from_plain(record["time"])
        self.start_step = self.cursor.step
        self.step_program = record.get("step_program", "plain")  # earlier versions had no other


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that are numbers. Hooks may add others, which nobody can read back."""
    return {name: value for name, value in metrics.items() if np.ndim(value) == 0 and isinstance(value, SupportsFloat)}


def spell(value: float) -> float | str:
    """A number as JSON can hold it, which has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)


def spell_all(metrics: Mapping[str, Any]) -> dict[str, float | str]:
    """Numbers by name as JSON can hold them."""
    return {name: spell(float(value)) for name, value in metrics.items()}


def read_all(metrics: Mapping[str, float | str]) -> dict[str, float]:
    """Back from `spell_all`."""
    return {name: float(value) for name, value in metrics.items()}
