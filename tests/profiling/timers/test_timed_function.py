import asyncio
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.clock import ManualClock
from trackside.errors import ConfigError
from trackside.profiling import TrainingProfiler, profile_operation


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def profiler(clock):
    return TrainingProfiler(log_to_wandb=False, clock=clock)


def times(profiler, name):
    assert profiler.wait(300)
    entry = profiler.get_summary().get(name)
    return None if entry is None else (entry["count"], entry["total_time"])


def test_a_function_is_timed_and_stays_what_it_was(profiler, clock):
    """Each call counts; name, docstring, arguments and result are the function's own."""

    @profiler.time_operation("double")
    def double(value, *, by=2):
        """Twice as much."""
        clock.advance(3.0)
        return value * by

    assert (double(2), double(2, by=5)) == (4, 10)
    assert (double.__name__, double.__doc__, list(inspect.signature(double).parameters)) == (
        "double",
        "Twice as much.",
        ["value", "by"],
    )
    assert times(profiler, "double") == (2, 6.0)


def test_a_call_that_raises_is_counted(profiler, clock):
    """The exception is raised."""

    @profile_operation("fail", profiler)
    def fail():
        clock.advance(1.0)
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        fail()
    assert times(profiler, "fail") == (1, 1.0)


def test_methods_of_all_kinds_are_timed(profiler, clock):
    """Bound methods, class methods and static methods, with the decorator outside or inside."""

    class Model:
        @profile_operation("method", profiler)
        def method(self):
            clock.advance(1.0)
            return self

        @profile_operation("class", profiler)
        @classmethod
        def of_class(cls):
            clock.advance(1.0)
            return cls

        @staticmethod
        @profile_operation("static", profiler)
        def of_none():
            clock.advance(1.0)

    model = Model()
    assert (model.method(), model.of_class(), Model.of_class()) == (model, Model, Model)
    model.of_none()
    assert [times(profiler, name) for name in ("method", "class", "static")] == [(1, 1.0), (2, 2.0), (1, 1.0)]


def test_generators_are_timed_by_item(profiler, clock):
    """What the consumer does in between does not count; what is sent, thrown and returned gets through."""

    @profile_operation("generate", profiler)
    def generate():
        received = []
        for index in range(2):
            clock.advance(1.0)
            try:
                received.append((yield index))
            except KeyError:
                clock.advance(4.0)
                received.append((yield "caught"))
        return received

    generator = generate()
    assert next(generator) == 0
    clock.advance(100.0)
    assert generator.send("a") == 1
    assert generator.throw(KeyError) == "caught"
    with pytest.raises(StopIteration) as end:
        generator.send("b")
    assert end.value.value == ["a", "b"]
    assert inspect.isgeneratorfunction(generate)
    assert times(profiler, "generate") == (3, 6.0)


def test_a_generator_that_is_left_early_is_closed(profiler):
    """Its own clean-up runs."""
    is_closed = []

    @profile_operation("generate", profiler)
    def generate():
        try:
            yield 1
        finally:
            is_closed.append(True)

    for _ in generate():
        break
    assert is_closed == [True]


def test_async_functions_are_timed_until_they_are_done(profiler, clock):
    """With what they wait for; those that run at the same time have their own time each."""

    @profile_operation("fetch", profiler)
    async def fetch(seconds):
        await asyncio.sleep(0)
        clock.advance(seconds)
        return seconds

    async def both():
        return await asyncio.gather(fetch(1.0), fetch(2.0))

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(both()) == [1.0, 2.0]
    assert times(profiler, "fetch") == (2, 4.0)


def test_async_generators_are_timed_by_item(profiler, clock):
    """What the consumer does in between does not count."""

    @profile_operation("stream", profiler)
    async def stream():
        for index in range(3):
            clock.advance(1.0)
            yield index

    async def consume():
        found = []
        async for item in stream():
            clock.advance(10.0)
            found.append(item)
        return found

    assert asyncio.run(consume()) == [0, 1, 2]
    assert times(profiler, "stream") == (3, 3.0)


def test_numpy_results_are_host_time(profiler, clock):
    """There is nothing to wait for, and no separate dispatch."""

    @profile_operation("make", profiler)
    def make():
        clock.advance(1.0)
        return {"x": np.ones(3)}

    make()
    assert profiler.wait(300)
    assert list(profiler.get_summary()) == ["make"]


def test_jax_results_are_timed_to_completion_with_the_dispatch_beside(profiler):
    """Both are counted, once for each call."""
    add = profile_operation("add", profiler)(jax.jit(lambda x: x + 1))
    add(add(np.ones(3, np.float32)))
    assert times(profiler, "add")[0] == 2
    assert times(profiler, "add_dispatch")[0] == 2
    assert "exclusive_time" not in profiler.get_summary()["add"]


def test_with_sync_a_call_is_complete_when_it_returns(clock):
    """Nothing has to be waited for afterwards."""
    profiler = TrainingProfiler(log_to_wandb=False, sync=True, clock=clock)
    profile_operation("add", profiler)(jax.jit(lambda x: x + 1))(np.ones(3, np.float32))
    assert profiler.get_summary()["add"]["count"] == 1


def test_dispatch_nests_in_the_operation_around_it(profiler, clock):
    """The host's part of a wrapped call is not exclusive time of the span around it."""

    @profile_operation("work", profiler)
    def work():
        clock.advance(2.0)
        return jnp.ones(3)

    with profiler.time("epoch"):
        clock.advance(1.0)
        work()
    assert profiler.get_summary()["epoch"]["exclusive_time"] == 1.0


def test_tracing_is_not_counted(profiler):
    """A function that JAX traces computes nothing: neither under jit nor under grad."""
    square = profile_operation("square", profiler)(lambda x: jnp.sum(x * x))
    jax.jit(square)(np.ones(3, np.float32))
    jax.jit(jax.grad(square))(np.ones(3, np.float32))
    assert times(profiler, "square") is None


def test_a_jitted_function_keeps_its_methods(profiler):
    """`lower` and what else there is can be called on the wrapped function."""
    step = profile_operation("step", profiler)(jax.jit(lambda x: x + 1))
    assert "stablehlo" in step.lower(np.ones(3, np.float32)).as_text()


def test_switched_off_a_wrapped_function_is_the_function(profiler):
    """Nothing is counted and nothing waited for."""
    profiler.enabled = False
    profile_operation("add", profiler)(jax.jit(lambda x: x + 1))(np.ones(3, np.float32))
    assert profiler.completions._thread is None


@pytest.mark.parametrize("name", [3, "", None, lambda: None])
def test_a_decorator_without_a_name_is_refused(name):
    """The error shows how to write it."""
    with pytest.raises(ConfigError, match="@profile_operation"):
        profile_operation(name)


def test_what_is_no_function_is_refused():
    """The error names it."""
    with pytest.raises(ConfigError, match="3 is not a function"):
        profile_operation("three")(3)


def test_cpu_tensors_of_pytorch_are_host_time(profiler, clock):
    """PyTorch computes on the host before it returns."""
    torch = pytest.importorskip("torch")

    @profile_operation("forward", profiler)
    def forward():
        clock.advance(2.0)
        return torch.ones(3) * 2

    forward()
    assert times(profiler, "forward") == (1, 2.0)
    assert times(profiler, "forward_dispatch") is None
