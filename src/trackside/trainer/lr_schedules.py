"""The learning rate as a function of the step: warmup, then a main schedule, then cooldown.

    step    0  ->  warmup_steps  ->  decay_steps - cooldown_steps  ->  decay_steps  ->  ...
    rate    0  ->  lr            ->  end_lr                        ->  cooldown_lr, and stays

The main schedule is looked up by its name, so that users can add their own with `register_schedule`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import jax.numpy as jnp
import optax

from trackside.config import ConfigDict
from trackside.config.wording import did_you_mean, listed
from trackside.errors import ConfigError


@dataclass
class SchedulerConfig(ConfigDict):
    """Which learning rate each step has. Steps are counted from 0, the first update of the parameters."""

    name: str = "constant"
    """The main schedule: constant, warmup, linear, cosine, exponential, or one of `register_schedule`."""
    lr: float = 1e-3
    """The learning rate at the end of the warmup, where the main schedule starts."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0 to `lr`, in front of any schedule."""
    decay_steps: int | None = None
    """The step at which the schedule ends, warmup and cooldown included; the learning rate stays as it is then."""
    end_lr: float | None = None
    """Where linear, cosine and exponential end; None for `lr * end_lr_factor`."""
    end_lr_factor: float = 0.1
    """The end of the decay as a part of `lr`, where `end_lr` is None."""
    cooldown_steps: int = 0
    """The last of `decay_steps`, over which the learning rate goes linearly to `cooldown_lr`."""
    cooldown_lr: float = 0.0
    """The learning rate at the end of the cooldown."""

    def __post_init__(self) -> None:
        _builder_of(self.name)
        for field in ("lr", "end_lr_factor", "cooldown_lr"):
            check_number(f"SchedulerConfig.{field}", getattr(self, field))
        check_number("SchedulerConfig.end_lr", self.end_lr, optional=True)
        for field in ("warmup_steps", "cooldown_steps"):
            _check_steps(field, getattr(self, field))
        if self.decay_steps is not None:
            _check_steps("decay_steps", self.decay_steps)
        self._check_length()
        self._check_name()

    @property
    def decayed_lr(self) -> float:
        """Where a decay ends: `end_lr`, or what `end_lr_factor` makes of `lr`."""
        return self.lr * self.end_lr_factor if self.end_lr is None else self.end_lr

    @property
    def num_main_steps(self) -> int | None:
        """How many of `decay_steps` lie between warmup and cooldown; None for a schedule without end."""
        if self.decay_steps is None:
            return None
        return self.decay_steps - self.warmup_steps - self.cooldown_steps

    def _check_length(self) -> None:
        needs_end = self.name in _DECAYS or self.cooldown_steps > 0
        if self.num_main_steps is None:
            if needs_end:
                what = f"the schedule {self.name!r}" if self.name in _DECAYS else "a cooldown"
                raise ConfigError(
                    f"SchedulerConfig.decay_steps: {what} needs the step at which it ends, got None; "
                    "set it to the number of training steps"
                )
        elif self.num_main_steps < (1 if self.name in _DECAYS else 0):
            raise ConfigError(
                f"SchedulerConfig.decay_steps: {self.decay_steps} steps leave none for the schedule {self.name!r} "
                f"beside warmup_steps={self.warmup_steps} and cooldown_steps={self.cooldown_steps}, which count as "
                "part of them; make decay_steps larger or the others smaller"
            )

    def _check_name(self) -> None:
        if self.name == "warmup" and self.warmup_steps == 0:
            raise ConfigError(
                "SchedulerConfig.warmup_steps: the schedule 'warmup' needs at least 1, got 0; "
                "set it, or use the name 'constant'"
            )
        if self.name in ("exponential", "exponential_decay") and not (self.lr > 0 and self.decayed_lr > 0):
            raise ConfigError(
                f"SchedulerConfig.end_lr: an exponential goes from and to numbers above 0, got lr={self.lr} and an "
                f"end of {self.decayed_lr}; set both above 0, or use 'cosine' or 'linear'"
            )


ScheduleBuilder = Callable[[SchedulerConfig], optax.Schedule]

_SCHEDULES: dict[str, ScheduleBuilder] = {}
_DECAYS = ("linear", "linear_decay", "cosine", "cosine_decay", "exponential", "exponential_decay")


