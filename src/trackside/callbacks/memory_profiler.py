"""A timeline of the memory: samples every N steps, written to a file as they are taken.

Samples are taken at planned boundaries, between two steps: what is alive then is what the training keeps, the figures
do not depend on how many steps happen to be in flight, and no step in between costs anything. The price is that the
steps in flight are waited for once per sample. Where steps are short, that adds up: then samples are further apart.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from trackside.callbacks.callback import Callback, CallbackConfig
from trackside.callbacks.trainer_view import TrainerView
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import ConfigError
from trackside.processes import JAX_PROCESSES
from trackside.profiling.json_list import JsonListWriter, continue_json_list
from trackside.profiling.leak import LeakWatch
from trackside.profiling.memory import MemorySampler
from trackside.schedule import AffordableSteps, Every

LOGGER = logging.getLogger(__name__)


@dataclass
class MemoryProfileConfig(CallbackConfig):
    """How often to look at the memory, and where to write what was seen."""

    log_dir: str = "logs/memory"
    """Folder of the file, relative to the working directory. The event file of the run has the samples, too."""
    profile_every_n_steps: int = 100
    """Take a sample every N steps; -1 for one at the start only."""
    log_device_memory: bool = True
    """Whether to ask the devices' allocators."""
    max_time_share: float = field(default=0.005, kw_only=True)
    """The share of the training's time that samples may take after the first hundred. Where N steps take less time than
    that needs, samples are further apart, by a multiple of N steps; 1 for samples at every N steps whatever they cost.
    Several processes always sample every N steps, since they have to stop at the same ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        Every(self.profile_every_n_steps, "MemoryProfileConfig.profile_every_n_steps")
        if not 0 < self.max_time_share <= 1:
            raise ConfigError(
                f"MemoryProfileConfig.max_time_share: expected a share above 0 and up to 1, got {self.max_time_share!r}"
            )


class MemoryProfiler(Callback, config=MemoryProfileConfig):
    """Tracks the memory of devices and host, and who holds it, in `memory_profile.json`.

    The file is a JSON list that is whole at every moment. The first sample is taken before the first step; `step` is
    the number of steps done. A training that resumes from a checkpoint continues its file.

    Args:
        config: How often, and where.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
        clock: Where the samples' timestamps come from.
    """

    config: MemoryProfileConfig

    def __init__(
        self,
        config: MemoryProfileConfig | None = None,
        trainer: TrainerView | None = None,
        data_module: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ):
        super().__init__(config, trainer, data_module)
        self._clock = clock
        self._affordable = AffordableSteps(self.config.profile_every_n_steps, self.config.max_time_share, clock)
        self.plan = self._affordable
        self._leaks = LeakWatch()
        self._sampler: MemorySampler | None = None
        self._file: JsonListWriter | None = None
        self._num_failed = 0

    @property
    def path(self) -> Path:
        """The file; each process of a run has its own."""
        index = (self.trainer.processes if self.is_bound else JAX_PROCESSES).index
        return Path(self.config.log_dir) / (f"memory_profile-{index:05d}.json" if index else "memory_profile.json")

    def on_training_start(self) -> None:
        """Open the file and take the first sample."""
        step = self.trainer.global_step
        try:
            self._file = continue_json_list(self.path, lambda sample: sample["step"] < step)
        except OSError as error:
            raise ConfigError(
                f"MemoryProfileConfig.log_dir={self.config.log_dir!r}: {self.path} cannot be written "
                f"({error.strerror}); choose another folder"
            ) from error
        self._num_failed = 0
        self._leaks = LeakWatch()
        self._affordable.max_share = 1.0 if self.trainer.processes.are_several else self.config.max_time_share
        self._affordable.start(step)
        self._sampler = MemorySampler(jax.local_devices() if self.config.log_device_memory else (), self._clock)
        self.trainer.run_log.write("memory_profile", path=str(self.path.absolute()), step=step)
        self._sample(step)

    def on_boundary(self, epoch_idx: int, step_idx: int) -> None:
        """Take a sample."""
        self._sample(step_idx)

    def finalize(self, status: str) -> None:
        """Close the file."""
        self._affordable.stop()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _sample(self, step: int) -> None:
        began_s = self._clock.now()
        self._take(step)
        self._affordable.spend(step, self._clock.now() - began_s)

    def _take(self, step: int) -> None:
        assert self._sampler is not None
        sample = self._sampler.sample(step, *self.trainer.measurements.memory_owners())
        self._write(sample)
        logger = self.trainer.logger
        self.trainer.run_log.write("memory", **sample)
        if logger.tools:
            logger.log_host_metrics(dict(_scalars(sample)), step, "memory")
        for leak in self._leaks.add(sample):
            LOGGER.warning("memory may leak: %s", leak)
            self.trainer.run_log.write(
                "memory_leak",
                step=step,
                name=leak.name,
                bytes_per_step=leak.bytes_per_step,
                since_step=leak.since_step,
            )

    def _write(self, sample: dict[str, Any]) -> None:
        assert self._file is not None
        try:
            self._file.append(sample)
        except OSError as error:  # a full disk is no reason to stop training
            self._num_failed += 1
            if self._num_failed == 1:
                LOGGER.error("a sample could not be written to %s: %s; later ones are tried again", self.path, error)


def _scalars(sample: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for group in ("host", "live"):
        yield from ((f"{group}/{name}", value) for name, value in sample[group].items())
    for device, figures in sample["memory"].items():
        yield from ((f"{device}/{name}", value) for name, value in figures.items())
