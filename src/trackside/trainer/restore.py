"""Putting saved states back: into the trainer and into the loaders."""

from typing import Any

import jax
import jax.numpy as jnp

from trackside.errors import CheckpointError, DataError
from trackside.trainer.state import Carry


def restore_carry(carry: Carry, shardings: Carry, state_dict: dict[str, Any], is_pruned: bool) -> Carry:
    """A carry with what a saved state holds in place of what it had.

    Args:
        carry: The current state.
        shardings: How its arrays lie on the mesh.
        state_dict: The saved state: `params`, and optionally `step`, `opt_state`, `mutable_variables`, `rng`.
        is_pruned: Whether the current state has no optimizer, so that a saved one is left aside.

    Returns:
        The new carry. Saved arrays that lie on the mesh already are part of it and not copied.
    """
    if "params" not in state_dict:
        raise CheckpointError(f"state_dict: expected the key 'params', got {sorted(state_dict)}")
    new = {"params": state_dict["params"]}
    new.update({name: state_dict[name] for name in ("mutable_variables", "rng", "step") if name in state_dict})
    if "opt_state" in state_dict and not is_pruned:
        new["opt_state"] = state_dict["opt_state"]
    if new.get("rng") is not None and jnp.issubdtype(new["rng"].dtype, jax.dtypes.prng_key):
        new["rng"] = jax.random.key_data(new["rng"])
    if "step" in new:
        new["step"] = jnp.asarray(new["step"], jnp.int32)
    if "mutable_variables" in new:
        new["mutable_variables"] = new["mutable_variables"] or {}
    for name, value in new.items():
        check_same_form(name, getattr(carry, name), value)
        new[name] = jax.device_put(_like(getattr(carry, name), value), getattr(shardings, name))
    return carry._replace(**new)


def _like(current: Any, saved: Any) -> Any:
    """The saved leaves in the containers of the current tree.

    They are found by path: a saved tree may hold a named tuple as a dict, which has another order.
    """
    by_path = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(saved)}
    return jax.tree_util.tree_map_with_path(lambda path, _: by_path[_name(path)], current)


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
        raise CheckpointError(f"the saved {name} do not fit the model:\n  {shown}{more}")


def _shapes(tree: Any) -> dict[str, str]:
    return {
        _name(path): f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _name(path: Any) -> str:
    return "/".join(_key(key) for key in path)


def _key(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def restore_loaders(state_dict: dict[str, Any], loaders: dict[str, Any]) -> None:
    """Put saved positions back into loaders.

    Args:
        state_dict: Positions under `train`, `val` and `test`.
        loaders: The loaders to set, by the same names; None for those that are not wanted.
    """
    for name, loader in loaders.items():
        state = state_dict.get(name)
        if loader is None or state is None:
            continue
        if isinstance(loader, dict) and not isinstance(state, dict):
            raise DataError(f"loader {name!r}: one position was saved for it, and it is a dict of {sorted(loader)} now")
        if isinstance(loader, dict):
            restore_loaders(
                {f"{name}/{key}": position for key, position in state.items()},
                {f"{name}/{key}": one for key, one in loader.items()},
            )
        elif callable(getattr(loader, "set_state", None)):
            loader.set_state(state)
        elif callable(getattr(loader, "load_state_dict", None)):
            loader.load_state_dict(state)
        else:
            raise DataError(
                f"loader {name!r}: a position was saved for it, and {type(loader).__name__} has neither set_state nor "
                "load_state_dict; use a loader with a position, such as a grain iterator"
            )
