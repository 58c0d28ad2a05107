"""The trainer's config."""

import os
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal

from trackside.callbacks import CallbackConfig
from trackside.callbacks.callback_list import listed_callbacks
from trackside.config import ConfigDict
from trackside.errors import ConfigError, MetricError
from trackside.findings.silencing import checked_ids
from trackside.logger import LoggerConfig
from trackside.metrics import check_log_modes
from trackside.schedule import check_interval
from trackside.trainer.models.remat import check_policy
from trackside.trainer.parameter_groups import check_patterns
from trackside.trainer.precision import PrecisionConfig, to_precision
from trackside.trainer.read_ahead import DEFAULT_MAX_BYTES, check_ahead


@dataclass
class TrainerConfig(ConfigDict):
    """How to train."""

    seed: int = 0
    """Seed of the parameters and of every training step."""
    debug: bool = False
    """Run training and evaluation without jit: slow, but every line can be stepped through and every value printed."""
    donate_train_state: bool = True
    """Let a step overwrite the state that it is given, which saves a copy of it; the old one cannot be used again."""
    enable_progress_bar: bool = True
    """Show a progress bar, on the main process only."""
    gradient_accumulate_steps: int = 1
    """Number of microbatches into which a batch is split before the parameters are updated once."""
    gradient_accumulate_scan: bool = False
    """Go through the microbatches by scan: compiles faster and needs less memory, may run a little slower."""
    check_val_every_n_epoch: int = 1
    """Validate every N epochs; -1 for never. Can be combined with `check_val_every_n_steps`."""
    check_val_every_n_steps: int = -1
    """Validate every N steps; -1 for never. Can be combined with `check_val_every_n_epoch`."""
    check_for_nan: bool = True
    """Stop training at the first step whose loss or gradient norm is not finite."""
    raise_on_nan: bool = False
    """Raise `NonFiniteError` after such a stop, so that the process fails; otherwise `train_model` returns normally."""
    skip_bad_batches: bool = False
    """Leave out batches whose loss or gradient norm is not finite, and count them, instead of stopping."""
    log_grad_norm: bool = True
    """Log the norm of the gradients."""
    log_grad_norm_per_param: bool = False
    """Log the norm of each parameter's gradient; many rows for a model with many parameters."""
    log_param_norm: bool = True
    """Log the norm of the parameters."""
    log_param_norm_per_param: bool = False
    """Log the norm of each parameter; many rows for a model with many parameters."""
    log_intermediates: bool = False
    """Log the scalars that the model records with `self.sow("intermediates", name, value)`."""
    default_train_log_modes: list[str] = field(default_factory=lambda: ["mean"])
    """How training metrics are logged: any of mean, mean_nopostfix, single, max, std. Validation logs the mean."""
    intermediates_log_modes: list[str] = field(default_factory=lambda: ["mean"])
    """How intermediates are logged; the same choices."""
    logger: LoggerConfig | None = field(default_factory=LoggerConfig)
    """The logger; None keeps no rows, neither on disk nor in tools."""
    callbacks: list[CallbackConfig] = field(default_factory=list)
    """Callbacks, in the order in which they are called; one alone is a list of one."""
    seed_eval: int = 0
    """Seed of evaluation, so that models with randomness in evaluation give the same metrics each time."""
    resume: Literal["never", "auto", "must"] = "never"
    """`never`: start fresh, in a new folder if `log_path` holds a run. `auto`: resume from the newest good checkpoint
    if there is one. `must`: fail if there is none."""
    save_on_interrupt: bool = True
    """Save on Ctrl-C and SIGTERM, where a callback keeps checkpoints."""
    max_recompiles: int = -1
    """How often the training step or the evaluation step may compile again; -1 for any number of times."""
    on_too_many_recompiles: Literal["warn", "error"] = "warn"
    """What happens after more: a warning in the log, or an error that ends the training."""
    compile_cache: str | None = "run"
    """Where compiled programs are kept, so that they need not be compiled again: `run` for the run's folder, a path for
    one that several runs share, None for nowhere. A compilation cache that you have set up in JAX is used instead."""
    watchdog_timeout_s: float = -1
    """Seconds without progress after which the process dumps its stacks and exits with 78; -1 for never."""
    max_inflight_steps: int | Literal["auto"] = "auto"
    """How many calls the host may be ahead of the device; more hides longer pauses and holds more batches. `auto`: 2,
    and up to 32 where steps are short and run on one device."""
    prefetch_batches: int = 0
    """How many batches a thread reads ahead, so that they are made while the device computes, in training and in
    evaluation; 0 reads each when its step is due."""
    prefetch_max_bytes: int = DEFAULT_MAX_BYTES
    """How many bytes such batches may take together; one is read ahead however large it is."""
    steps_per_call: int | Literal["auto"] = "auto"
    """How many steps a call of the compiled program makes: `auto` fuses short ones where that is safe."""
    keep_host_memory: bool = True
    """On a CPU: keep memory that steps free for the next ones, where the C library would give it back after each."""
    precision: PrecisionConfig | str | None = None
    """Mixed precision: `"bf16"`, `"fp16"` or a `PrecisionConfig`; None leaves all types as the model has them."""
    remat: list[str] | None = None
    """Regular expressions searched in paths of layers such as `blocks/0`: those that match one compute their
    intermediate results again in the backward pass, which takes time and saves memory."""
    remat_policy: str | None = None
    """What such layers keep nevertheless, by its name in `jax.checkpoint_policies`, such as `dots_saveable`."""
    silence_findings: list[str] = field(default_factory=list)
    """Findings that are not reported, by id, such as `input-bound`; reports only count them."""

    def __post_init__(self) -> None:
        self.callbacks = listed_callbacks(self.callbacks)  # type: ignore[assignment] - callbacks themselves, too
        if isinstance(self.logger, str | os.PathLike):
            path = os.fspath(self.logger)
            raise ConfigError(
                f"logger: expected a LoggerConfig or None, got {path!r}; write LoggerConfig(log_path={path!r})"
            )
        for name in ("seed", "seed_eval"):
            if not -(2**63) <= getattr(self, name) < 2**63:
                raise ConfigError(f"{name}: expected a number of at most 64 bits, got {getattr(self, name)}")
        self.precision = to_precision(self.precision)
        check_patterns("remat", self.remat)
        check_policy(self.remat_policy)
        self.silence_findings = list(checked_ids(self.silence_findings, "silence_findings"))
        if isinstance(self.compile_cache, os.PathLike):
            self.compile_cache = os.fspath(self.compile_cache)
        if self.compile_cache is not None and not (isinstance(self.compile_cache, str) and self.compile_cache):
            raise ConfigError(
                f"compile_cache: expected 'run', the path of a folder, or None; got {self.compile_cache!r}"
            )
        if self.resume not in ("never", "auto", "must"):
            raise ConfigError(f"resume: expected 'never', 'auto' or 'must', got {self.resume!r}")
        if self.gradient_accumulate_steps < 1:
            raise ConfigError(
                f"gradient_accumulate_steps: expected a positive number, got {self.gradient_accumulate_steps}"
            )
        for name in ("max_inflight_steps", "steps_per_call"):
            value = getattr(self, name)
            if value != "auto" and (not isinstance(value, Integral) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name}: expected a whole number of at least 1, or 'auto'; got {value!r}")
        check_ahead("prefetch_batches", self.prefetch_batches, 0, "set it to 0 to read no batch ahead")
        check_ahead("prefetch_max_bytes", self.prefetch_max_bytes, 1, f"{DEFAULT_MAX_BYTES:_} is 1 GiB")
        for name in ("check_val_every_n_epoch", "check_val_every_n_steps", "watchdog_timeout_s"):
            check_interval(name, getattr(self, name))
        if self.max_recompiles < -1:
            raise ConfigError(f"max_recompiles: expected 0 or more, or -1 for any number; got {self.max_recompiles}")
        for name in ("default_train_log_modes", "intermediates_log_modes"):
            try:
                check_log_modes(getattr(self, name), name)
            except MetricError as error:
                raise ConfigError(str(error)) from None
