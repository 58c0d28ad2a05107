"""How many calls may be under way."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from tests.trainer.tiny import make_loader, make_trainer
from trackside.trainer import Batch
from trackside.trainer.inflight_window import (
    AUTO_INFLIGHT,
    COPIED_BYTES,
    MAX_INFLIGHT,
    WINDOW_BYTES,
    InflightWindow,
)


def window(
    wanted: int | str = "auto",
    can_widen: bool = True,
    batch_bytes: int = 1000,
    is_copied: bool = False,
    steps_per_call: int = 1,
) -> InflightWindow:
    return InflightWindow(
        wanted,  # pyright: ignore[reportArgumentType]
        can_widen,
        batch_bytes,
        is_copied,
        steps_per_call,
    )


def after(inflight: InflightWindow, *step_s: float) -> int:
    """The limit after stretches of two hundred steps, each at a pace of its own."""
    step, now_s = 0, 0.0
    inflight.break_off()
    inflight.adapt(step, now_s)
    for seconds in step_s:
        step, now_s = step + 200, now_s + 200 * seconds
        inflight.adapt(step, now_s)
    return inflight.limit


@pytest.mark.parametrize(
    ("step_s", "limit"), [(1e-4, MAX_INFLIGHT), (3e-4, 26), (8e-4, 10), (1.9e-3, 4), (3e-3, 2), (1.0, 2)]
)
def test_short_steps_widen_it(step_s: float, limit: int) -> None:
    """As many calls are under way as take some milliseconds, and two if that is one."""
    inflight = window()
    assert inflight.limit == AUTO_INFLIGHT
    assert after(inflight, step_s) == limit
    assert inflight.num_retired == max(1, limit // 2)
    assert inflight.is_wide == (limit > AUTO_INFLIGHT)


@pytest.mark.parametrize(
    "inflight",
    [
        window(1),
        window(3),
        window(100),
        window(can_widen=False),
        window(batch_bytes=WINDOW_BYTES),
        window(batch_bytes=COPIED_BYTES + 1, is_copied=True),
    ],
)
def test_what_keeps_it_as_it_is(inflight: InflightWindow) -> None:
    """A number that the user gives, what cannot be widened, large batches, and batches too large to be copied."""
    before = inflight.limit
    assert after(inflight, 1e-5) == before
    assert inflight.num_retired == 1
    assert not inflight.is_wide


def test_what_is_queued_is_bounded_in_bytes() -> None:
    """Larger batches, fewer calls."""
    assert after(window(batch_bytes=WINDOW_BYTES // 8), 1e-5) == 8


@pytest.mark.parametrize(("step_s", "limit"), [(2e-5, MAX_INFLIGHT), (5e-5, 20), (4e-4, AUTO_INFLIGHT)])
def test_calls_of_several_steps_are_as_long_as_these(step_s: float, limit: int) -> None:
    """What is queued takes some milliseconds, however many steps a call makes."""
    assert after(window(steps_per_call=8), step_s) == limit


def test_calls_of_several_steps_hold_as_many_batches() -> None:
    """What is queued is bounded in bytes by all batches of its calls."""
    assert after(window(batch_bytes=WINDOW_BYTES // 64, steps_per_call=8), 1e-5) == 8


def test_it_follows_the_pace_but_not_its_noise() -> None:
    """A pace that changes by less than half changes nothing; one that doubles, or halves, does."""
    inflight = window()
    assert after(inflight, 5e-4) == 16
    assert after(inflight, 6e-4, 8e-4, 3e-4, 4e-4) == 16
    assert after(inflight, 1e-4) == MAX_INFLIGHT
    assert after(inflight, 3e-3) == AUTO_INFLIGHT


def test_a_single_call_changes_nothing() -> None:
    """The pace is that of many calls, however many steps each of them makes: one alone may come late by chance."""
    inflight = window(steps_per_call=32)
    inflight.adapt(0, 0.0)
    assert not inflight.adapt(32, 1e-4)
    assert not inflight.adapt(480, 2e-4)
    assert inflight.adapt(512, 3e-4)


def test_time_that_is_not_of_steps_does_not_count() -> None:
    """After a break, the pace is taken from the next wait on."""
    inflight = window()
    inflight.adapt(0, 0.0)
    inflight.break_off()
    inflight.adapt(1, 100.0)
    assert inflight.adapt(101, 100.01)
    assert inflight.limit == MAX_INFLIGHT


class OneBuffer:
    """A loader that writes each batch into the same memory."""

    def __init__(self, batches: list[Batch]):
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        buffer = jax.tree.map(np.empty_like, self._batches[0])
        for batch in self._batches:
            jax.tree.map(np.copyto, buffer, batch)
            yield buffer

    def __len__(self) -> int:
        return len(self._batches)


def test_batches_stay_as_they_were_made() -> None:
    """However many calls are under way, a loader that reuses its memory trains as a list of the same batches does."""
    batches = make_loader(300)
    states = []
    for loader in (batches, OneBuffer(batches)):
        trainer = make_trainer(steps_per_call=1)
        trainer.train_model(loader, num_epochs=2)
        states.append(jax.tree.leaves(trainer.state.params))
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)
