"""The largest batch that fits into memory: the training step is compiled for growing batches, and never run.

What the compiler says of a program's memory grows nearly linearly with the batch. So the next size to try is where a
line through the last two reaches the limit, and a handful of compiles are enough.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from trackside.config.declared_types import check_types, check_value
from trackside.errors import ConfigError
from trackside.measured_run.batch_size import batch_size
from trackside.text import count, num_bytes, wrap
from trackside.trainer.array_forms import device_bytes, forms_of
from trackside.trainer.engine import Engine
from trackside.trainer.inflight_window import smallest_window
from trackside.trainer.sharding import num_batch_shards, num_own_batch_shards
from trackside.trainer.train_state import Carry
from trackside.trainer.trainer_config import TrainerConfig

LOGGER = logging.getLogger(__name__)

_MEMINFO, _CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_GROWTH = 32
"""How many times larger the next size may be than the largest that fits: far out, a line is no longer to be trusted."""
_CLOSE = 0.02
"""The search ends when the sizes that fit and those that do not are this close, as a part of them."""


@dataclass(frozen=True)
class BatchTrial:
    """A batch size that was compiled."""

    size: int
    """The examples of a batch, as a loader gives it."""
    num_bytes: int | None
    """What the training needs on each device: state, step and batches in flight. None if it could not be compiled."""
    fits: bool
    """Whether that is within the limit."""


@dataclass(frozen=True)
class BatchLimit:
    """The largest batch that fits into memory. `print` shows it with all sizes that were tried."""

    size: int | None
    """The largest size that fits among those tried, within 2 % of the limit; None if not even the smallest does."""
    limit_bytes: int
    """What each device has for the training."""
    trials: tuple[BatchTrial, ...]
    """The sizes that were compiled, the smallest first."""
    multiple: int
    """What a batch has to be divisible by, for the devices and the microbatches."""
    limit_source: str = ""
    """Where the limit comes from."""
    is_bounded: bool = True
    """Whether a larger batch was found that does not fit; the search ended before otherwise."""

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain data, as JSON can hold them."""
        return {**asdict(self), "trials": [asdict(trial) for trial in self.trials]}

    def __str__(self) -> str:
        lines = [f"{'batch size':>12}  {'per device':>10}"]
        for trial in self.trials:
            size = "?" if trial.num_bytes is None else num_bytes(trial.num_bytes)
            lines.append(f"{trial.size:>12,}  {size:>10}  {'fits' if trial.fits else 'too large'}")
        return "\n".join([*lines, "", *wrap(self._verdict, 100)])

    @property
    def _verdict(self) -> str:
        limit = f"{num_bytes(self.limit_bytes)} per device ({self.limit_source})"
        if self.size is None:
            return f"not even a batch of {self.trials[0].size} fits into {limit}"
        larger = next((trial.size for trial in self.trials if not trial.fits), None)
        beyond = f"{larger:,} does not" if larger is not None else "larger ones were not tried"
        divisible = f"; sizes are multiples of {self.multiple}" if self.multiple > 1 else ""
        return f"a batch of {self.size:,} fits into {limit}; {beyond}{divisible}"


def num_batches_held(engine: Engine, config: TrainerConfig) -> int:
    """How many batches a training has on the device at once.

    Args:
        engine: What the training runs on.
        config: How many steps may be in flight, and how many batches are read ahead.
    """
    inflight = smallest_window(config.max_inflight_steps)
    return inflight + (0 if engine.placement.send_ahead is None else config.prefetch_batches)


