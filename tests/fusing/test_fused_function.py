"""Steps of the user's own, several in one call: the same results however the batches are divided."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import trackside
from trackside.errors import ConfigError, DataError

NUM_BATCHES = 11
OPTIMIZER = optax.adam(1e-2)
Kind = Callable[[], tuple[Callable[..., Any], list[Any]]]
"""Makes a step, and the state before it."""


@pytest.fixture(autouse=True)
def _standard_promotion() -> Iterator[None]:
    """Optax's Adam cannot live with strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def make_batches(number: int = NUM_BATCHES, size: int = 8) -> list[Any]:
    inputs = np.random.default_rng(0).uniform(-2, 2, (number, size, 1)).astype(np.float32)
    return [(one, np.sin(one)) for one in inputs]


def squared(outputs: Any, targets: Any) -> Any:
    return ((outputs - targets) ** 2).mean()


def functions() -> tuple[Callable[..., Any], list[Any]]:
    def loss_fn(params: Any, batch: Any) -> Any:
        return squared(jnp.tanh(batch[0] @ params["in"]) @ params["out"], batch[1])

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = OPTIMIZER.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss, {"norm": optax.tree.norm(grads)}

    keys = jax.random.split(jax.random.key(0))
    params = {"in": jax.random.normal(keys[0], (1, 4)), "out": jax.random.normal(keys[1], (4, 1))}
    return jax.jit(step), [params, OPTIMIZER.init(params)]


def state_alone() -> tuple[Callable[..., Any], list[Any]]:
    def step(state: Any, batch: Any) -> Any:
        weight, key, count = state
        key, noise_key = jax.random.split(key)
        grad = jax.grad(lambda weight: squared(batch[0] * weight, batch[1]))(weight)
        return weight - 0.1 * grad + 1e-3 * jax.random.normal(noise_key), key, count + 1

    return step, [(jnp.asarray(1.0), jax.random.key(0), np.zeros((), np.int32))]


def linen() -> tuple[Callable[..., Any], list[Any]]:
    model = nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(1)])

    @jax.jit
    def step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return squared(state.apply_fn({"params": params}, batch[0]), batch[1])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    params = model.init(jax.random.key(0), make_batches(1)[0][0])["params"]
    return step, [TrainState.create(apply_fn=model.apply, params=params, tx=OPTIMIZER)]


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden, self.norm = nnx.Linear(1, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.dropout, self.out = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, inputs: Any) -> Any:
        return self.out(self.dropout(jnp.tanh(self.norm(self.hidden(inputs)))))


def nnx_objects() -> tuple[Callable[..., Any], list[Any]]:
    @nnx.jit
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: squared(model(batch[0]), batch[1]))(model)
        optimizer.update(model, grads)
        return loss

    model = Net(nnx.Rngs(0))
    return step, [model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)]


def nnx_with_more() -> tuple[Callable[..., Any], list[Any]]:
    inner, (model, optimizer) = nnx_objects()

    def step(model: Any, count: Any, optimizer: Any, batch: Any) -> Any:
        loss = inner(model, optimizer, batch)
        return count + 1, loss

    return step, [model, jnp.zeros((), jnp.int32), optimizer]


def equinox() -> tuple[Callable[..., Any], list[Any]]:
    @eqx.filter_jit
    def step(model: Any, opt_state: Any, batch: Any) -> Any:
        loss_of = eqx.filter_value_and_grad(lambda model: squared(jax.vmap(model)(batch[0]), batch[1]))
        loss, grads = loss_of(model)
        updates, opt_state = OPTIMIZER.update(grads, opt_state)
        return eqx.apply_updates(model, updates), opt_state, loss

    model = eqx.nn.MLP(1, 1, 4, 1, key=jax.random.key(0))
    return step, [model, OPTIMIZER.init(eqx.filter(model, eqx.is_array))]


def convolutions() -> tuple[Callable[..., Any], list[Any]]:
    @jax.jit
    def step(kernel: Any, batch: Any) -> Any:
        def loss_fn(kernel: Any) -> Any:
            outputs = jax.lax.conv_general_dilated(batch[0][:, None], kernel, (1,), "SAME")
            return squared(outputs[:, 0], batch[1])

        loss, grad = jax.value_and_grad(loss_fn)(kernel)
        return kernel - 0.1 * grad, loss

    return step, [jax.random.normal(jax.random.key(0), (1, 1, 3))]


KINDS: dict[str, Kind] = {
    kind.__name__: kind for kind in (functions, state_alone, linen, nnx_objects, nnx_with_more, equinox, convolutions)
}


def is_object(value: Any) -> bool:
    return isinstance(value, nnx.Pytree)


