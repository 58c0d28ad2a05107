"""Leaks are named with their slope, and nothing else is taken for one."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from trackside.profiling.leak import (
    HOST_TOLERANCE,
    LIVE_TOLERANCE,
    MAX_POINTS,
    Leak,
    LeakWatch,
    SeriesWatch,
    Tolerance,
    theil_sen,
)
from trackside.profiling.memory import owner_bytes

pytestmark = pytest.mark.usefixtures("no_garbage")

MB = 1_000_000


def first_growth(
    value_of: Callable[[int], float], num_samples: int = 400, tolerance: Tolerance = HOST_TOLERANCE
) -> tuple[float, int] | None:
    """The first growth that is found in samples every 100 steps."""
    watch = SeriesWatch(tolerance)
    found = (watch.add(100 * index, value_of(index)) for index in range(num_samples))
    return next((growth for growth in found if growth is not None), None)


def make_sample(step: int, other: int = 0, device: int = 0, host: int = 0) -> dict[str, Any]:
    return {
        "step": step,
        "live": {"params": 100, "other": other, "num_arrays": 3},
        "memory": {"cuda:0": {"bytes_in_use": device}},
        "host": {"private_bytes": host},
    }


def test_slope_is_not_moved_by_bad_points() -> None:
    """A quarter of the points may be anything."""
    steps = np.arange(40.0)
    values = 3 * steps
    values[::4] += 1e6
    assert theil_sen(steps, values) == pytest.approx(3, rel=0.05)


def test_steady_growth_is_found() -> None:
    """Growth of 5 MB per 100 steps is found with its slope."""
    assert first_growth(lambda index: 500 * MB + 5 * MB * index) == (pytest.approx(5 * MB / 100), 0)


def test_growth_that_begins_late_is_found() -> None:
    """A leak that begins after a long quiet time is found soon, and dated."""
    growth = first_growth(lambda index: 500 * MB + 5 * MB * max(0, index - 250), num_samples=280)
    assert growth is not None
    assert growth[1] >= 24_000
    assert growth[0] == pytest.approx(5 * MB / 100, rel=0.2)


def test_slow_growth_in_noise_is_found() -> None:
    """A leak that the noise hides for a while is found when enough has gathered."""
    noise = np.random.default_rng(0).normal(0, 20 * MB, 3000)
    growth = first_growth(lambda index: 500 * MB + 0.2 * MB * index + noise[index], 3000)
    assert growth is not None
    assert growth[0] == pytest.approx(0.2 * MB / 100, rel=0.3)


def test_few_bytes_of_live_arrays_are_found() -> None:
    """A list that keeps one number per step is found: live arrays are counted exactly."""
    assert first_growth(lambda index: 10 * MB + 400 * index, tolerance=LIVE_TOLERANCE) == (pytest.approx(4), 0)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_leak(seed: int) -> None:
    """Noise around a level is ignored, however long it lasts."""
    noise = np.random.default_rng(seed).normal(0, 30 * MB, 2000)
    assert first_growth(lambda index: 500 * MB + noise[index], 2000) is None


QUIET: dict[str, Callable[[int], float]] = {
    "constant": lambda index: 500 * MB,
    "warm-up": lambda index: 500 * MB * (1 - 0.5 ** (index / 3)),
    "long warm-up": lambda index: 500 * MB + 200 * MB * min(index, 10) / 10,
    "one jump": lambda index: 500 * MB + (300 * MB if index >= 40 else 0),
    "two jumps": lambda index: 500 * MB + 300 * MB * (index >= 40) + 300 * MB * (index >= 45),
    "validation": lambda index: 500 * MB + (400 * MB if index % 8 == 7 else 0),
    "garbage": lambda index: 500 * MB + 30 * MB * (index % 6),
    "shrinking": lambda index: 5000 * MB - 5 * MB * index,
}


@pytest.mark.parametrize("tolerance", [HOST_TOLERANCE, LIVE_TOLERANCE], ids=["host", "live"])
@pytest.mark.parametrize("name", QUIET)
def test_what_is_no_leak(name: str, tolerance: Tolerance) -> None:
    """Memory that comes back and growth that ends are ignored."""
    assert first_growth(QUIET[name], tolerance=tolerance) is None


def test_history_is_bounded() -> None:
    """However many samples there are, the number of points is bounded."""
    watch = SeriesWatch(HOST_TOLERANCE)
    for index in range(5000):
        watch.add(index, 1.0)
    assert len(watch._floors) < MAX_POINTS
    assert len(watch._recent) + len(watch._group) < 1000


def test_leak_is_named_once() -> None:
    """What leaks is named with slope and first step, one time."""
    watch = LeakWatch()
    leaks = [leak for index in range(60) for leak in watch.add(make_sample(100 * index, other=12_000 * index))]
    assert [str(leak) for leak in leaks] == ["other live arrays grow by 12 kB per 100 steps since step 0"]


def test_what_a_loop_keeps_is_no_leak() -> None:
    """It is bounded, however long it takes to get there."""
    watch = LeakWatch()
    samples = [make_sample(100 * index) for index in range(60)]
    for index, sample in enumerate(samples):
        sample["live"]["loop"] = 132 * index
    assert not [leak for sample in samples for leak in watch.add(sample)]


def test_live_arrays_explain_their_device_and_host() -> None:
    """Growth of device and host that live arrays make up for is not named again."""
    watch = LeakWatch()
    names = [
        leak.name
        for index in range(60)
        for leak in watch.add(make_sample(100 * index, other=9 * MB * index, device=10 * MB * index, host=MB * index))
    ]
    assert names == ["other live arrays"]


def test_host_leak_is_named_where_arrays_do_not_grow() -> None:
    """A leak outside of JAX is one of the host."""
    watch = LeakWatch()
    leaks = [leak for index in range(60) for leak in watch.add(make_sample(100 * index, host=3 * MB * index))]
    assert [leak.name for leak in leaks] == ["host memory"]


@pytest.mark.parametrize(
    ("bytes_per_step", "spelled"), [(0.5, "50 B"), (40, "4 kB"), (12_345, "1.23 MB"), (5e7, "5 GB")]
)
def test_slope_is_spelled_for_people(bytes_per_step: float, spelled: str) -> None:
    """The slope is reported per 100 steps, in a suitable unit."""
    assert str(Leak("host memory", bytes_per_step, 300)) == (
        f"host memory grows by {spelled} per 100 steps since step 300"
    )


def real_leaks(kept: list[Any] | None) -> list[Leak]:
    watch, leaks = LeakWatch(), []
    for step in range(40):
        array = jnp.full(1000, step, jnp.float32)
        if kept is not None:
            kept.append(array)
        live = owner_bytes({}).bytes_by_owner
        leaks += watch.add({"step": step, "live": live, "memory": {}, "host": {}})
    return leaks


def test_list_that_keeps_arrays() -> None:
    """A real list that keeps an array of 4000 bytes per step is found with just that slope."""
    (leak,) = real_leaks([])
    assert (leak.name, leak.bytes_per_step) == ("other live arrays", 4000)


def test_arrays_that_are_let_go() -> None:
    """Without the list there is no leak."""
    assert real_leaks(None) == []
