"""The learning-rate range test: some steps with a growing learning rate, on a copy of the training's state.

The optimizer of a config is built again with an exponential schedule. An optax optimizer does not say where its
learning rate is. Its updates are multiplied instead, which is the same for all optimizers whose update is proportional
to the rate, and the rates are multiples of its own.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from trackside.errors import ConfigError, DataError
from trackside.metrics import MetricLayout
from trackside.metrics.host import HostMetrics
from trackside.trainer.engine import Engine
from trackside.trainer.first_look import FirstLook
from trackside.trainer.learning_rate_curve import LearningRateTest, explosion_threshold
from trackside.trainer.loaders import (
    decode_position,
    get_position,
    has_position,
    open_loader,
    set_epoch,
    set_position,
)
from trackside.trainer.lr_schedules import SchedulerConfig, check_number
from trackside.trainer.optimizer import OptimizerConfig
from trackside.trainer.sharding import optimizer_specs, to_shardings
from trackside.trainer.train_state import Carry

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule

MakeOptimizer = Callable[[optax.Schedule], optax.GradientTransformation]
"""Makes an optimizer with a given schedule: `lambda schedule: optax.adamw(schedule, weight_decay=0.1)`."""

_RATES, _MULTIPLES = (1e-7, 10.0), (1e-4, 1e4)
_LEAST_STEPS = 10
_RECENT = 3
"""The loss has exploded when the mean over this many steps has."""


@dataclass(frozen=True)
class _Ramp:
    """An optimizer whose learning rate grows with each step."""

    tx: optax.GradientTransformation
    learning_rates: np.ndarray
    is_relative: bool = False


def find_learning_rate(
    trainer: "TrainerModule",
    loader: Iterable | None = None,
    lowest: float | None = None,
    highest: float | None = None,
    num_steps: int = 100,
    optimizer: MakeOptimizer | None = None,
) -> LearningRateTest:
    """Train a copy of the model with a growing learning rate, until the loss explodes or the highest rate is reached.

    Args:
        trainer: Whose model, step, data placement and optimizer are used. It is left as it is.
        loader: The batches, repeated if they are too few; those that the trainer trains on if left out.
        lowest: The first learning rate.
        highest: The last learning rate.
        num_steps: How many steps there are from the first to the last.
        optimizer: Makes the optimizer for a schedule, where the trainer's own does not say its learning rate.
    """
    if loader is None and trainer.dataset is not None:
        loader = trainer.dataset.train_dataloader
    if loader is None:
        raise ConfigError("loader: there is none; pass one, or set the loaders with set_dataset before")
    _check(lowest, highest, num_steps)
    engine, carry = trainer.engine, jax.tree.map(lambda leaf: leaf.copy(), trainer.progress.carry)
    ramp = _build_ramp(trainer, lowest, highest, num_steps, optimizer)
    engine, carry = _with_optimizer(engine, carry, ramp.tx)
    with _Batches(loader, trainer.first_look, max(trainer.epoch - 1, 0)) as batches:
        first = next(batches, None)
        if first is None:
            raise DataError("loader: it has no batches")
        engine.placement.check_train_batch(first)
        engine.placement.agree_on_size(first)
        layout = engine.train_layout(carry, first)
        losses, has_diverged = _losses(trainer, engine, carry, layout, first, batches, num_steps)
    if len(losses) < _LEAST_STEPS and not has_diverged:
        raise DataError(f"loader: it ended after {len(losses)} batches; the test needs {_LEAST_STEPS} or more")
    return LearningRateTest(ramp.learning_rates[: len(losses)], losses, ramp.is_relative, has_diverged)


def _check(lowest: float | None, highest: float | None, num_steps: int) -> None:
    check_number("lowest", lowest, above=0.0, optional=True)
    check_number("highest", highest, above=0.0, optional=True)
    if lowest is not None and highest is not None and not lowest < highest:
        raise ConfigError(f"highest: expected a learning rate above lowest={lowest}, got {highest}")
    if not isinstance(num_steps, Integral) or num_steps < _LEAST_STEPS:
        raise ConfigError(f"num_steps: expected {_LEAST_STEPS} or more, got {num_steps!r}")


# --- the optimizer ----------------------------------------------------------------------------------------------------


def _build_ramp(
    trainer: "TrainerModule", lowest: float | None, highest: float | None, num_steps: int, make: MakeOptimizer | None
) -> _Ramp:
    rates = np.geomspace(lowest or _RATES[0], highest or _RATES[1], num_steps)
    scheduler = SchedulerConfig(name="exponential", lr=rates[0], end_lr=rates[-1], decay_steps=num_steps - 1)
    if make is not None:
        return _Ramp(make(_exponential(rates)), rates)
    tx, schedule = _optimizer_of(trainer, _with_scheduler(trainer.optimizer_config, scheduler))
    if _follows(schedule, rates):
        return _Ramp(tx, rates)
    state = jax.eval_shape(tx.init, trainer.progress.carry.params)
    if _has_schedule(state):
        raise ConfigError(
            "optimizer: it has a schedule of its own, on top of which no other can be tested; pass a function that "
            "makes it with another one: find_learning_rate(loader, optimizer=lambda schedule: optax.adamw(schedule))"
        )
    multiples = np.geomspace(lowest or _MULTIPLES[0], highest or _MULTIPLES[1], num_steps)
    return _Ramp(optax.chain(tx, optax.scale_by_schedule(_exponential(multiples))), multiples, is_relative=True)


def _optimizer_of(
    trainer: "TrainerModule", config: OptimizerConfig
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The optimizer that a trainer makes of a config, in whichever way it does that, and the schedule that it knows."""
    before = trainer.tx, trainer.schedule
    try:
        trainer.init_optimizer(config)
        return trainer.tx, trainer.schedule
    finally:
        trainer.tx, trainer.schedule = before


