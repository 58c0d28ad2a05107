"""The curves of a run's metrics: which belong to one metric, and which a name means.

Training and validation of a metric, its log modes, and the data sets of a validation on several belong together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from trackside.errors import ConfigError
from trackside.monitor import Monitor, Stage
from trackside.runs.best_metric import TRAIN_EPOCH_MODE
from trackside.runs.metric_table import MetricTable

OWN_MODES = frozenset({"time", "profile", "memory"})
"""Modes whose rows measure the training and not the model."""
_NOT_METRICS = frozenset({"epoch", "step_time", "epoch_time", "train_time"})
_SUFFIXES = ("_mean", "_single", "_max")
"""Log modes on the scale of the metric itself; its deviation is another metric."""
_INTERVAL_SUFFIXES = ("_mean", "_max", "_std")
"""Log modes whose value is over all steps since the row before."""
_MAX_LISTED = 20
_LOG_FACTOR = 20
"""Above this ratio of the largest value to the median, a logarithmic axis shows more."""


@dataclass(frozen=True)
class Curve:
    """One column of a run's metrics."""

    mode: str
    """The mode in which it was logged, such as `train` or `val`."""
    name: str
    """The name of its column, such as `loss_mean`."""
    base: str
    """The metric that it belongs to, such as `loss`."""
    data_set: str = ""
    """Which of several data sets it was evaluated on."""

    @property
    def label(self) -> str:
        """As people write it: `val_loss`, `train_loss`, `train_loss_max`, `val_a_loss`."""
        return f"{self.stage}_{self.name.removesuffix('_mean')}"

    @property
    def path(self) -> str:
        """The same with a slash, as `Run.plot` takes it: `val/loss`."""
        return f"{self.stage}/{self.name.removesuffix('_mean')}"

    @property
    def stage(self) -> str:
        """The mode, without telling epochs of training from steps."""
        return "train" if self.mode == TRAIN_EPOCH_MODE else self.mode

    @property
    def title(self) -> str:
        """What tells it from other curves of the metric: `train`, `val`, `train max`, `val a`."""
        how = next((suffix for suffix in _SUFFIXES if self.name.endswith(suffix)), "")
        shown = [self.mode, self.data_set, "" if how == "_mean" else how.strip("_")]
        return " ".join(part for part in shown if part)

    @property
    def covers_interval(self) -> bool:
        """Whether a value is of all steps since the row before, and not of one moment."""
        if self.mode == TRAIN_EPOCH_MODE:
            return True
        return self.mode == "train" and self.name.endswith(_INTERVAL_SUFFIXES)


def curves_by_metric(metrics: Mapping[str, MetricTable]) -> dict[str, list[Curve]]:
    """All curves with a finite value, by the metric that they belong to; losses first, norms last.

    Args:
        metrics: `Run.metrics`.
    """
    groups: dict[str, list[Curve]] = {}
    for curve in _curves(metrics):
        if np.isfinite(metrics[curve.mode][curve.name]).any():
            groups.setdefault(curve.base, []).append(curve)
    for curves in groups.values():
        if any(curve.mode == "train" for curve in curves):  # the same values again, an epoch at a time
            curves[:] = [curve for curve in curves if curve.mode != TRAIN_EPOCH_MODE]
    return dict(sorted(groups.items(), key=lambda item: _rank(item[0])))


def is_flattened(values: np.ndarray) -> bool:
    """Whether the largest values, mostly those of the first rows, would flatten all others on a linear axis.

    Args:
        values: Those of all curves of a chart. With one below zero the answer is no: it has no logarithm.
    """
    finite = values[np.isfinite(values)]
    # Sorted, not averaged: the largest numbers that there are would overflow.
    return bool(len(finite) and finite.min() > 0 and finite.max() / _LOG_FACTOR > np.sort(finite)[len(finite) // 2])


def find_curves(metrics: Mapping[str, MetricTable], name: str) -> list[Curve]:
    """The curves that a name means.

    Args:
        metrics: `Run.metrics`.
        name: A metric (`loss`: training and validation), one of its stages (`val/loss`, `val_loss`, `test/loss`), or a
            column as it was logged (`loss_max`).

    Raises:
        ConfigError: The run has no such metric; the message has those that it has.
    """
    groups = curves_by_metric(metrics)
    if name in groups:
        return groups[name]
    known = [curve for curves in groups.values() for curve in curves]
    found = _of_a_stage(known, name) or [curve for curve in known if curve.name == name]
    if not found:
        raise _unknown(name, groups)
    return found


def _of_a_stage(known: list[Curve], name: str) -> list[Curve]:
    """The curves of a name that begins with a stage: the column that a monitor of this name is, or all data sets."""
    for stage in dict.fromkeys(curve.stage for curve in known):
        if not name.startswith((f"{stage}/", f"{stage}_")):
            continue
        own = [curve for curve in known if curve.stage == stage]
        column = _monitored_column(name, stage, own)
        rest = name[len(stage) + 1 :]
        if found := [curve for curve in own if curve.name in (column, rest)] or [c for c in own if c.base == rest]:
            return found
    return []


def _monitored_column(name: str, stage: str, own: list[Curve]) -> str | None:
    stages: dict[str, Stage] = {"train": "train", "val": "val"}
    if stage not in stages:
        return None
    return Monitor(name).find_name([curve.name for curve in own], stages[stage])


def _unknown(name: str, groups: Mapping[str, list[Curve]]) -> ConfigError:
    from trackside.config.wording import did_you_mean, listed  # here: most readers never need the parser of configs

    paths = [curve.path for curves in groups.values() for curve in curves]
    names = list(dict.fromkeys([*groups, *paths]))
    more = f" and {len(groups) - _MAX_LISTED} more" if len(groups) > _MAX_LISTED else ""
    return ConfigError(
        f"name: expected a metric of the run, got {name!r}; it has {listed(list(groups)[:_MAX_LISTED])}{more}."
        f"{did_you_mean(name, names)}"
    )


def _curves(metrics: Mapping[str, MetricTable]) -> Iterable[Curve]:
    training = {_base(name) for name in _names(metrics, "train", TRAIN_EPOCH_MODE)}
    for mode in metrics:
        if mode in OWN_MODES:
            continue
        names = _names(metrics, mode)
        data_sets = [] if mode in ("train", TRAIN_EPOCH_MODE) else _data_sets(names, training)
        for name in names:
            data_set = next((one for one in data_sets if name.startswith(f"{one}_")), "")
            yield Curve(mode, name, _base(name[len(data_set) + 1 :] if data_set else name), data_set)


def _names(metrics: Mapping[str, MetricTable], *modes: str) -> list[str]:
    return [name for mode in modes if mode in metrics for name in metrics[mode].names if name not in _NOT_METRICS]


def _data_sets(names: list[str], training: set[str]) -> list[str]:
    """The data sets of a validation on several, whose names come before those of all metrics.

    They are known by their losses. A loss that training has under the same name is one of several terms instead.
    """
    if "loss" in names:
        return []
    found = [name.removesuffix("_loss") for name in names if name.endswith("_loss") and name not in training]
    return sorted(found, key=len, reverse=True)  # the data set `a_b` before `a`


def _base(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def _rank(base: str) -> tuple[bool, bool, bool]:
    """What people look at first comes first; otherwise the order in which it was logged."""
    return base != "loss", "loss" not in base, base.startswith(("grad_norm", "param_norm"))
