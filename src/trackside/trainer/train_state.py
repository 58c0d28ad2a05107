"""The training state: what users see of it, and the plain tuple in which it crosses jit."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trackside.trainer.optimizer_call import optimizer_update


class Carry(NamedTuple):
    """All that changes from step to step, as plain containers of arrays.

    jit flattens its arguments at every call. Plain containers are flattened in C++; library classes are not, and cost
    more than the whole rest of a small step.
    """

    step: Any
    params: Any
    mutable_variables: Any
    opt_state: Any
    rng: Any  # the key's raw data: typed keys take a slow path into jit
    loss_scale: Any = None  # in mixed precision with float16 only


@jax.tree_util.register_dataclass
@dataclass
class TrainState:
    """The training state as step functions, hooks and callbacks see it."""

    step: Any
    """Number of training steps done."""
    params: Any
    """The model's parameters."""
    opt_state: Any = None
    """The optimizer's state; None in a state that only evaluates."""
    mutable_variables: Any = None
    """Batch statistics and other collections that the model changes; None if it has none."""
    rng: Any = None
    """The key from which each step folds its own."""
    loss_scale: Any = None
    """The scale of the loss in mixed precision with float16; None without."""
    apply_fn: Callable = dataclasses.field(default=None, metadata={"static": True})  # type: ignore[assignment]
    """The model's apply function, which takes all of its variables."""
    tx: optax.GradientTransformation = dataclasses.field(default=None, metadata={"static": True})  # type: ignore
    """The optimizer."""

    def replace(self, **changes: Any) -> "TrainState":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def apply_gradients(self, grads: Any, loss: Any = None, **changes: Any) -> "TrainState":
        """The state after one optimizer step.

        Args:
            grads: The gradients.
            loss: The loss, for optimizers that go by it, such as `optax.contrib.reduce_on_plateau`.
            changes: Other fields to change.
        """
        updates, opt_state = optimizer_update(self.tx, grads, self.opt_state, self.params, loss)
        params = optax.apply_updates(self.params, updates)
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **changes)


def to_carry(state: Any) -> Carry:
    """A state in the form in which it crosses jit. Fields that a pruned state lacks stay empty."""
    rng = getattr(state, "rng", None)
    if rng is not None and jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        rng = jax.random.key_data(rng)
    mutable = getattr(state, "mutable_variables", None)
    opt_state, loss_scale = (getattr(state, name, None) for name in ("opt_state", "loss_scale"))
    return Carry(state.step, state.params, mutable or {}, opt_state, rng, loss_scale)


def with_carry(state: Any, carry: Carry) -> Any:
    """A state of the same class, as far as it goes: a pruned one has fewer fields, and keeps to them."""
    fields = {
        "step": carry.step,
        "params": carry.params,
        "mutable_variables": carry.mutable_variables or None,
        "opt_state": carry.opt_state,
        "rng": typed_key(carry.rng),
        "loss_scale": carry.loss_scale,
    }
    return dataclasses.replace(state, **{name: value for name, value in fields.items() if hasattr(state, name)})


def typed_key(rng: Any) -> Any:
    """A key as users expect it, from its raw data."""
    if rng is None or jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        return rng
    return jax.random.wrap_key_data(rng)


def view_carry(carry: Carry, apply_fn: Callable, tx: Any) -> TrainState:
    """The state that step functions, hooks and callbacks see."""
    return TrainState(
        step=carry.step,
        params=carry.params,
        opt_state=carry.opt_state,
        mutable_variables=carry.mutable_variables or None,
        rng=typed_key(carry.rng),
        loss_scale=carry.loss_scale,
        apply_fn=apply_fn,
        tx=tx,
    )
