"""Losses and metrics of two runs: last, best, at equal steps and at equal time.

Nothing is interpolated: at a step or a time, a run has the last value that it logged by then. If two runs log their
training at different intervals, means over equally many steps are compared, since a mean over more steps varies less.
One run of each does not show how much they would differ by chance, so there are no confidence intervals.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from trackside.compare.metric_series import MetricSeries, MetricValue
from trackside.compare.sides import Side
from trackside.monitor import Mode, Monitor, direction_of
from trackside.runs.best_metric import choose_metric, is_result
from trackside.runs.metric_curves import Curve, curves_by_metric
from trackside.text import duration

Better = Literal["before", "after", "neither"]

_KINDS = {"_mean": "", "_single": "_single", "_max": "_max"}
"""Log modes by the end of a column's name, and what a label has of them."""


@dataclass(frozen=True)
class MetricPair:
    """A metric in both runs. None where a run has no value."""

    before: MetricValue | None
    after: MetricValue | None

    @property
    def change(self) -> float | None:
        """How much more the second run has; None unless both are finite."""
        values = [None if one is None else one.value for one in (self.before, self.after)]
        change = None if values[0] is None or values[1] is None else values[1] - values[0]
        return change if change is not None and math.isfinite(change) else None

    @property
    def relative_change(self) -> float | None:
        """`change` as a share of the size of the first run's value; None where that is nothing."""
        change = self.change
        if change is None or self.before is None or not self.before.value:
            return None
        share = change / abs(self.before.value)
        return share if math.isfinite(share) else None

    def better(self, direction: Mode) -> Better | None:
        """Which run has the better value; a finite one beats one that is not. None unless both have one.

        Args:
            direction: Whether lower or higher is better.
        """
        if self.before is None or self.after is None:
            return None
        monitor = Monitor("metric", direction)
        first, second = (monitor.rank(one.value) for one in (self.before, self.after))
        return "neither" if first == second else "before" if first < second else "after"


@dataclass(frozen=True)
class MetricChange:
    """A metric in two runs."""

    label: str
    """As people write it: `val_loss`."""
    direction: Mode
    """Whether lower (`min`) or higher (`max`) is better: as a callback monitors it, or else judging by the name."""
    is_judged: bool
    """Whether a run is judged by it."""
    num_mean_steps: int | None
    """For a mean over steps of training, over how many in both runs; None for other values."""
    last: MetricPair
    best: MetricPair
    equal_step: int | None
    """The last step up to which both runs have a value; None if one has none at all."""
    at_step: MetricPair
    """The last values up to that step."""
    equal_time_s: float | None
    """The longest time since the start up to which both runs have a value."""
    at_time: MetricPair
    """The last values up to that time."""
    reached: MetricPair = MetricPair(None, None)
    """The first values that are as good as the worse of the two best ones: how soon each run got there."""

    def titled_pairs(self) -> Iterator[tuple[str, MetricPair]]:
        """What to show of it, each with its title; values at an equal step or time only if they are not the last."""
        yield "best", self.best
        yield "last", self.last
        if self.equal_step is not None and self.at_step != self.last:
            yield f"by step {self.equal_step:,}", self.at_step
        if self.equal_time_s is not None and self.at_time != self.last:
            yield f"in {duration(self.equal_time_s)}", self.at_time

    @property
    def reached_value(self) -> float | None:
        """The value that both runs reached: the worse of the two best ones."""
        values = [one.value for one in (self.best.before, self.best.after) if one is not None and one.value is not None]
        return max(values, key=Monitor(self.label, self.direction).rank) if len(values) == 2 else None

    @property
    def reach_time_change(self) -> float | None:
        """How much longer the second run took to reach it, as a share of the first run's time."""
        first, second = self.reached.before, self.reached.after
        return None if first is None or second is None or not first.time_s else second.time_s / first.time_s - 1.0

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        compared = ("last", "best", "at_step", "at_time")
        pairs = {name: self._pair(getattr(self, name)) for name in compared}
        return {**asdict(self), **pairs, "reached_value": self.reached_value}

    def _pair(self, pair: MetricPair) -> dict[str, Any]:
        return {
            **asdict(pair),
            "change": pair.change,
            "relative_change": pair.relative_change,
            "better": pair.better(self.direction),
        }


