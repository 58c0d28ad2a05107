from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trackside.config import ConfigDict
from trackside.errors import ConfigError
from trackside.trainer import lr_schedules
from trackside.trainer.lr_schedules import SchedulerConfig, build_schedule, register_schedule


def rates(config, steps):
    schedule: Any = build_schedule(config)
    return [float(schedule(step)) for step in steps]


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(lr_schedules, "_SCHEDULES", dict(lr_schedules._SCHEDULES))


def test_constant_never_changes():
    """Without warmup, the constant schedule is `lr` from the first step on."""
    assert rates(SchedulerConfig(lr=0.5), [0, 1, 1000]) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("name", ["constant", "warmup"])
def test_warmup_rises_linearly_from_zero(name):
    """The warmup starts at 0 and reaches `lr` at step `warmup_steps`, after which it stays."""
    config = SchedulerConfig(name=name, lr=0.8, warmup_steps=4)
    np.testing.assert_allclose(rates(config, [0, 1, 2, 3, 4, 5, 50]), [0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "middle"),
    [
        ("linear", 0.55),
        ("cosine", 0.55),
        ("exponential", 0.1**0.5),
    ],
)
def test_decay_counts_from_step_0_and_includes_the_warmup(name, middle):
    """A decay is at `lr` after the warmup, half way between it and `decay_steps`, and at its end from then on."""
    config = SchedulerConfig(name=name, lr=1.0, warmup_steps=4, decay_steps=24)
    expected = [0.0, 0.5, 1.0, middle, 0.1, 0.1, 0.1]
    np.testing.assert_allclose(rates(config, [0, 2, 4, 14, 24, 25, 10_000]), expected, rtol=1e-6)


def test_quarter_points_tell_the_shapes_apart():
    """A quarter into the decay, each schedule has the value of its own formula."""
    shapes = {"linear": 0.775, "cosine": 0.1 + 0.45 * (1 + np.cos(np.pi / 4)), "exponential": 0.1**0.25}
    for name, expected in shapes.items():
        config = SchedulerConfig(name=name, lr=1.0, decay_steps=8)
        np.testing.assert_allclose(rates(config, [0, 2]), [1.0, expected], rtol=1e-6)


