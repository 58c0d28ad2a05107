"""Groups of parameters, chosen by patterns of their paths: frozen ones, and those with their own optimizer."""

import re
import warnings
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import optax
from optax import GradientTransformation

from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.tree_paths import leaf_path

if TYPE_CHECKING:
    from trackside.trainer.optimizer import OptimizerConfig

FROZEN, REST = "frozen", "rest"


@dataclass
class ParamGroupConfig(ConfigDict):
    """Parameters with their own learning rate or optimizer."""

    name: str = "group"
    """What the group is called, as in the metric `grad_norm/<name>`."""
    patterns: list[str] = field(default_factory=lambda: [".*"])
    """Regular expressions searched in paths such as `block_0/dense/kernel`: parameters that match one are in it."""
    lr_scale: float = 1.0
    """How many times the learning rate of the optimizer it has."""
    optimizer: Any = None
    """An `OptimizerConfig` for the group, with its own schedule; None for that of all others. It does not clip."""

    def __post_init__(self) -> None:
        if not self.name or self.name in (FROZEN, REST):
            raise ConfigError(
                f"ParamGroupConfig.name: expected a name other than {FROZEN!r} and {REST!r}, got {self.name!r}"
            )
        check_patterns("ParamGroupConfig.patterns", self.patterns)
        if not self.patterns:
            raise ConfigError("ParamGroupConfig.patterns: expected one regular expression or more, got none")


def check_patterns(name: str, patterns: Any) -> None:
    """Raise if something is no list of regular expressions; None is left alone."""
    if patterns is None:
        return
    if not isinstance(patterns, list | tuple):
        raise ConfigError(f"{name}: expected a list of regular expressions or None, got {patterns!r}; write [...]")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"{name}: {pattern!r} is not a regular expression ({error}); correct it") from error


def matches(patterns: Iterable[str] | None, path: str) -> bool:
    """Whether a path matches one of some patterns."""
    return any(re.search(pattern, path) for pattern in patterns or ())


def warn_of_unmatched(name: str, patterns: Iterable[str] | None, params: Any) -> None:
    """Warn of patterns that match no parameter, which are misspelled as a rule."""
    paths = [leaf_path(key_path) for key_path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in patterns or ():
        if paths and not any(re.search(pattern, path) for path in paths):
            # Without a stacklevel: init may be traced several times, and a warning from one place shows once.
            warnings.warn(  # noqa: B028
                f"{name}: {pattern!r} matches none of the {len(paths)} parameters, the first of which is "
                f"{paths[0]!r}; correct or remove the pattern"
            )


def group_of(config: "OptimizerConfig", path: str) -> str:
    """The group of a parameter: frozen, the first whose patterns match, or the rest."""
    if matches(config.frozen, path):
        return FROZEN
    return next((group.name for group in config.groups if matches(group.patterns, path)), REST)


def group_names(config: "OptimizerConfig", params: Any) -> Any:
    """The group of each parameter, as a tree like `params`."""
    return jax.tree_util.tree_map_with_path(lambda key_path, _: group_of(config, leaf_path(key_path)), params)


def freeze(config: "OptimizerConfig", params: Any) -> Any:
    """The parameters, without gradients where they are frozen, so that those are not even computed."""
    if not config.frozen:
        return params
    return jax.tree_util.tree_map_with_path(
        lambda key_path, leaf: jax.lax.stop_gradient(leaf) if matches(config.frozen, leaf_path(key_path)) else leaf,
        params,
    )


def by_group(
    config: "OptimizerConfig", build: Callable[["OptimizerConfig", float], GradientTransformation]
) -> GradientTransformation:
    """One optimizer for each group of parameters; frozen ones have none, and keep no state.

    Args:
        config: The optimizer's config.
        build: Builds the optimizer of a config, with its learning rate scaled.
    """
    if not config.frozen and not config.groups:
        return build(config, 1.0)
    optimizers: dict[Hashable, GradientTransformation] = {REST: build(config, 1.0), FROZEN: optax.set_to_zero()}
    for group in config.groups:
        optimizers[group.name] = build(config if group.optimizer is None else group.optimizer, group.lr_scale)
    return optax.partition(optimizers, lambda params: group_names(config, params))
