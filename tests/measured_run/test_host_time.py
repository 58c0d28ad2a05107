"""What the host does between two calls: each stretch is in its part, in whatever order a loop does things."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.measured_run.own_loops import make_loader, open_run_of, weights
from trackside.clock import ManualClock
from trackside.measured_run import MeasuredRun

NUM_STEPS = 4
CALL_S = 0.01
OWN_S = 0.5


class Loop:
    """A run, a step that takes `CALL_S`, and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(start=1.0)
        self.run: MeasuredRun = open_run_of(clock=self.clock)
        self.step = self.run.step(self._slow_step)

    def _slow_step(self, state: Any, batch: Any) -> Any:
        self.clock.advance(CALL_S)
        return state, jnp.sum(state)

    def spend(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def batches(self, seconds: float = 0.002) -> Iterator[Any]:
        for batch in make_loader(NUM_STEPS):
            self.spend(seconds)
            yield batch


def own_code_around_the_call(loop: Loop) -> None:
    for batch in loop.run.batches(loop.batches()):
        loop.spend(0.1)
        loop.step(weights(), batch)
        loop.spend(OWN_S - 0.1)


def part_between_batch_and_call(loop: Loop) -> None:
    for batch in loop.run.batches(loop.batches()):
        loop.spend(OWN_S)
        with loop.run.part("augment"):
            loop.spend(0.03)
        loop.step(weights(), batch)


def call_in_a_part(loop: Loop) -> None:
    for batch in loop.run.batches(loop.batches()):
        with loop.run.part("augment"):
            loop.spend(0.03)
            loop.step(weights(), batch)
        loop.spend(OWN_S)


def steps_without_a_batch(loop: Loop) -> None:
    for _ in range(NUM_STEPS):
        loop.step(weights(), None)
        loop.spend(OWN_S)


def batches_that_are_left_out(loop: Loop) -> None:
    batches = iter(loop.run.batches(loop.batches()))
    for _ in range(NUM_STEPS // 2):
        next(batches)
        loop.spend(OWN_S)
        loop.step(weights(), next(batches))
        loop.step(weights(), None)
        loop.spend(OWN_S)


def part_in_the_loader(loop: Loop) -> None:
    def decoded() -> Iterator[Any]:
        for batch in loop.batches(0.0):
            with loop.run.part("augment"):
                loop.spend(0.03)
            loop.spend(0.002)
            yield batch

    for batch in loop.run.batches(decoded()):
        loop.step(weights(), batch)
        loop.spend(OWN_S)


def logging_between_batch_and_call(loop: Loop) -> None:
    for batch in loop.run.batches(loop.batches()):
        loop.spend(OWN_S)
        loop.run.log(lr=0.1)
        loop.step(weights(), batch)


def two_batches_for_a_call(loop: Loop) -> None:
    batches = loop.run.batches(loop.batches(0.001))
    for batch in loop.run.batches(loop.batches(0.001)):
        next(batches)
        loop.spend(OWN_S)
        loop.step(weights(), batch)


def step_that_fails(loop: Loop) -> None:
    def failing(state: Any, batch: Any) -> Any:
        loop.spend(CALL_S / 2)
        if len(tried) % 2:
            raise ValueError
        return state, jnp.sum(state)

    tried, step = [], loop.run.step(failing)
    for batch in loop.run.batches(loop.batches()):
        for _ in range(2):
            tried.append(batch)
            with contextlib.suppress(ValueError):
                step(weights(), batch)
        loop.spend(OWN_S)


def loader_that_fails(loop: Loop) -> None:
    class Flaky:
        num_tried = 0

        def __iter__(self) -> "Flaky":
            return self

        def __next__(self) -> Any:
            self.num_tried += 1
            loop.spend(0.001)
            if self.num_tried > 2 * NUM_STEPS:
                raise StopIteration
            if self.num_tried % 2:
                raise OSError
            return make_loader()[0]

    batches = iter(loop.run.batches(Flaky()))
    for _ in range(NUM_STEPS):
        with contextlib.suppress(OSError):
            next(batches)
        loop.step(weights(), next(batches))
        loop.spend(OWN_S)


def part_of_a_step_in_the_loader(loop: Loop) -> None:
    encode = loop.run.step(loop._slow_step, steps_per_call=0, name="encode")

    def encoded() -> Iterator[Any]:
        for batch in loop.batches():
            encode(weights(), batch)
            yield batch

    for batch in loop.run.batches(encoded()):
        loop.step(weights(), batch)
        loop.spend(OWN_S)


def batches_in_the_step(loop: Loop) -> None:
    def epoch(state: Any, batches: Any) -> Any:
        for _ in loop.run.batches(batches):
            loop.spend(CALL_S)
        return state, jnp.sum(state)

    loop.run.step(epoch, steps_per_call=NUM_STEPS)(weights(), loop.batches())
    loop.spend(NUM_STEPS * OWN_S)


def part_and_log_in_the_step(loop: Loop) -> None:
    def step(state: Any, batch: Any) -> Any:
        with loop.run.part("augment"):
            loop.spend(CALL_S)
        loop.run.log(lr=0.1)
        return state, jnp.sum(state)

    measured = loop.run.step(step)
    for batch in loop.run.batches(loop.batches()):
        measured(weights(), batch)
        loop.spend(OWN_S)


def first_call_in_a_part(loop: Loop) -> None:
    for _ in range(NUM_STEPS):
        with loop.run.part("augment"):
            loop.spend(0.03)
            loop.step(weights(), None)
        loop.spend(OWN_S)


LOOPS: dict[Callable[[Loop], None], dict[str, float]] = {
    own_code_around_the_call: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S},
    part_between_batch_and_call: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S, "augment": 0.03},
    call_in_a_part: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S, "augment": 0.03},
    steps_without_a_batch: {"dispatch": CALL_S, "other": OWN_S},
    batches_that_are_left_out: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S},
    part_in_the_loader: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S, "augment": 0.03},
    logging_between_batch_and_call: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S},
    two_batches_for_a_call: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S},
    step_that_fails: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S},
    loader_that_fails: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S},
    # What a loader does before it calls something of the run is not told from the loop's own code.
    part_of_a_step_in_the_loader: {"dispatch": 2 * CALL_S, "other": OWN_S + 0.002},
    first_call_in_a_part: {"dispatch": CALL_S, "other": OWN_S, "augment": 0.03},
    batches_in_the_step: {"dispatch": CALL_S + 0.002, "other": OWN_S},
    part_and_log_in_the_step: {"data_wait": 0.002, "dispatch": CALL_S, "other": OWN_S},
}
"""What each loop spends in a step, by part."""


