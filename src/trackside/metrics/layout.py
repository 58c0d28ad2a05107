"""The place of each metric in the packed vector.

The whole accumulator is one uint32 vector. So a step has one metric argument and one metric result, however many
metrics there are, and a log step copies one array to the host:

    flags | number of steps | last [M] | sum [2, M] | count [2, M] | max [X] | steps, mean, m2 [3, S]

Floats are bitcast. `M` counts all metrics, `X` those with mode `max`, `S` those with mode `std`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trackside.errors import MetricError
from trackside.metrics.step_metric import LOG_MODES, StepMetric

NUM_HEADER_WORDS = 2
NOT_FINITE, MEAN_AS_SUM = 1, 2
"""Flags that a step raises and the accumulator remembers: its loss or gradients were not finite; its `loss` metric has
the returned loss itself as the sum over several items."""


@dataclass(frozen=True)
class MetricSpec:
    """What is known about a metric before the step runs."""

    name: str
    """The name that the loss function gives it."""
    log_modes: tuple[str, ...]
    """How it is logged: some of `LOG_MODES`."""
    has_float_count: bool = False
    """Whether its count is a float, such as a sum of weights."""

    def logged_name(self, mode: str) -> str:
        """The name under which a mode of this metric is logged."""
        return self.name if mode == "mean_nopostfix" else f"{self.name}_{mode}"


class Outputs(NamedTuple):
    """The results of one log mode: the names that it logs, and the metrics that they come from."""

    names: tuple[str, ...]
    indices: np.ndarray


@dataclass(frozen=True)
class MetricLayout:
    """The metrics of a step function, and the places of each in the packed vector."""

    specs: tuple[MetricSpec, ...]
    """The metrics, sorted by name."""

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for spec in self.specs:
            for mode in spec.log_modes:
                logged = spec.logged_name(mode)
                if logged in seen:
                    raise MetricError(
                        f"metric {spec.name!r} with mode {mode!r} would be logged as {logged!r}, like metric "
                        f"{seen[logged]!r}; rename one of them"
                    )
                seen[logged] = spec.name

    @classmethod
    def of(
        cls,
        metrics: Mapping[str, StepMetric],
        log_modes: Mapping[str, tuple[str, ...]],
        default_log_modes: tuple[str, ...],
    ) -> "MetricLayout":
        """The layout for the metrics of a step. Metrics without log modes get the default."""
        return cls(
            tuple(
                MetricSpec(name, log_modes.get(name, default_log_modes), metrics[name].has_float_count)
                for name in sorted(metrics)
            )
        )

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics, in order."""
        return tuple(spec.name for spec in self.specs)

    @functools.cached_property
    def max_indices(self) -> np.ndarray:
        """Indices of the metrics that are logged by their maximum."""
        return self.outputs["max"].indices

    @functools.cached_property
    def std_indices(self) -> np.ndarray:
        """Indices of the metrics that are logged by their standard deviation."""
        return self.outputs["std"].indices

    @functools.cached_property
    def float_count_indices(self) -> np.ndarray:
        """Indices of the metrics whose count is a float."""
        return np.array([i for i, spec in enumerate(self.specs) if spec.has_float_count], np.int32)

    @functools.cached_property
    def slices(self) -> dict[str, slice]:
        """The place of each part in the vector."""
        num_all, num_max, num_std = len(self.specs), len(self.max_indices), len(self.std_indices)
        sizes = {
            "header": NUM_HEADER_WORDS,
            "last": num_all,
            "sum": 2 * num_all,
            "count": 2 * num_all,
            "max": num_max,
            "std_steps": num_std,
            "std_mean": num_std,
            "std_m2": num_std,
        }
        slices, start = {}, 0
        for part, size in sizes.items():
            slices[part] = slice(start, start + size)
            start += size
        return slices

    @functools.cached_property
    def outputs(self) -> dict[str, "Outputs"]:
        """For each log mode, the logged names and the indices of their metrics."""
        chosen = {
            mode: [(spec.logged_name(mode), i) for i, spec in enumerate(self.specs) if mode in spec.log_modes]
            for mode in LOG_MODES
        }
        return {
            mode: Outputs(tuple(name for name, _ in pairs), np.array([i for _, i in pairs], np.int32))
            for mode, pairs in chosen.items()
        }

    @property
    def num_words(self) -> int:
        """Length of the vector."""
        return self.slices["std_m2"].stop

    @functools.cached_property
    def initial(self) -> np.ndarray:
        """The vector before any step: zeros, and minus infinity for each maximum. Read-only."""
        vector = np.zeros(self.num_words, np.uint32)
        vector[self.slices["max"]] = np.float32(-np.inf).view(np.uint32)
        vector.flags.writeable = False
        return vector