def find_largest_batch(
    engine: Engine,
    carry: Carry,
    batch: Any,
    max_inflight_steps: int = 1,
    limit_bytes: int | None = None,
    max_size: int | None = None,
    max_compiles: int = 10,
) -> BatchLimit:
    """Compile the training step for growing batches, until one does not fit.

    Args:
        engine: What the training runs on.
        carry: Its state.
        batch: A batch of the usual form and of any size.
        max_inflight_steps: How many batches the training has on the device at once.
        limit_bytes: What each device has for the training; what is free on it now, and the state, if left out.
        max_size: The largest size to try; None for no bound.
        max_compiles: How often to compile at most.
    """
    multiple = _multiple(engine)
    _check(engine, limit_bytes, max_size, max_compiles, multiple)
    limit, source = (limit_bytes, "as given") if limit_bytes is not None else _device_limit(engine, carry)
    limit = min(engine.processes.gather(limit))  # all have to try the same sizes
    layout = engine.train_layout(carry, batch)
    step = engine.compile_step(layout, "batch_limit")
    state_forms = forms_of((carry, layout.initial))

    def bytes_of(size: int) -> int | None:
        forms = _batch_forms(engine, batch, size)
        needed = _compiled_bytes(step.lower(*state_forms, forms))  # type: ignore[attr-defined]
        return (
            None
            if needed is None
            else needed + (max_inflight_steps - 1) * device_bytes(forms, engine.placement.shardings)
        )

    most = None if max_size is None else max_size // multiple
    start = max(1, batch_size(batch) // multiple)
    trials = search(lambda units: bytes_of(units * multiple), limit, start, most, max_compiles)
    tried = tuple(BatchTrial(units * multiple, needed, fits) for units, needed, fits in sorted(trials))
    largest = max((trial.size for trial in tried if trial.fits), default=None)
    return BatchLimit(largest, limit, tried, multiple, source, is_bounded=not all(trial.fits for trial in tried))


def search(
    bytes_of: Callable[[int], int | None], limit: int, start: int, most: int | None, max_trials: int
) -> list[tuple[int, int | None, bool]]:
    """Find the largest number whose bytes are within a limit, given that they grow with it.

    Args:
        bytes_of: The bytes of a number; None for more than can be told.
        limit: The limit.
        start: Where to begin.
        most: The largest number; None for no bound.
        max_trials: How often `bytes_of` may be called.

    Returns:
        What was tried: the number, its bytes, and whether they are within the limit.
    """
    trials: list[tuple[int, int | None, bool]] = []
    low, high = 0, math.inf if most is None else most + 1
    number = min(start, high - 1)
    while len(trials) < max_trials and low < high - 1 and high - low > _CLOSE * low:
        needed = bytes_of(int(number))
        fits = needed is not None and needed <= limit
        trials.append((int(number), needed, fits))
        low, high = (int(number), high) if fits else (low, int(number))
        number = _next(trials, limit, low, high)
    return trials


def _next(trials: list[tuple[int, int | None, bool]], limit: int, low: int, high: float) -> float:
    """Where the line through the two numbers nearest to the limit reaches it, within what is still open.

    Every other time, a wide interval is cut in the middle: bytes that grow by steps can mislead the line. It says
    nothing about a program that is too large to be compiled.
    """
    is_blind = (high, None, False) in trials
    if is_blind or (1.25 * low < high < math.inf and len(trials) % 2):
        return min(max(math.isqrt(low * int(high)), low + 1), high - 1)
    known = sorted((abs(needed - limit), number, needed) for number, needed, _ in trials if needed is not None)
    guess = 2 * low if high == math.inf else (low + high) // 2
    if len(known) > 1:
        (_, first, first_bytes), (_, second, second_bytes) = known[:2]
        if (slope := (second_bytes - first_bytes) / (second - first)) > 0:
            guess = math.floor(first + (limit - first_bytes) / slope)
    # Without a size that is known not to fit, the search would creep up on the limit by ones.
    least = low + 1 if high < math.inf else low + max(1, math.floor(_CLOSE * low))
    return min(max(guess, least), high - 1, _GROWTH * max(low, 1))


def _multiple(engine: Engine) -> int:
    """What the batches of this process have to be divisible by: each microbatch is split over its devices."""
    return engine.placement.num_microbatches * num_own_batch_shards(engine.mesh)


def _check(engine: Engine, limit_bytes: int | None, max_size: int | None, max_compiles: int, multiple: int) -> None:
    if engine.debug:
        raise ConfigError("largest_batch: with debug=True nothing is compiled; build a trainer without it")
    check_value(float | None, limit_bytes, "limit_bytes")  # 16e9 is well understood
    check_types(_check, max_size=max_size, max_compiles=max_compiles)
    if limit_bytes is not None and limit_bytes <= 0:
        raise ConfigError(f"limit_bytes: expected a positive number of bytes, got {limit_bytes}")
    if max_size is not None and max_size < multiple:
        raise ConfigError(f"max_size: expected at least {multiple}, the smallest batch there is here, got {max_size}")
    if max_compiles < 1:
        raise ConfigError(f"max_compiles: expected a positive number, got {max_compiles}")


# --- memory -----------------------------------------------------------------------------------------------------------


def _batch_forms(engine: Engine, batch: Any, size: int) -> Any:
    """The form of a batch of another size; of all processes together, as the compiled step sees it."""
    total = size * num_batch_shards(engine.mesh) // num_own_batch_shards(engine.mesh)

    def resized(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return leaf.update(shape=(total, *leaf.shape[1:])) if leaf.shape else leaf

    return jax.tree.map(resized, forms_of(batch))


def _compiled_bytes(lowered: Any) -> int | None:
    """What a program needs on each device while it runs, with its arguments; None if it is too large to compile."""
    try:
        memory = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None
    if memory is None:
        raise ConfigError("largest_batch: the compiler of this device does not say how much memory a program needs")
    inputs_and_outputs = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return inputs_and_outputs + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes


def _device_limit(engine: Engine, carry: Carry) -> tuple[int, str]:
    """What each device has for the training: what is free, and what its state takes already."""
    state = device_bytes(carry, engine.carry_shardings)
    devices = [device for device in engine.mesh.devices.flat if device.process_index == jax.process_index()]
    stats = [device.memory_stats() or {} for device in devices]
    if all("bytes_limit" in each for each in stats):
        free = min(each["bytes_limit"] - each.get("bytes_in_use", 0) for each in stats)
        return free + state, "free on the device"
    available = _available_host_bytes()
    if available is None:
        kind = devices[0].device_kind
        raise ConfigError(f"limit_bytes: how much memory a {kind!r} device has is not known; pass it")
    shared = f", shared by {count(len(devices), 'device')}" if len(devices) > 1 else ""
    return available // len(devices) + state, f"free on the host{shared}"


def _available_host_bytes() -> int | None:
    """The memory that programs can take, of the machine or the container; None where the system does not say."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:
        limit, used = (int((_CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or one without a limit
        return free
    return min(free, limit - used)