@pytest.mark.parametrize("loop_of", LOOPS, ids=lambda loop_of: loop_of.__name__.replace("_", " "))
def test_each_stretch_is_in_its_part(loop_of: Callable[[Loop], None]) -> None:
    """Each part has the time that was spent in it, and the parts add up to the wall time."""
    loop = Loop()
    began_s = loop.clock.now()
    with loop.run:
        loop_of(loop)
    totals, expected = loop.run.ledger_totals, {name: NUM_STEPS * each_s for name, each_s in LOOPS[loop_of].items()}
    assert {name: seconds for name, seconds in totals.parts.items() if seconds} == pytest.approx(expected, abs=1e-9)
    assert totals.wall_s == pytest.approx(loop.clock.now() - began_s)


@pytest.mark.parametrize("is_in_call", [True, False])
def test_compiling_is_no_wait_for_the_call_before(is_in_call: bool) -> None:
    """What is compiled after a call, in the next one or in between, is not taken for code that may wait for it."""
    clock = ManualClock(start=1.0)

    def traced_slowly(x: jax.Array) -> jax.Array:
        clock.advance(1.0)
        return x + 1

    slow, other = jax.jit(traced_slowly), jax.jit(lambda x: traced_slowly(x) + 1)
    with open_run_of(clock=clock) as run:
        first, second = run.step(jax.jit(lambda x: x * 2), name="first"), run.step(slow)
        x = first(jnp.ones(3))
        clock.advance(0.01)
        (first if is_in_call else other)(x)
        clock.advance(0.01)
        (second if is_in_call else first)(x)
        assert run._book.last is not None
        assert run._book.last.own_code_until_s is None
    parts = run.ledger_totals.parts
    assert {name: seconds for name, seconds in parts.items() if seconds} == pytest.approx(
        {"compile": 1.0, "other": 0.02}
    )