def _exponential(rates: np.ndarray) -> optax.Schedule:
    first, last = float(rates[0]), float(rates[-1])
    return optax.exponential_decay(first, len(rates) - 1, last / first, end_value=last)


def _with_scheduler(config: OptimizerConfig, scheduler: SchedulerConfig) -> OptimizerConfig:
    """The config with another schedule. Groups with an optimizer of their own keep the ratio of their rates to it."""

    def changed(group: Any) -> Any:
        own = group.optimizer
        if own is None or not config.scheduler.lr:
            return group
        ratio = own.scheduler.lr / config.scheduler.lr
        scaled = replace(scheduler, lr=ratio * scheduler.lr, end_lr=ratio * scheduler.decayed_lr) if ratio else None
        return group if scaled is None else replace(group, optimizer=replace(own, scheduler=scaled))

    return replace(config, scheduler=scheduler, groups=[changed(group) for group in config.groups])


def _follows(schedule: optax.Schedule, rates: np.ndarray) -> bool:
    """Whether a trainer's optimizer has taken the schedule of its config, and is not made in another way."""
    try:
        ends = [np.asarray(schedule(step)).item() for step in (0, len(rates) - 1)]
    except ConfigError:  # the trainer does not know the schedule of an optax optimizer
        return False
    return bool(np.allclose(ends, rates[[0, -1]], rtol=1e-3))


def _has_schedule(state: Any) -> bool:
    def is_schedule(node: Any) -> bool:
        return isinstance(node, optax.ScaleByScheduleState)

    return any(is_schedule(node) for node in jax.tree.leaves(state, is_leaf=is_schedule))


def _with_optimizer(engine: Engine, carry: Carry, tx: optax.GradientTransformation) -> tuple[Engine, Carry]:
    """The engine and a state with another optimizer, which has not made a step."""
    specs = jax.tree.map(lambda sharding: sharding.spec, engine.carry_shardings.params)
    abstract = jax.eval_shape(tx.init, carry.params)
    shardings = to_shardings(
        engine.mesh, optimizer_specs(engine.mesh, abstract, carry.params, specs, engine.fsdp_min_weight_size)
    )
    opt_state = jax.jit(tx.init, out_shardings=shardings)(carry.params)
    carry_shardings = engine.carry_shardings._replace(opt_state=shardings)
    return dataclasses.replace(engine, tx=tx, carry_shardings=carry_shardings), carry._replace(opt_state=opt_state)


# --- the steps --------------------------------------------------------------------------------------------------------


def _losses(
    trainer: "TrainerModule",
    engine: Engine,
    carry: Carry,
    layout: MetricLayout,
    first: Any,
    batches: Iterator,
    num_steps: int,
) -> tuple[np.ndarray, bool]:
    """The loss of each step, and whether the last ones exploded."""
    if "loss" not in layout.names:
        raise ConfigError("find_learning_rate: the training step has no metric `loss` to go by; add it to its metrics")
    step, vector = engine.compile_step(layout, "learning_rate_test"), engine.fresh_vector(layout)
    losses: list[float] = []
    batch = first
    for _ in trainer.tracker(range(num_steps), desc="learning rates", leave=False, delay=1.0):
        carry, report = step(carry, vector, engine.placement.place_train(batch))
        losses.append(_loss(layout, np.asarray(report)))  # waits, so that the loader may reuse its memory
        if _has_exploded(losses):
            return np.array(losses), True
        batch = next(batches, None)
        if batch is None:
            break
    return np.array(losses), False


def _loss(layout: MetricLayout, vector: np.ndarray) -> float:
    metrics, at = HostMetrics(layout, vector), layout.names.index("loss")
    return float(metrics.sum[at] / metrics.count[at]) if metrics.count[at] else math.nan


def _has_exploded(losses: list[float]) -> bool:
    if not math.isfinite(losses[-1]):
        return True
    return len(losses) > _RECENT and float(np.mean(losses[-_RECENT:])) > explosion_threshold(np.array(losses))


class _Batches:
    """The batches of a loader, again and again, which is put back to where it was if it can say where that is."""

    def __init__(self, loader: Iterable, first_look: FirstLook, epoch: int):
        self._loader = loader
        self._epoch = epoch
        self._position = get_position(loader) if has_position(loader) else None
        set_epoch(loader, epoch)
        iterator, self._iterator = first_look.open(loader, "loader")
        self._is_own = iterator is loader

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator, None)
        if batch is None and not self._is_own:
            set_epoch(self._loader, self._epoch)
            self._iterator = open_loader(self._loader, "loader")
            batch = next(self._iterator, None)
        if batch is None:
            raise StopIteration
        return batch

    def __enter__(self) -> "_Batches":
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._position is not None:
            set_position(self._loader, decode_position(self._position))
