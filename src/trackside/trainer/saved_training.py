"""A training as it is saved: trees of arrays, and a record of everything else that JSON can hold."""

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from trackside.callbacks import ModelCheckpoint
from trackside.errors import CheckpointError
from trackside.monitor import Monitor, validation_loss
from trackside.processes import Processes
from trackside.trainer.batch import DataloaderModule
from trackside.trainer.checkpoint_store import CheckpointStore
from trackside.trainer.loaders import positions_of
from trackside.trainer.progress import read_all, spell_all
from trackside.trainer.train_state import Carry
from trackside.tree_paths import leaf_path

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule

LOGGER = logging.getLogger(__name__)

LOSS_SCALE = "loss_scale"


class MisfitError(CheckpointError):
    """A saved state does not have the form of the current one."""


# --- the state --------------------------------------------------------------------------------------------------------


def to_trees(carry: Carry) -> dict[str, Any]:
    """The state as trees, one by one, so that parameters can be loaded without the rest."""
    trees = {
        "params": carry.params,
        "mutable_variables": jax.tree.map(_without_type, carry.mutable_variables),
        "opt_state": carry.opt_state,
        "progress": {"step": carry.step, "rng": carry.rng},
    }
    return trees if carry.loss_scale is None else {**trees, LOSS_SCALE: carry.loss_scale}


_KEY_KINDS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
"""JAX's generators by the types of their keys: a form without values does not say it otherwise."""


def _without_type(leaf: Any) -> Any:
    """A key's raw data, as files hold it; anything else as it is."""
    if not _is_key(leaf):
        return leaf
    return jax.random.key_data(leaf) if isinstance(leaf, jax.Array) else jax.eval_shape(jax.random.key_data, leaf)


def _with_type(current: Any, saved: Any) -> Any:
    """The raw data of a key as a key again; anything else as it is."""
    if not _is_key(current) or _is_key(saved):
        return saved
    return jax.random.wrap_key_data(saved, impl=_KEY_KINDS.get(str(current.dtype)))


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def load_state(
    store: CheckpointStore, step: int, carry: Carry, shardings: Carry, with_optimizer: bool
) -> dict[str, Any]:
    """The state of a verified step, laid out as the current one, which `check_form` says it fits."""
    trees, places = to_trees(carry), to_trees(shardings)
    abstract = {
        name: jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), trees[name], places[name]
        )
        for name in [*_wanted(with_optimizer), *_loss_scale_of(store, step, carry, with_optimizer)]
    }
    loaded = store.load(step, abstract)
    others = jax.tree.map(_with_type, carry.mutable_variables, loaded["mutable_variables"])
    return {**loaded.pop("progress"), **loaded, "mutable_variables": others}


def check_form(store: CheckpointStore, step: int, carry: Carry, with_optimizer: bool) -> None:
    """Check that a saved step fits the current state.

    Raises:
        CheckpointError: The model has changed; every path that differs is named.
    """
    trees, saved = to_trees(carry), store.shapes(step)
    for name in _wanted(with_optimizer):
        check_same_form(name, trees[name], saved.get(name, {}))  # a tree without leaves is not saved


def _loss_scale_of(store: CheckpointStore, step: int, carry: Carry, with_optimizer: bool) -> list[str]:
    """The scale of the loss, if there is one and it was saved; otherwise it starts again."""
    is_saved = carry.loss_scale is not None and with_optimizer and LOSS_SCALE in store.shapes(step)
    return [LOSS_SCALE] if is_saved else []


def _wanted(with_optimizer: bool) -> list[str]:
    return ["params", "mutable_variables", "progress"] + (["opt_state"] if with_optimizer else [])


def restore_carry(carry: Carry, shardings: Carry, state_dict: dict[str, Any], is_pruned: bool) -> Carry:
    """A carry with what a saved state holds in place of what it had.

    Args:
        carry: The current state.
        shardings: How its arrays are spread over the mesh.
        state_dict: The saved state: `params`, and optionally `step`, `opt_state`, `mutable_variables`, `rng`.
        is_pruned: Whether the current state has no optimizer, so that a saved one is left aside.

    Returns:
        The new carry. Saved arrays that are on the mesh already are part of it and not copied.
    """
    if "params" not in state_dict:
        raise CheckpointError(f"state_dict: expected the key 'params', got {sorted(state_dict)}")
    new = {"params": state_dict["params"]}
    new.update({name: state_dict[name] for name in ("mutable_variables", "rng", "step") if name in state_dict})
    if "opt_state" in state_dict and not is_pruned:
        new["opt_state"] = state_dict["opt_state"]
    if new.get("rng") is not None and jax.numpy.issubdtype(new["rng"].dtype, jax.dtypes.prng_key):
        new["rng"] = jax.random.key_data(new["rng"])
    if "step" in new:
        new["step"] = jax.numpy.asarray(new["step"], jax.numpy.int32)
    if "mutable_variables" in new:
        new["mutable_variables"] = new["mutable_variables"] or {}
    for name, value in new.items():
        current = getattr(carry, name)
        check_same_form(name, *(jax.tree.map(_without_type, tree) for tree in (current, value)))
        typed = jax.tree.map(_with_type, current, _like(current, value))
        new[name] = jax.device_put(typed, getattr(shardings, name))
    return carry._replace(**new)