def test_code_before_a_call_that_compiles_or_fails_is_no_part_of_it() -> None:
    """What comes between a part and the call counts as the loop's own code, whatever happens in the call."""
    clock = ManualClock(start=1.0)

    def fails(is_wanted: bool) -> None:
        clock.advance(0.25)
        if is_wanted:
            raise ValueError

    def compiles(x: jax.Array) -> jax.Array:
        clock.advance(1.0)
        return x

    with open_run_of(clock=clock) as run:
        fail, compiled = run.step(fails), run.step(jax.jit(compiles))
        fail(False)
        for call in (lambda: fail(True), lambda: compiled(jnp.ones(3))):
            with run.part("augment"):
                clock.advance(0.5)
            clock.advance(0.125)
            with contextlib.suppress(ValueError):
                call()
    expected = {"augment": 1.0, "other": 0.25, "dispatch": 0.5, "compile": 1.0}
    assert {name: seconds for name, seconds in run.ledger_totals.parts.items() if seconds} == pytest.approx(expected)


def idle_and_busy(
    loop_of: Callable[[MeasuredRun, Callable[[float, float], None]], None],
) -> tuple[dict[str, float], float]:
    """What a loop on the host shows of its device: idle seconds by reason, and busy ones, from the second call on.

    Args:
        loop_of: The loop, which is given a run, and what takes some time, and computes for some of it.
    """
    clock, computed_s = ManualClock(start=1.0), [0.0]

    def spend(seconds: float, computing_s: float) -> None:
        clock.advance(seconds)
        computed_s[0] += computing_s

    run = open_run_of(clock=clock)
    run._host._process_time = lambda: computed_s[0]
    with run:
        loop_of(run, spend)
    totals = run.ledger_totals
    assert totals.device_busy_s is not None
    assert totals.device_idle_s == totals.device_idle_low_s == totals.device_idle_high_s
    idle = {reason: seconds for reason, seconds in totals.idle_by_reason.items() if seconds > 1e-9}
    assert totals.device_idle_s == pytest.approx(sum(idle.values()))
    return idle, totals.device_busy_s


@pytest.mark.parametrize("is_named", [True, False])
def test_what_a_loop_on_the_host_computes_is_no_idle_time(is_named: bool) -> None:
    """A loop of PyTorch may wrap its optimizer alone: forward and backward pass keep the device busy, data does not."""

    def loop(run: MeasuredRun, spend: Callable[[float, float], None]) -> None:
        def batches() -> Iterator[Any]:
            for batch in make_loader(12):
                spend(0.5, 0.5)
                yield batch

        update = run.step(lambda: spend(0.25, 0.25), name="update")
        for _ in run.batches(batches()):
            with run.part("forward") if is_named else contextlib.nullcontext():
                spend(2.0, 8.0)
            update()

    idle, busy_s = idle_and_busy(loop)
    assert idle == pytest.approx({"data_wait": 10 * 0.5})
    assert busy_s == pytest.approx(10 * 2.25 + 0.25)


def test_code_on_the_host_that_does_not_compute_is_idle_time() -> None:
    """While it sleeps, wherever it does so, nothing is computed."""

    def loop(run: MeasuredRun, spend: Callable[[float, float], None]) -> None:
        update = run.step(lambda: spend(0.25, 0.25), name="update")
        for _ in run.batches(make_loader(12)):
            spend(1.0, 1.0)
            update()
            spend(0.5, 0.0)
            run.log(lr=0.5)
            with run.part("upload"):
                spend(0.125, 0.0)

    idle, _ = idle_and_busy(loop)
    assert idle == pytest.approx({"other": 10 * 0.5, "upload": 10 * 0.125})