def run(step: Callable[..., Any], state: list[Any], given: list[Any]) -> tuple[list[Any], list[Any]]:
    """Make the calls of a loop: the state after them as numbers, and the outputs of each."""
    outputs = []
    objects = [value for value in state if is_object(value)]
    for one in given:
        result = step(*state, one)
        num_plain = len(state) - len(objects)
        if num_plain == 1 and not isinstance(state[0], TrainState | nnx.Pytree | jax.Array):
            result = (result,)
        result = result if type(result) is tuple else (result,)
        plain = iter(result[:num_plain])
        state = [value if is_object(value) else next(plain) for value in state]
        outputs.append(result[num_plain:])
    objects_state = [jax.tree.leaves(nnx.state(value)) for value in objects]
    return [*map(_bits, jax.tree.leaves([value for value in state if not is_object(value)] + objects_state))], outputs


def _bits(leaf: Any) -> Any:
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf)) if is_key else np.asarray(leaf) if hasattr(leaf, "dtype") else leaf


def divide(batches: list[Any], size: int) -> list[list[Any]]:
    return [batches[at : at + size] for at in range(0, len(batches), size)]


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if hasattr(one, "dtype"):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("donate", [False, True])
def test_every_division_gives_the_same(kind: str, donate: bool) -> None:
    """The state has the same bits as with single calls, and the outputs of each step are there."""
    step, state = KINDS[kind]()
    expected_state, each = run(trackside.fuse_steps(step, 1), state, divide(make_batches(), 1))
    for size in (3, 8):
        step, state = KINDS[kind]()
        found_state, outputs = run(trackside.fuse_steps(step, 8, donate=donate), state, divide(make_batches(), size))
        assert_same(found_state, expected_state)
        joined = [jax.tree.map(lambda *parts: np.concatenate(parts), *side) for side in (outputs, each)]
        assert_same(*joined)


@pytest.mark.parametrize("kind", [functions, linen, equinox, nnx_objects])
def test_as_the_loop_by_hand(kind: Kind) -> None:
    """The results are those of the step itself, within rounding."""
    step, state = kind()
    expected, _ = run(step, state, make_batches())
    step, state = kind()
    found, _ = run(trackside.fuse_steps(step, 4), state, divide(make_batches(), 4))
    for one, other in zip(found, expected, strict=True):
        if hasattr(one, "dtype"):
            np.testing.assert_allclose(one, other, rtol=1e-5)


PLACES: dict[str, Callable[[Any], Any]] = {
    "on the device": jnp.asarray,
    "double precision": lambda leaf: leaf.astype(np.float64),
    "views": lambda leaf: np.asfortranarray(leaf)[::1],
}


@pytest.mark.parametrize("place", PLACES)
def test_batches_of_every_kind(place: str) -> None:
    """Where arrays lie, and how, makes no difference."""
    step, state = functions()
    expected, _ = run(trackside.fuse_steps(step, 4), state, divide(make_batches(), 4))
    step, state = functions()
    batches = jax.tree.map(PLACES[place], make_batches())
    assert_same(run(trackside.fuse_steps(step, 4), state, divide(batches, 4))[0], expected)


def test_one_program_for_any_number() -> None:
    """A remainder does not trace the step again."""
    num_traces = 0

    def step(weight: Any, batch: Any) -> Any:
        nonlocal num_traces
        num_traces += 1
        return weight + batch.sum(), weight

    fused = trackside.fuse_steps(step, 5)
    weight = jnp.zeros(())
    for number in (5, 2, 5, 1, 3):
        weight, seen = fused(weight, [np.ones(2, np.float32)] * number)
        assert seen.shape == (number,)
        assert fused.num_steps == number
    assert float(weight) == 2 * 16
    assert num_traces == 1


def test_numbers_that_steps_count() -> None:
    """A number of Python's that each step changes becomes an array, as under `jax.jit`, in one program."""
    num_traces = 0

    def step(state: Any, batch: Any) -> Any:
        nonlocal num_traces
        num_traces += 1
        return {**state, "step": state["step"] + 1, "sum": state["sum"] + state["rate"] * batch}, state["step"]

    fused, state, seen = trackside.fuse_steps(step, 2), {"step": 0, "rate": 0.5, "sum": jnp.zeros(())}, []
    for _ in range(3):
        state, counts = fused(state, [np.float32(1), np.float32(3)])
        seen.extend(np.asarray(counts).tolist())
    assert seen == list(range(6))
    assert (int(state["step"]), float(state["sum"]), state["rate"]) == (6, 6.0, 0.5)
    assert num_traces == 2  # the first shows what changes


