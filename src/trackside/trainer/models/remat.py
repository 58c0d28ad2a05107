"""Which layers compute their intermediate results again in the backward pass, chosen by patterns of their paths.

A layer that matches and is inside of another that matches is left alone: what is around it computes it again anyway.
"""

import re
from collections.abc import Iterable
from typing import Any

import jax

from trackside.config.wording import did_you_mean, listed
from trackside.errors import ConfigError
from trackside.trainer.models.named_leaves import Path

POLICIES = (
    "nothing_saveable",
    "everything_saveable",
    "dots_saveable",
    "checkpoint_dots",
    "dots_with_no_batch_dims_saveable",
    "checkpoint_dots_with_no_batch_dims",
)
"""Those of `jax.checkpoint_policies` that need no arguments."""
_MAX_NAMES = 8


class Remat:
    """Chooses layers by their paths.

    Args:
        patterns: Regular expressions, searched in paths such as `blocks/0`.
        policy: What is kept nevertheless, by its name in `jax.checkpoint_policies`; None for nothing.
    """

    def __init__(self, patterns: Iterable[str], policy: str | None = None):
        self.patterns = tuple(patterns)
        self.policy: Any = None if policy is None else getattr(jax.checkpoint_policies, policy)

    def choose(self, paths: Iterable[Path]) -> frozenset[Path]:
        """The outermost layers that match.

        Args:
            paths: The paths of all layers.

        Raises:
            ConfigError: A pattern matches no layer.
        """
        known = [path for path in dict.fromkeys(paths) if path]
        for pattern in self.patterns:
            if not any(re.search(pattern, "/".join(path)) for path in known):
                raise _matches_nothing(pattern, ["/".join(path) for path in known])
        chosen = {path for path in known if any(re.search(pattern, "/".join(path)) for pattern in self.patterns)}
        return frozenset(path for path in chosen if not any(path[:end] in chosen for end in range(1, len(path))))


def build_remat(patterns: Iterable[str] | None, policy: str | None) -> Remat | None:
    """What a config says of it; None if no layer is to compute anything again.

    Args:
        patterns: `TrainerConfig.remat`.
        policy: `TrainerConfig.remat_policy`.
    """
    if policy is not None and not patterns:
        raise ConfigError(f"remat_policy: got {policy!r} without remat; say which layers it is for")
    return Remat(patterns, policy) if patterns else None


def _matches_nothing(pattern: str, paths: list[str]) -> ConfigError:
    more = f", and {len(paths) - _MAX_NAMES} more" if len(paths) > _MAX_NAMES else ""
    return ConfigError(
        f"remat: {pattern!r} matches no layer of the model.{did_you_mean(pattern, paths)} The layers are "
        f"{listed(paths[:_MAX_NAMES])}{more}"
    )


def check_policy(policy: str | None) -> None:
    """Raise if this is not the name of a policy."""
    if policy is not None and policy not in POLICIES:
        raise ConfigError(
            f"remat_policy: expected one of {', '.join(POLICIES)} or None, got {policy!r}."
            f"{did_you_mean(policy, POLICIES)} For policies with arguments, use jax.checkpoint in the model"
        )