@pytest.mark.parametrize("name", ["linear", "cosine", "exponential"])
def test_end_lr_wins_over_its_factor(name):
    """`end_lr` is where a decay ends; `end_lr_factor` counts only without it."""
    given = SchedulerConfig(name=name, lr=2.0, decay_steps=10, end_lr=0.3, end_lr_factor=0.5)
    derived = SchedulerConfig(name=name, lr=2.0, decay_steps=10, end_lr_factor=0.5)
    np.testing.assert_allclose(rates(given, [10, 11]), [0.3, 0.3], rtol=1e-6)
    np.testing.assert_allclose(rates(derived, [10, 11]), [1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize("name", ["linear", "cosine", "exponential"])
def test_decay_alias_is_the_same_schedule(name):
    """`cosine_decay` and its like are second names of `cosine` and its like."""
    steps = range(0, 12, 3)
    long = SchedulerConfig(name=f"{name}_decay", lr=1.0, warmup_steps=2, decay_steps=10)
    short = SchedulerConfig(name=name, lr=1.0, warmup_steps=2, decay_steps=10)
    assert rates(long, steps) == rates(short, steps)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_decay_to_zero_reaches_zero(name):
    """A decay to 0 is exactly 0 from `decay_steps` on."""
    assert rates(SchedulerConfig(name=name, lr=0.7, decay_steps=7, end_lr=0.0), [7, 8]) == [0.0, 0.0]


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_lr_of_zero_is_allowed(name):
    """With `lr=0` nothing is learned, and nothing divides by it."""
    assert rates(SchedulerConfig(name=name, lr=0.0, decay_steps=4), [0, 2, 4]) == [0.0, 0.0, 0.0]


def test_cooldown_is_the_last_part_of_decay_steps():
    """The cooldown starts where the main schedule ends, `cooldown_steps` before `decay_steps`."""
    config = SchedulerConfig(
        name="linear", lr=1.0, warmup_steps=2, decay_steps=16, end_lr=0.4, cooldown_steps=4, cooldown_lr=0.2
    )
    expected = [0.0, 1.0, 0.7, 0.4, 0.3, 0.2, 0.2]
    np.testing.assert_allclose(rates(config, [0, 2, 7, 12, 14, 16, 99]), expected, rtol=1e-6)


def test_constant_may_be_all_warmup_and_cooldown():
    """A constant with cooldown is a trapezoid, whose top may be a single step."""
    config = SchedulerConfig(lr=1.0, warmup_steps=4, decay_steps=8, cooldown_steps=4)
    np.testing.assert_allclose(rates(config, [0, 2, 4, 6, 8, 9]), [0, 0.5, 1, 0.5, 0, 0], atol=1e-7)


def test_same_under_jit_and_strict_promotion():
    """A traced int32 step gives what a Python integer gives, with strict dtype promotion."""
    config = SchedulerConfig(name="cosine", lr=0.3, warmup_steps=3, decay_steps=20, cooldown_steps=5)
    steps = [0, 1, 3, 9, 15, 17, 20, 30]
    with jax.numpy_dtype_promotion("strict"):
        traced = jax.jit(jax.vmap(build_schedule(config)))(jnp.asarray(steps, jnp.int32))
    np.testing.assert_allclose(traced, rates(config, steps), rtol=1e-5, atol=1e-7)


def test_own_schedule_gets_warmup_and_cooldown(own_registry):
    """A registered schedule counts from the end of the warmup, and the cooldown starts at its last value."""

    @register_schedule("rsqrt")
    def rsqrt(config: SchedulerConfig) -> optax.Schedule:
        return lambda count: config.lr / jnp.sqrt(1.0 + count)

    config = SchedulerConfig(name="rsqrt", lr=1.0, warmup_steps=2, decay_steps=7, cooldown_steps=2)
    np.testing.assert_allclose(rates(config, [1, 2, 5, 6, 7]), [0.5, 1.0, 0.5, 0.25, 0.0], rtol=1e-6)


def test_config_round_trip():
    """A config is equal to what is read back from its dict."""
    config = SchedulerConfig(name="cosine", lr=0.1, warmup_steps=3, decay_steps=10, end_lr=0.01, cooldown_steps=2)
    assert ConfigDict.from_dict(SchedulerConfig, config.to_dict()) == config


def test_unknown_name_lists_the_registered_ones():
    """An unknown schedule is refused with all names that there are, and the closest one."""
    with pytest.raises(ConfigError, match=r"'cosin'.*constant, cosine.*linear.*Did you mean 'cosine'"):
        SchedulerConfig(name="cosin")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lr": -1.0}, r"lr: .*at least 0, got -1.0"),
        ({"lr": float("nan")}, r"lr: .*finite.*got nan"),
        ({"lr": float("inf")}, r"lr: .*finite.*got inf"),
        ({"lr": "1e-3"}, r"lr: .*number.*got '1e-3'"),
        ({"lr": None}, r"lr: .*number.*got None"),
        ({"end_lr": -0.1}, r"end_lr: .*got -0.1"),
        ({"end_lr_factor": -0.1}, r"end_lr_factor: .*got -0.1"),
        ({"cooldown_lr": -0.1}, r"cooldown_lr: .*got -0.1"),
        ({"warmup_steps": -1}, r"warmup_steps: .*got -1"),
        ({"warmup_steps": 1.5}, r"warmup_steps: .*got 1.5"),
        ({"decay_steps": -5}, r"decay_steps: .*got -5"),
        ({"cooldown_steps": True}, r"cooldown_steps: .*got True"),
        ({"name": "linear"}, r"decay_steps: the schedule 'linear' needs .*got None; set"),
        ({"name": "cosine_decay"}, r"decay_steps: the schedule 'cosine_decay' needs .*got None; set"),
        ({"cooldown_steps": 3}, r"decay_steps: a cooldown needs .*got None; set"),
        ({"warmup_steps": 11, "decay_steps": 10}, r"decay_steps: 10 .*warmup_steps=11"),
        ({"name": "cosine", "warmup_steps": 10, "decay_steps": 10}, r"decay_steps: 10 .*warmup_steps=10"),
        ({"name": "cosine", "cooldown_steps": 10, "decay_steps": 10}, r"decay_steps: 10 .*cooldown_steps=10"),
        ({"name": "linear", "decay_steps": 0}, r"decay_steps: 0 "),
        ({"name": "warmup"}, r"warmup_steps: .*got 0"),
        ({"name": "exponential", "decay_steps": 10, "end_lr": 0.0}, r"end_lr: .*end of 0.0; set both above 0"),
        ({"name": "exponential", "decay_steps": 10, "lr": 0.0}, r"end_lr: .*lr=0.0"),
    ],
)
def test_bad_input_names_field_and_value(fields, message):
    """What cannot work is refused when the config is made, with the field and its value."""
    with pytest.raises(ConfigError, match=r"SchedulerConfig\." + message):
        SchedulerConfig(**fields)
