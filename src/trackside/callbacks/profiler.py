"""Profiles of training steps: by minutes (`JaxProfiler`), or of a window of steps (`JAXProfiler`)."""

import math
import pathlib
from dataclasses import dataclass, field
from typing import Any

from trackside.callbacks.capture_callback import CaptureCallback, CaptureConfig
from trackside.callbacks.capture_schedule import Periodic, StepWindow
from trackside.callbacks.trainer_view import TrainerView
from trackside.clock import SYSTEM_CLOCK, Clock
from trackside.errors import ConfigError
from trackside.run_layout import WHERE_A_RUN_IS_GIVEN_ITS_FOLDER


@dataclass
class JaxProfilerConfig(CaptureConfig):
    """Profile periodically."""

    every_n_epochs: int = -1
    """Unused in this callback."""
    every_n_steps: int = -1
    """Unused in this callback."""
    main_process_only: bool = True
    """Profile on the main process only; otherwise one profile per process is created."""
    profile_every_n_minutes: float = 60
    """Profile every N minutes; below 0 for once only, 0 for as soon as the last one ended."""
    profile_first_step: int = 10
    """The first profile starts at the end of this step."""
    profile_n_steps: int = 5
    """How many steps a profile holds."""
    profile_log_dir: str = "tensorboard"
    """Where to, relative to the run's folder; by default where TensorBoard's scalars are."""
    trace_python: bool = field(default=False, kw_only=True)
    """Trace Python calls too, which slows Python code down about five times."""
    trace_memory: bool = field(default=False, kw_only=True)
    """Record with each profile what fills the memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_limits()
        if self.profile_n_steps < 1:
            raise ConfigError(f"JaxProfilerConfig.profile_n_steps: expected 1 or more, got {self.profile_n_steps}")
        if math.isnan(self.profile_every_n_minutes):
            raise ConfigError("JaxProfilerConfig.profile_every_n_minutes: expected a number, got nan; -1 for once only")
        if self.profile_first_step < 0:
            raise ConfigError(
                f"JaxProfilerConfig.profile_first_step: expected 0 or more, got {self.profile_first_step}"
            )


class JaxProfiler(CaptureCallback, config=JaxProfilerConfig):
    """Profiles some steps every N minutes.

    Args:
        config: When, and where to.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
        clock: Where times come from.

    Attributes:
        profile_every_n_minutes: As in the config.
        profile_first_step: As in the config.
        profile_n_steps: As in the config.
    """

    config: JaxProfilerConfig

    def __init__(
        self,
        config: JaxProfilerConfig | None = None,
        trainer: TrainerView | None = None,
        data_module: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ):
        config = JaxProfilerConfig() if config is None else config
        self._periodic = Periodic(
            config.profile_first_step, config.profile_n_steps, config.profile_every_n_minutes, clock
        )
        super().__init__(config, trainer, data_module, self._periodic, clock)
        self.profile_every_n_minutes = config.profile_every_n_minutes
        self.profile_first_step = config.profile_first_step
        self.profile_n_steps = config.profile_n_steps

    @property
    def profiler_last_time(self) -> float | None:
        """When the last profile ended, or else training began, on the clock; None before."""
        return self._periodic.last_time

    @property
    def log_path(self) -> pathlib.Path:
        """Where the profiles go."""
        run = self.trainer.logger.log_path if self.is_bound else None
        if run is None:
            raise ConfigError(
                "JaxProfilerConfig.profile_log_dir is relative to the run's folder, and there is none: give it one "
                f"({WHERE_A_RUN_IS_GIVEN_ITS_FOLDER}), or use JAXProfiler, whose log_dir is relative to the working "
                "directory"
            )
        return pathlib.Path(run) / self.config.profile_log_dir

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        """Stop, so that nothing but training steps is in the trace."""
        if self.profiler_active:
            self._stop(self.trainer.global_step, "the end of the epoch")


@dataclass
class ProfilingConfig(CaptureConfig):
    """Profile a window of steps."""

    log_dir: str = "logs/profiles"
    """Where to, relative to the working directory."""
    start_step: int = 10
    """The first step of the profile. Steps are counted from 1; a window from 0 is taken as counted from 0."""
    end_step: int = 20
    """The step at which it ends, which is the first that it does not hold."""
    trace_memory: bool = True
    """Record with the profile what fills the memory."""
    trace_python: bool = False
    """Trace Python calls too, which slows Python code down about five times."""

    # By name only, so that the five above come first.
    every_n_epochs: int = field(default=-1, kw_only=True)
    """Unused in this callback."""
    every_n_steps: int = field(default=-1, kw_only=True)
    """Unused in this callback."""
    main_process_only: bool = field(default=True, kw_only=True)
    """Profile on the main process only; otherwise one profile per process is created."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_limits()
        if not 0 <= self.start_step < self.end_step:
            raise ConfigError(
                f"ProfilingConfig.start_step={self.start_step}, end_step={self.end_step}: expected a window of steps, "
                "with end_step after start_step, and neither below 0"
            )


class JAXProfiler(CaptureCallback, config=ProfilingConfig):
    """Profiles a window of steps, once.

    Args:
        config: Which steps, and where to.
        trainer: The trainer, if it is known already.
        data_module: The loaders, if they are known already.
        clock: Where times come from.
    """

    config: ProfilingConfig

    def __init__(
        self,
        config: ProfilingConfig | None = None,
        trainer: TrainerView | None = None,
        data_module: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ):
        config = ProfilingConfig() if config is None else config
        super().__init__(config, trainer, data_module, StepWindow(config.start_step, config.end_step), clock)

    @property
    def log_path(self) -> pathlib.Path:
        """Where the profiles go."""
        return pathlib.Path(self.config.log_dir)
