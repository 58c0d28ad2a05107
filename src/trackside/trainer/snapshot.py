"""A training as it is saved: trees of arrays, and a record of everything else that JSON can hold."""

import base64
import logging
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from trackside.errors import CheckpointError
from trackside.metrics import HostMetrics, MetricLayout
from trackside.metrics.row import MetricTotals
from trackside.trainer.checkpoint import CheckpointStore
from trackside.trainer.goal import Position
from trackside.trainer.legs import TrainingTime
from trackside.trainer.restore import check_same_form
from trackside.trainer.state import Carry

LOGGER = logging.getLogger(__name__)

# Arrays of the totals of an epoch or a log interval.
_TOTALS = ("last", "sum", "count", "max", "std_steps", "std_mean", "std_m2")


def to_trees(carry: Carry) -> dict[str, Any]:
    """The state as trees, one by one, so that parameters can be loaded without the rest."""
    return {
        "params": carry.params,
        "mutable_variables": carry.mutable_variables,
        "opt_state": carry.opt_state,
        "progress": {"step": carry.step, "rng": carry.rng},
    }


def to_record(position: Position, metrics: dict[str, float], rank: float | None, now_s: float) -> dict[str, Any]:
    """Where the training stands, beside its state.

    Args:
        position: The position, with all steps in flight settled.
        metrics: The metrics that go with the checkpoint.
        rank: How good the checkpoint is by what the callbacks watch, lower being better; None if they watch nothing.
        now_s: What the clock shows.
    """
    return {
        "rank": None if rank is None else _spelled(rank),
        "time": position.time.to_plain(now_s),
        "metrics": _spelled_all(metrics),
        "epoch": position.epoch,
        "epoch_start_step": position.epoch_start_step,
        "is_epoch_open": position.is_epoch_open,
        "best": {name: _spelled_all(values) for name, values in position.best.items()},
        "interval": _totals_to_plain(position.interval),
        "epoch_totals": _totals_to_plain(position.epoch_totals),
        "loaders": {"train": loader_position(position.batches)},
    }


def to_position(carry: Carry, record: dict[str, Any], layout: MetricLayout) -> Position:
    """The position that was saved."""
    return Position(
        carry,
        step=int(carry.step),
        time=TrainingTime.from_plain(record["time"]),
        epoch=record["epoch"],
        epoch_start_step=record["epoch_start_step"],
        is_epoch_open=record["is_epoch_open"],
        interval=_totals_from_plain(record["interval"], layout),
        epoch_totals=_totals_from_plain(record["epoch_totals"], layout),
        best={name: _read_all(values) for name, values in record["best"].items()},
        loader_position=decode_position(own_loaders(record).get("train")),
        is_restored=True,
    )


def saved_metrics(record: dict[str, Any]) -> dict[str, float]:
    """The metrics that went with a checkpoint."""
    return _read_all(record["metrics"])


def saved_rank(record: dict[str, Any]) -> float:
    """How good a checkpoint is, lower being better: by what the callbacks watched, or by its validation loss."""
    rank = record.get("rank")
    return validation_loss(saved_metrics(record)) if rank is None else float(rank)


def validation_loss(metrics: Mapping[str, float]) -> float:
    """The loss by which validations are compared: `loss`, or that of the first data set; infinite if not finite."""
    named = metrics.get("loss", next((value for name, value in metrics.items() if name.endswith("_loss")), math.inf))
    return named if math.isfinite(named) else math.inf


def load_state(
    store: CheckpointStore, step: int, carry: Carry, shardings: Carry, with_optimizer: bool
) -> dict[str, Any]:
    """The state of a verified step, laid out as the current one, which `check_form` says it fits."""
    wanted = _wanted(with_optimizer)
    trees, places = to_trees(carry), to_trees(shardings)
    abstract = {
        name: jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), trees[name], places[name]
        )
        for name in wanted
    }
    loaded = store.load(step, abstract)
    return {**loaded.pop("progress"), **loaded}


def check_form(store: CheckpointStore, step: int, carry: Carry, with_optimizer: bool) -> None:
    """Check that a saved step fits the current state.

    Raises:
        CheckpointError: The model has changed; every path that differs is named.
    """
    trees = to_trees(carry)
    for name in _wanted(with_optimizer):
        saved = store.shapes(step, name)
        check_same_form(name, trees[name], {} if saved is None else saved)  # a tree without leaves is not saved


def _wanted(with_optimizer: bool) -> list[str]:
    return ["params", "mutable_variables", "progress"] + (["opt_state"] if with_optimizer else [])


def loader_position(batches: Any) -> Any:
    """The position of a loader's iterator, if it has one: what JSON can hold of it."""
    if not callable(getattr(batches, "get_state", None)):
        return None
    state = batches.get_state()
    return {"bytes": base64.b64encode(state).decode()} if isinstance(state, bytes) else {"plain": state}


def own_loaders(record: dict[str, Any]) -> dict[str, Any]:
    """The saved positions of this process's loaders; none where another number of processes has saved them."""
    by_process = record.get("loaders_by_process", [record["loaders"]])
    if len(by_process) == jax.process_count():
        return by_process[jax.process_index()]
    if any(position is not None for loaders in by_process for position in loaders.values()):
        LOGGER.warning(
            "the checkpoint was saved by %d processes, and there are %d: the positions of their loaders do not fit",
            len(by_process),
            jax.process_count(),
        )
    return {}


def decode_position(saved: Any) -> Any:
    """A saved position as the loader gave it."""
    if saved is None:
        return None
    return base64.b64decode(saved["bytes"]) if "bytes" in saved else saved["plain"]


def _spelled_all(metrics: Mapping[str, Any]) -> dict[str, float | str]:
    return {name: _spelled(float(value)) for name, value in metrics.items()}


def _spelled(value: float) -> float | str:
    """A number as JSON can hold it, which has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)


def _read_all(metrics: Mapping[str, float | str]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _totals_to_plain(totals: MetricTotals | None) -> dict[str, Any] | None:
    if totals is None:
        return None
    metrics = totals.metrics
    arrays = {
        name: base64.b64encode(np.asarray(getattr(metrics, name), np.float64).tobytes()).decode() for name in _TOTALS
    }
    return {"num_steps": metrics.num_steps, "names": list(metrics.layout.names), **arrays}


def _totals_from_plain(saved: dict[str, Any] | None, layout: MetricLayout) -> MetricTotals | None:
    if saved is None or tuple(saved["names"]) != layout.names:
        return None  # the metrics have changed: start them anew
    metrics = HostMetrics(layout)
    metrics.num_steps = saved["num_steps"]
    for name in _TOTALS:
        array = np.frombuffer(base64.b64decode(saved[name]), np.float64)
        if array.shape != getattr(metrics, name).shape:
            raise CheckpointError(f"the saved metrics do not fit: {name} has {array.size} numbers")
        setattr(metrics, name, array.copy())
    return MetricTotals(layout, metrics)
