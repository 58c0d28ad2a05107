"""The optimizer: gradients are clipped, handed to an optax optimizer with weight decay, and become updates.

Everything is computed in float32 where gradients or parameters are narrower, and so is the optimizer's state: the
second moment's 0.999 is 1 in bfloat16, and it would never decay. Updates come back in the parameter's own dtype.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import GradientTransformation, GradientTransformationExtraArgs, Schedule

from trackside.config import ConfigDict
from trackside.config.wording import did_you_mean, listed
from trackside.errors import ConfigError
from trackside.trainer.lr_schedules import SchedulerConfig, build_schedule, check_number
from trackside.trainer.parameter_groups import (
    ParamGroupConfig,
    by_group,
    check_patterns,
    matches,
    warn_of_unmatched,
)
from trackside.tree_paths import leaf_path


@dataclass
class OptimizerConfig(ConfigDict):
    """How gradients change the parameters."""

    name: str = "adam"
    """sgd, adam, adamw, nadam, nadamw, lamb, lion, adafactor, rmsprop, adagrad, or one of `register_optimizer`."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """The learning rate of each step."""
    beta1: float = 0.9
    """Decay of the first moment in the adam family, lamb and lion."""
    beta2: float = 0.999
    """Decay of the second moment in the adam family and lamb, and of the momentum in lion, where 0.99 is usual."""
    eps: float = 1e-8
    """Keeps divisions finite in the adam family, lamb, rmsprop and adagrad."""
    momentum: float | None = None
    """Momentum of sgd, rmsprop and adafactor; None for none."""
    nesterov: bool = False
    """Whether the momentum of sgd, rmsprop, adam and adamw is Nesterov's; nadam and nadamw always have it."""
    weight_decay: float = 0.0
    """Decoupled, `lr * weight_decay * parameter` per step, in adamw, nadamw, lamb, lion and adafactor; all others add
    `weight_decay * parameter` to the clipped gradient (L2)."""
    weight_decay_include: list[str] | None = None
    """Regular expressions searched in paths such as `block_0/dense/kernel`: only parameters that match one decay."""
    weight_decay_exclude: list[str] | None = None
    """Regular expressions, likewise: parameters that match one do not decay, even where `weight_decay_include` does."""
    grad_clip_norm: float | None = None
    """The largest norm of all gradients together, after `grad_clip_value`; larger ones are scaled down to it."""
    grad_clip_value: float | None = None
    """The largest absolute value of a gradient's element."""
    optimizer_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the optax function behind `name`, such as {"mu_dtype": "bfloat16"} for adam."""
    frozen: list[str] | None = None
    """Regular expressions searched in the same paths: parameters that match one are not trained, and need no memory for
    gradients and optimizer."""
    groups: list[ParamGroupConfig] = field(default_factory=list)
    """Parameters with their own learning rate or optimizer. A parameter is in the first group that it matches."""

    def __post_init__(self) -> None:
        _builder_of(self.name)
        if not isinstance(self.scheduler, SchedulerConfig):
            raise ConfigError(f"OptimizerConfig.scheduler: expected a SchedulerConfig, got {self.scheduler!r}")
        check_number("OptimizerConfig.beta1", self.beta1, below=1.0)
        check_number("OptimizerConfig.beta2", self.beta2, below=1.0)
        check_number("OptimizerConfig.eps", self.eps)
        check_number("OptimizerConfig.momentum", self.momentum, below=1.0, optional=True)
        check_number("OptimizerConfig.weight_decay", self.weight_decay)
        check_number("OptimizerConfig.grad_clip_norm", self.grad_clip_norm, above=0.0, optional=True)
        check_number("OptimizerConfig.grad_clip_value", self.grad_clip_value, above=0.0, optional=True)
        check_patterns("OptimizerConfig.weight_decay_include", self.weight_decay_include)
        check_patterns("OptimizerConfig.weight_decay_exclude", self.weight_decay_exclude)
        check_patterns("OptimizerConfig.frozen", self.frozen)
        self._check_groups()
        if self.nesterov and self.momentum is None and self.name in ("sgd", "rmsprop"):
            raise ConfigError(
                f"OptimizerConfig.nesterov: {self.name!r} has no momentum to change, got momentum=None; "
                "set momentum, e.g. to 0.9"
            )

    def _check_groups(self) -> None:
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ConfigError(f"OptimizerConfig.groups: each needs a name of its own, got {listed(names)}")
        for group in self.groups:
            check_number("ParamGroupConfig.lr_scale", group.lr_scale, above=0.0)
            if group.optimizer is not None and not isinstance(group.optimizer, OptimizerConfig):
                raise ConfigError(f"ParamGroupConfig.optimizer: expected an OptimizerConfig, got {group.optimizer!r}")
            if group.optimizer is not None and (group.optimizer.frozen or group.optimizer.groups):
                raise ConfigError(
                    f"ParamGroupConfig {group.name!r}: its optimizer has `frozen` or `groups`; move them to the config "
                    "that has the group"
                )


DecayMask = Callable[[Any], Any]
"""Gives, for a tree of parameters, the tree that says which of them decay; optax takes it as a mask."""

OptimizerBuilder = Callable[[OptimizerConfig, Schedule, DecayMask], GradientTransformation]

_OPTIMIZERS: dict[str, OptimizerBuilder] = {}


def register_optimizer(name: str) -> Callable[[OptimizerBuilder], OptimizerBuilder]:
    """Make an optimizer known by a name: `@register_optimizer("mine")` above `fn(config, learning_rate, decay_mask)`.

    The function returns an `optax.GradientTransformation` that includes the learning rate and the weight decay; it sees
    clipped gradients. An earlier optimizer of the same name is replaced.
    """

    def register(builder: OptimizerBuilder) -> OptimizerBuilder:
        _OPTIMIZERS[name] = builder
        return builder

    return register


def build_optimizer(config: OptimizerConfig) -> GradientTransformation:
    """The transformation from gradients to updates of the parameters.

    `update` needs the parameters where there is weight decay. A pattern that matches no parameter is warned of in
    `init`.
    """
    tx = _in_float32(optax.chain(*_clipping(config), by_group(config, _build_one)))

    def init(params: Any) -> Any:
        if config.weight_decay:
            _warn_of_unmatched(config, params)
        warn_of_unmatched("OptimizerConfig.frozen", config.frozen, params)
        for group in config.groups:
            warn_of_unmatched(f"ParamGroupConfig {group.name!r}", group.patterns, params)
        return tx.init(params)

    return GradientTransformationExtraArgs(init, tx.update)


def _build_one(config: OptimizerConfig, lr_scale: float) -> GradientTransformation:
    """The optimizer of a config, without clipping."""
    schedule = build_schedule(config.scheduler)
    scaled = schedule if lr_scale == 1 else lambda count: lr_scale * schedule(count)
    return _builder_of(config.name)(config, scaled, functools.partial(_select_decayed, config))


def _clipping(config: OptimizerConfig) -> Iterator[GradientTransformation]:
    if config.grad_clip_value is not None:
        yield optax.clip(config.grad_clip_value)
    if config.grad_clip_norm is not None:
        yield optax.clip_by_global_norm(config.grad_clip_norm)


def _in_float32(tx: GradientTransformation) -> GradientTransformationExtraArgs:
    inner = optax.with_extra_args_support(tx)

    def init(params: Any) -> Any:
        return inner.init(jax.tree.map(_widen, params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        like = updates if params is None else params
        wide_updates, wide_params = jax.tree.map(_widen, (updates, params))
        # optax raises floats to integer step counts, which strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"):
            wide_updates, state = inner.update(wide_updates, state, wide_params, **extra_args)
        return jax.tree.map(lambda wide, leaf: wide.astype(leaf.dtype), wide_updates, like), state

    return GradientTransformationExtraArgs(init, update)


def _widen(leaf: Any) -> Any:
    if not jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.finfo(leaf.dtype).bits >= 32:
        return leaf
    return leaf.update(dtype=jnp.float32) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf.astype(jnp.float32)


def decay_mask(config: OptimizerConfig, params: Any) -> Any:
    """Which parameters the include and exclude patterns select for weight decay, whatever its strength.

    Args:
        config: The optimizer's config.
        params: The parameters, or their shapes.

    Returns:
        A tree like `params` with a bool for each parameter.
    """
    _warn_of_unmatched(config, params)
    return _select_decayed(config, params)


def _select_decayed(config: OptimizerConfig, params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda key_path, _: _decays(config, leaf_path(key_path)), params)


def _decays(config: OptimizerConfig, path: str) -> bool:
    include, exclude = config.weight_decay_include, config.weight_decay_exclude
    return (include is None or matches(include, path)) and not matches(exclude, path)


def _warn_of_unmatched(config: OptimizerConfig, params: Any) -> None:
    for name in ("weight_decay_include", "weight_decay_exclude"):
        warn_of_unmatched(f"OptimizerConfig.{name}", getattr(config, name), params)


@register_optimizer("sgd")
def _sgd(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    tx = _call(optax.sgd, config, learning_rate, momentum=config.momentum, nesterov=config.nesterov)
    return _with_l2(tx, config, decay_mask)


@register_optimizer("adam")
def _adam(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    tx = _call(optax.adam, config, learning_rate, **_moments(config), nesterov=config.nesterov)
    return _with_l2(tx, config, decay_mask)


@register_optimizer("nadam")
def _nadam(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    tx = _call(optax.adam, config, learning_rate, **_moments(config), nesterov=True)
    return _with_l2(tx, config, decay_mask)


@register_optimizer("rmsprop")
def _rmsprop(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    settings = {"eps": config.eps, "momentum": config.momentum, "nesterov": config.nesterov}
    return _with_l2(_call(optax.rmsprop, config, learning_rate, **settings), config, decay_mask)


@register_optimizer("adagrad")
def _adagrad(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    return _with_l2(_call(optax.adagrad, config, learning_rate, eps=config.eps), config, decay_mask)


@register_optimizer("adamw")
def _adamw(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    settings = {**_moments(config), "weight_decay": config.weight_decay, "mask": decay_mask}
    return _call(optax.adamw, config, learning_rate, **settings, nesterov=config.nesterov)


@register_optimizer("nadamw")
def _nadamw(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    settings = {**_moments(config), "weight_decay": config.weight_decay, "mask": decay_mask}
    return _call(optax.adamw, config, learning_rate, **settings, nesterov=True)


@register_optimizer("lamb")
def _lamb(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    settings = {**_moments(config), "weight_decay": config.weight_decay, "mask": decay_mask}
    return _call(optax.lamb, config, learning_rate, **settings)


@register_optimizer("lion")
def _lion(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    settings = {"b1": config.beta1, "b2": config.beta2, "weight_decay": config.weight_decay, "mask": decay_mask}
    return _call(optax.lion, config, learning_rate, **settings)


@register_optimizer("adafactor")
def _adafactor(config: OptimizerConfig, learning_rate: Schedule, decay_mask: DecayMask) -> GradientTransformation:
    # optax decays after it has applied the learning rate, so a plain number would not be scaled by it.
    def decay_rate(count: Any) -> Any:
        return config.weight_decay * learning_rate(count)

    settings = {"weight_decay_rate": decay_rate if config.weight_decay else None, "weight_decay_mask": decay_mask}
    return _call(optax.adafactor, config, learning_rate, momentum=config.momentum, **settings)


def _moments(config: OptimizerConfig) -> dict[str, float]:
    return {"b1": config.beta1, "b2": config.beta2, "eps": config.eps}


def _with_l2(tx: GradientTransformation, config: OptimizerConfig, decay_mask: DecayMask) -> GradientTransformation:
    return optax.chain(optax.add_decayed_weights(config.weight_decay, decay_mask), tx) if config.weight_decay else tx


def _call(factory: Any, config: OptimizerConfig, learning_rate: Schedule, **settings: Any) -> GradientTransformation:
    free = sorted(set(inspect.signature(factory).parameters) - {"learning_rate", *settings})
    unknown = sorted(set(config.optimizer_kwargs) - set(free))
    if unknown:
        raise ConfigError(
            f"OptimizerConfig.optimizer_kwargs: {config.name!r} takes {listed(free)}, got {listed(unknown)}; "
            "remove it, or set the field of OptimizerConfig that stands for it"
        )
    return factory(learning_rate, **settings, **config.optimizer_kwargs)


def _builder_of(name: str) -> OptimizerBuilder:
    if name not in _OPTIMIZERS:
        raise ConfigError(
            f"OptimizerConfig.name: no optimizer is called {name!r}, registered are {listed(sorted(_OPTIMIZERS))}."
            f"{did_you_mean(name, _OPTIMIZERS)} Add your own with register_optimizer before the config is made"
        )
    return _OPTIMIZERS[name]