def metric_changes(before: Side, after: Side) -> tuple[MetricChange, ...]:
    """The losses and metrics of two runs: those that they are judged by first, then validation, then training."""
    first, second = _comparable(before), _comparable(after)
    directions = _judged(before) | _judged(after)
    found = []
    for key in dict.fromkeys((*first, *second)):
        logged = first.get(key, {}), second.get(key, {})
        kind = _shared_kind([one for one in logged if one])
        curves = [one[kind] for one in logged if kind in one]
        pair = _SeriesPair(*(_series(side, one.get(kind)) for side, one in zip((before, after), logged, strict=True)))
        found.append(_change(_label(key, kind), pair, curves, directions, is_mean=not kind))
    return tuple(sorted(found, key=_order))


def _series(side: Side, curve: Curve | None) -> MetricSeries | None:
    return None if curve is None else MetricSeries.of(side, curve)


_Key = tuple[str, str, str]
"""Stage, data set and metric."""


def _comparable(side: Side) -> dict[_Key, dict[str, Curve]]:
    """The curves that say how good the model is, by metric and then by how they were logged."""
    found: dict[_Key, dict[str, Curve]] = {}
    for curves in curves_by_metric(side.metrics).values():
        for curve in curves:
            if is_result(curve.base) and not curve.name.endswith("_std"):
                kind = next((kind for suffix, kind in _KINDS.items() if curve.name.endswith(suffix)), "")
                found.setdefault((curve.stage, curve.data_set, curve.base), {}).setdefault(kind, curve)
    return found


def _shared_kind(logged: Sequence[Mapping[str, Curve]]) -> str:
    """The first way of logging that all have, or else the first that one has."""
    kinds = list(_KINDS.values())
    shared = (kind for kind in kinds if all(kind in one for one in logged))
    return next(shared, next(kind for kind in kinds if any(kind in one for one in logged)))


def _label(key: _Key, kind: str) -> str:
    return "_".join(part for part in key if part) + kind


def _judged(side: Side) -> dict[tuple[str, str], Mode]:
    """The column that a run is judged by, and in which direction."""
    chosen = choose_metric(side.config, {mode: table.names for mode, table in side.metrics.items()})
    return {} if chosen is None else {(chosen.mode, chosen.name): chosen.direction}


def _order(change: MetricChange) -> tuple[bool, bool, bool]:
    stage = change.label.partition("_")[0]
    return not change.is_judged, not stage.startswith("val"), stage != "train"


class _SeriesPair(NamedTuple):
    """A metric in both runs, of which one may not have it."""

    before: MetricSeries | None
    after: MetricSeries | None

    @property
    def known(self) -> list[MetricSeries]:
        return [one for one in self if one is not None]

    def values(self, of: Callable[[MetricSeries], MetricValue | None]) -> MetricPair:
        """A value of each run."""
        return MetricPair(*(None if one is None else of(one) for one in self))

    def averaged(self, num_steps: int) -> "_SeriesPair":
        """Both as means over this many steps."""
        return _SeriesPair(*(None if one is None else one.averaged(num_steps) for one in self))


def _change(
    label: str,
    pair: _SeriesPair,
    curves: Sequence[Curve],
    directions: Mapping[tuple[str, str], Mode],
    is_mean: bool,
) -> MetricChange:
    judged: list[Mode] = [directions[column] for one in curves if (column := (one.mode, one.name)) in directions]
    direction = judged[0] if judged else direction_of(curves[0].base)
    num_mean_steps = None
    if is_mean and all(curve.covers_interval for curve in curves):
        num_mean_steps = max(one.steps_per_row for one in pair.known)
        pair = pair.averaged(num_mean_steps)
    lasts = [one.last() for one in pair.known] if len(pair.known) == 2 else []
    step = min((one.step for one in lasts), default=None)
    time_s = min((one.time_s for one in lasts), default=None)
    compared = MetricChange(
        label=label,
        direction=direction,
        is_judged=bool(judged),
        num_mean_steps=num_mean_steps,
        last=pair.values(MetricSeries.last),
        best=pair.values(lambda one: one.best(direction)),
        equal_step=step,
        at_step=pair.values(lambda one: None if step is None else one.by_step(step)),
        equal_time_s=time_s,
        at_time=pair.values(lambda one: None if time_s is None else one.by_time(time_s)),
    )
    if (target := compared.reached_value) is None:
        return compared
    return replace(compared, reached=pair.values(lambda one: one.first_as_good(target, direction)))