def test_buffers_are_not_written_while_a_call_reads_them() -> None:
    """Calls that queue up behind a slow one have the batches that they were given."""

    def step(state: Any, batch: Any) -> Any:
        slow = jax.lax.fori_loop(0, 2000, lambda _, x: jnp.sin(x) + 1e-9, state[1])
        return (state[0] + batch.sum(), slow), batch[0]

    fused, state, seen = trackside.fuse_steps(step, 2), (jnp.zeros(()), jnp.ones(512)), []
    for at in range(0, 40, 2):
        state, first = fused(state, [np.full(64, at + one, np.float32) for one in (0, 1)])
        seen.append(first)
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(40))


def test_on_a_mesh() -> None:
    """State and batches that are spread over devices stay so, and give the results of one device."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    spread, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    step, state = functions()
    expected, _ = run(trackside.fuse_steps(step, 4), state, divide(make_batches(), 4))
    step, state = functions()
    batches = jax.device_put(make_batches(), spread)
    fused = trackside.fuse_steps(step, 4)
    found, _ = run(fused, jax.device_put(state, whole), divide(batches, 4))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_keys_in_batches() -> None:
    """What NumPy cannot hold can be part of a batch."""

    def step(total: Any, batch: Any) -> Any:
        return total + jax.random.uniform(batch["key"]) * batch["scale"], None

    batches = [{"key": jax.random.key(at), "scale": jnp.float32(at)} for at in range(5)]
    total = jnp.zeros(())
    for given in divide(batches, 3):
        total, _ = trackside.fuse_steps(step, 3)(total, given)
    expected = sum(float(jax.random.uniform(one["key"])) * at for at, one in enumerate(batches))
    assert float(total) == pytest.approx(expected, rel=1e-6)


def test_frozen_numbers_of_python_stay() -> None:
    """A number in the state that no step changes is the same object afterwards, as in a model of Equinox."""

    def step(state: Any, batch: Any) -> Any:
        return {**state, "weight": state["weight"] * (state["rate"] + batch)}, state["rate"]

    state, rate = trackside.fuse_steps(step, 2)({"weight": jnp.ones(()), "rate": 0.5}, [np.float32(1), np.float32(2)])
    assert type(state["rate"]) is float
    assert float(state["weight"]) == 1.5 * 2.5
    np.testing.assert_array_equal(rate, [0.5, 0.5])


def sum_step(total: Any, batch: Any) -> Any:
    return total + batch.sum(), total


ONE = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((jnp.zeros(()), (ONE, ONE)), "expected a list of up to 2 batches as last argument, got a tuple"),
        ((), "got nothing"),
        ((jnp.zeros(()), []), "expected 1 to 2 batches, got 0"),
        ((jnp.zeros(()), [ONE] * 3), "expected 1 to 2 batches, got 3"),
        ((jnp.zeros(()), [ONE, ONE[:1]]), r"batches\[1\] has another form than batches\[0\]"),
        ((jnp.zeros(()), [0.5]), "a batch has to consist of arrays"),
    ],
)
def test_batches_that_do_not_fit(given: tuple[Any, ...], message: str) -> None:
    """The error names the argument and what to do."""
    with pytest.raises(DataError, match=message):
        trackside.fuse_steps(sum_step, 2)(*given)


@pytest.mark.parametrize(
    ("step", "state", "message"),
    [
        (lambda total, batch: (total.astype(jnp.complex64), 0), [jnp.zeros(())], "float32.* before .* complex64"),
        (lambda total, batch: {"total": total}, [jnp.zeros(())], "return its new state first"),
        (lambda total, name, batch: (total, name + "a"), [jnp.zeros(()), "a"], "a step changes 'a'"),
        (lambda total, odd, batch: (total, odd), [jnp.zeros(()), bytearray()], "cannot be compared"),
    ],
)
def test_steps_that_cannot_follow_each_other(step: Callable[..., Any], state: list[Any], message: str) -> None:
    """A step has to give back what the next one takes."""
    with pytest.raises(ConfigError, match=message):
        trackside.fuse_steps(step, 2)(*state, [ONE])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2), "fuse_steps: expected a function, got 3"),
        ((sum_step, 0), "steps_per_call: expected a number of steps, 1 or more; got 0"),
        ((sum_step, True), "steps_per_call: .* got True"),
        ((sum_step, 2, 1), "donate: expected True or False, got 1"),
    ],
)
def test_arguments_are_checked(arguments: tuple[Any, ...], message: str) -> None:
    """Bad input is an error at once."""
    with pytest.raises(ConfigError, match=message):
        trackside.fuse_steps(*arguments)


def test_an_error_in_the_step_comes_as_it_is() -> None:
    """With the place where it was raised."""

    def step(total: Any, batch: Any) -> Any:
        raise LookupError("in the step")

    with pytest.raises(LookupError, match="in the step"):
        trackside.fuse_steps(step, 2)(jnp.zeros(()), [ONE])
