"""What the rules judge: the measurements of a run as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trackside.findings.loader_facts import LoaderFacts
from trackside.profiling.fresh_memory import FreshMemory
from trackside.profiling.ledger_totals import LedgerTotals

COMPILE_PHASES = ("trace_s", "lower_s", "compile_s")
"""What a row `compile` has the times of."""
OWN_LOOP = "own"
HOST = "host"
"""The only device of a loop whose steps are over when they return."""
"""What the row `environment` calls a loop that is not the trainer's."""


@dataclass(frozen=True)
class EpochFacts:
    """What is known of one epoch of training."""

    epoch: int
    last_step: int
    time_s: float | None = None
    """How long its training took, without validation."""
    idle_after_s: float | None = None
    """How long the device had nothing to do after it, before the next one, but for validation, checkpoints and
    compilation; None where that is not known."""
    idle_reason: str = ""
    """The part of the ledger that most of it went into."""
    data_wait_after_s: float = 0.0
    """How much of it was spent waiting for the first batch of the next epoch."""


@dataclass(frozen=True)
class EagerStep:
    """A function that makes steps and is not jitted: what its first call compiled."""

    num_operations: int
    """Single operations of JAX, outside of any jitted function."""
    num_programs: int = 0
    """Jitted functions."""

    @property
    def is_partial(self) -> bool:
        """Whether it calls compiled functions of the user's. Optax has a few of its own, whoever calls it."""
        return 8 * self.num_programs > self.num_operations


@dataclass(frozen=True)
class ToolFacts:
    """What is known of a logging tool that runs on a thread of its own, over all legs."""

    num_waiting: int = 0
    """Calls that it still had to do when the training ended."""
    num_dropped: int = 0
    """Calls that it never got."""
    closing_s: float = 0.0
    """How long the training waited for it at the end."""


@dataclass(frozen=True)
class RunFacts:
    """The measurements of a run. What was not measured is None or empty, and no rule guesses it."""

    ledger: LedgerTotals | None = None
    """Where the time went, over all legs of the run."""
    step_time_s: float | None = None
    """The median time of a step that nothing disturbed."""
    log_every_n_steps: int | None = None
    check_val_every_n_steps: int | None = None
    epochs: list[EpochFacts] = field(default_factory=list)
    """The epochs that are over."""
    compiles: list[dict[str, Any]] = field(default_factory=list)
    """The rows `compile`, except those of single operations, and of set-up if the ledger begins after it."""
    captures: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """The rows `capture`; `report` is what `TraceReport.to_dict` gives."""
    leaks: list[dict[str, Any]] = field(default_factory=list)
    """The rows `memory_leak`."""
    fresh_memory: FreshMemory | None = None
    """The fresh memory that steps got from the operating system, in the last leg."""
    timers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By operation, what `TrainingProfiler.get_summary` gives: `avg_time`, `total_time`, `count` and so on."""
    batch_size: int | None = None
    """How many examples a step has, in the mean."""
    num_devices: int | None = None
    platform: str | None = None
    """What JAX calls the backend: `cpu`, `gpu`, `tpu`."""
    loaders: Mapping[str, LoaderFacts] = field(default_factory=dict)
    """What the batches come from: `train`, `val` and `test`; `val/<name>` for one of several."""
    library: str = ""
    """What the model is written with: `linen`, `nnx`, `equinox` or `functions`; empty if that is not known."""
    can_fuse_steps: bool | None = None
    """Whether the trainer makes one step in a call, and could make several."""
    is_own_loop: bool = False
    """Whether the loop is the user's, measured by `trackside.run`."""
    is_on_host: bool = False
    """Whether its steps are computed by the host itself, as those of PyTorch on a CPU: there is no device to start."""
    eager_steps: Mapping[str, EagerStep] = field(default_factory=dict)
    """Steps of such a loop that are not compiled, or not as a whole."""
    data_wait_between_epochs_s: float = 0.0
    """How long the loop waited for the first batch of an epoch, after the first epoch."""
    first_batch_s: float = 0.0
    """How long the loop waited for the very first batch, for which a loader may start its workers, over all legs."""
    num_pauses: int = 0
    """How many pauses between epochs that was in."""
    tools: Mapping[str, ToolFacts] = field(default_factory=dict)
    """Logging tools that were behind when the training ended, by name."""
    longest_s: Mapping[str, float] = field(default_factory=dict)
    """The longest time that the loop was in a part of the ledger at once, where it was long."""
    num_checkpoints: int = 0
    """How many were saved."""
    operation_compile_s: float = 0.0
    """How long single operations compiled, of which there may be thousands."""
    silenced: tuple[str, ...] = ()
    """The ids of findings that the run's config leaves out."""