def register_schedule(name: str) -> Callable[[ScheduleBuilder], ScheduleBuilder]:
    """Make a main schedule known by a name: `@register_schedule("rsqrt")` above `fn(config) -> optax.Schedule`.

    The schedule is called with the number of steps since the warmup, and starts at `config.lr`; warmup and cooldown are
    put around it. An earlier schedule of the same name is replaced.
    """

    def register(builder: ScheduleBuilder) -> ScheduleBuilder:
        _SCHEDULES[name] = builder
        return builder

    return register


def build_schedule(config: SchedulerConfig) -> optax.Schedule:
    """The learning rate of each step, for Python integers and for arrays inside jit."""
    main = _builder_of(config.name)(config)
    schedules, boundaries = [main], []
    if config.warmup_steps:
        schedules.insert(0, optax.linear_schedule(0.0, config.lr, config.warmup_steps))
        boundaries.append(config.warmup_steps)
    if config.cooldown_steps:
        schedules.append(_cooldown(config, main))
        boundaries.append(config.warmup_steps + _num_main_steps(config))
    return optax.join_schedules(schedules, boundaries) if boundaries else main


def _cooldown(config: SchedulerConfig, main: optax.Schedule) -> optax.Schedule:
    def schedule(count: Any) -> Any:
        # Evaluated here rather than once in advance: building a schedule must not start the device backend.
        start_lr = main(_num_main_steps(config))
        return optax.linear_schedule(start_lr, config.cooldown_lr, config.cooldown_steps)(count)

    return schedule


@register_schedule("constant")
@register_schedule("warmup")
def _constant(config: SchedulerConfig) -> optax.Schedule:
    return optax.constant_schedule(config.lr)


@register_schedule("linear")
@register_schedule("linear_decay")
def _linear(config: SchedulerConfig) -> optax.Schedule:
    return optax.linear_schedule(config.lr, config.decayed_lr, _num_main_steps(config))


@register_schedule("cosine")
@register_schedule("cosine_decay")
def _cosine(config: SchedulerConfig) -> optax.Schedule:
    num_steps, end_lr = _num_main_steps(config), config.decayed_lr

    # optax states the end as a part of `lr`, which leaves none for an `lr` of 0.
    def schedule(count: Any) -> Any:
        progress = jnp.minimum(count, num_steps) / num_steps
        return end_lr + (config.lr - end_lr) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

    return schedule


@register_schedule("exponential")
@register_schedule("exponential_decay")
def _exponential(config: SchedulerConfig) -> optax.Schedule:
    end_lr = config.decayed_lr
    return optax.exponential_decay(config.lr, _num_main_steps(config), end_lr / config.lr, end_value=end_lr)


def _num_main_steps(config: SchedulerConfig) -> int:
    # For schedules that `SchedulerConfig` has checked to have an end.
    assert config.num_main_steps is not None
    return config.num_main_steps


def _builder_of(name: str) -> ScheduleBuilder:
    if name not in _SCHEDULES:
        raise ConfigError(
            f"SchedulerConfig.name: no schedule is called {name!r}, registered are {listed(sorted(_SCHEDULES))}."
            f"{did_you_mean(name, _SCHEDULES)} Add your own with register_schedule before the config is made"
        )
    return _SCHEDULES[name]


def check_number(
    field: str, value: Any, *, above: float | None = None, below: float = math.inf, optional: bool = False
) -> None:
    """Refuse what is not a finite number in range.

    Args:
        field: What the error calls the value.
        value: The value.
        above: What the value must be larger than; None for at least 0.
        below: What the value must be smaller than.
        optional: Whether None is accepted too.

    Raises:
        ConfigError: If the value does not fit.
    """
    if value is None and optional:
        return
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if (number >= 0 if above is None else number > above) and number < below:
            return
    bounds = "of at least 0" if above is None else f"above {above:g}"
    bounds += f" and below {below:g}" if math.isfinite(below) else ""
    raise ConfigError(f"{field}: expected a finite number {bounds}{' or None' if optional else ''}, got {value!r}")


def _check_steps(field: str, value: Any) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 0:
        raise ConfigError(f"SchedulerConfig.{field}: expected a number of steps, 0 or more, got {value!r}")