def _like(current: Any, saved: Any) -> Any:
    """The saved leaves in the containers of the current tree.

    They are found by path: a saved tree may hold a named tuple as a dict, which has another order.
    """
    by_path = {leaf_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(saved)}
    return jax.tree_util.tree_map_with_path(lambda path, _: by_path[leaf_path(path)], current)


def check_same_form(name: str, current: Any, saved: Any) -> None:
    """Raise if a saved tree does not fit, naming every path that differs and both shapes."""
    now, then = _shapes(current), _shapes(saved)
    differences = [
        f"{path or name}: {then.get(path, 'missing')} in the saved state, {now.get(path, 'not there')} in the model"
        for path in sorted(now.keys() | then.keys())
        if now.get(path) != then.get(path)
    ]
    if differences:
        shown = "\n  ".join(differences[:20])
        more = f"\n  and {len(differences) - 20} more" if len(differences) > 20 else ""
        raise MisfitError(f"the saved {name} do not fit the model:\n  {shown}{more}")


def _shapes(tree: Any) -> dict[str, str]:
    return {
        leaf_path(path): f"{jax.numpy.result_type(leaf)}{list(jax.numpy.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


# --- the record -------------------------------------------------------------------------------------------------------


def build_record(trainer: "TrainerModule", metrics: Mapping[str, float] | None) -> dict[str, Any]:
    """What is saved in addition to the state. Nothing in it changes afterwards.

    Args:
        trainer: The trainer, with all steps in flight settled.
        metrics: Metrics of a validation that go with the step; those that were measured after it if left out.
    """
    progress, dataset = trainer.progress, trainer.dataset or DataloaderModule()
    stages = progress.metrics.at(trainer.global_step)
    if metrics is not None:
        stages = {"train": dict(metrics), "val": dict(metrics)}  # of whichever stage is asked for
    if progress.time.is_running:  # afterwards it has them
        progress.time.in_steps_s = trainer.ledger.totals().in_steps_s
    record = {
        **progress.to_record(trainer.clock.now()),
        **metrics_to_record(stages, trainer.checkpoint_callback),
        "configs": trainer.run_configs.to_plain(),
        "callbacks": trainer.callbacks.state_dict(),
    }
    record["loaders"].update(positions_of({"val": dataset.val_dataloader, "test": dataset.test_dataloader}))
    return record


def metrics_to_record(stages: Mapping[str, Mapping[str, float]], keeper: ModelCheckpoint | None) -> dict[str, Any]:
    """What is saved of the metrics of a step.

    Args:
        stages: Its metrics by stage.
        keeper: Who keeps checkpoints, and knows by which metric; None if nothing is monitored.
    """
    last = stages.get("val", stages.get("train", {}))
    rank = math.inf if keeper is None else keeper.rank(stages)
    monitor = None if keeper is None else keeper.monitor
    return {
        "stages": {stage: spell_all(metrics) for stage, metrics in stages.items()},
        "metrics": spell_all(last),  # what earlier versions read
        "rank": rank if math.isfinite(rank) else None,
        "monitor": None
        if keeper is None or monitor is None
        else {"name": monitor.name, "mode": monitor.mode, "stage": keeper.stage},
    }


def saved_stages(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The metrics of a saved step by stage."""
    if "stages" in record:
        return {stage: read_all(metrics) for stage, metrics in record["stages"].items()}
    metrics = read_all(record["metrics"])  # by an earlier version, which kept one set of them
    return {"train" if "train_time" in metrics else "val": metrics} if metrics else {}


def saved_ranks(records: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """How good saved steps are, lower being better: by what was monitored last, or else by their validation loss.

    A step at which the metric was not measured, or was not finite, is infinitely bad.

    Args:
        records: The records of the steps.
    """
    monitored = next(
        (one for _, record in sorted(records.items(), reverse=True) if (one := record.get("monitor"))), None
    )
    if monitored is None:
        return {step: _rank_without_monitor(record) for step, record in records.items()}
    monitor, stage = Monitor(monitored["name"], monitored["mode"]), monitored["stage"]
    return {
        step: monitor.rank(monitor.find(saved_stages(record).get(stage, {}), stage)) for step, record in records.items()
    }


def _rank_without_monitor(record: Mapping[str, Any]) -> float:
    rank = record.get("rank")  # earlier versions saved it without the monitor
    return validation_loss(saved_stages(record).get("val", {})) if rank is None else float(rank)


def own_loaders(record: Mapping[str, Any], processes: Processes) -> dict[str, Any]:
    """The saved positions of this process's loaders; none where another number of processes has saved them."""
    by_process = record.get("loaders_by_process", [record["loaders"]])
    if len(by_process) == processes.count:
        return by_process[processes.index]
    if any(position is not None for loaders in by_process for position in loaders.values()):
        LOGGER.warning(
            "the checkpoint was saved by %d processes, and there are %d: the positions of their loaders do not fit",
            len(by_process),
            processes.count,
        )
    return {}
