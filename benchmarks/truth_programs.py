"""Programs of several named scopes, and each scope's work as a function of its own, for `trace_truth`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Apply = Callable[..., Any]


class Part(NamedTuple):
    """What one scope computes, alone."""

    function: Apply
    arguments: tuple[Any, ...]
    repeats: int = 1
    """How often the function does the scope's work. In a vectorised loop, an operation takes the longer the more the
    loop holds, so that a part of a long loop is timed in one of about that length."""


class Program(NamedTuple):
    """A program, and its parts by scope."""

    function: Apply
    arguments: tuple[Any, ...]
    parts: dict[str, Part]


def tanh_work(x):
    return jnp.tanh(x) * 1.01 + 0.1


def exp_work(x):
    return jnp.exp(-x * x)


def sine_work(x):
    return jnp.sin(x) + 0.3


def arithmetic_work(x):
    for constant in (0.9, 0.2, 0.7, 0.1, 0.5, 0.3):
        x = jnp.maximum(x * constant + 0.1, 0.05)
    return x


def log_work(x):
    return jnp.log(jnp.abs(x) + 1.1)


def _repeated(work: Apply, times: int) -> Apply:
    def function(x):
        for _ in range(times):
            x = work(x)
        return x

    return function


def _scoped(name: str, work: Apply) -> Apply:
    def function(*arguments):
        with jax.named_scope(name):
            return work(*arguments)

    return function


def _chain(lengths: dict[str, tuple[Apply, int]], x: jax.Array, num_repeats: dict[str, int]) -> Program:
    """Elementwise work after each other, which becomes one kernel."""
    works = {name: _scoped(name, _repeated(work, times)) for name, (work, times) in lengths.items()}

    def function(x):
        for work in works.values():
            x = work(x)
        return x

    parts = {
        name: Part(_repeated(work, times * num_repeats[name]), (x,), num_repeats[name])
        for name, (work, times) in lengths.items()
    }
    return Program(function, (x,), parts)


def doubling() -> Program:
    """Four scopes of the same work, done once, twice, four and eight times."""
    lengths = {"a": (tanh_work, 1), "b": (tanh_work, 2), "c": (tanh_work, 4), "d": (tanh_work, 8)}
    return _chain(lengths, jnp.full((256, 256), 0.3), {"a": 15, "b": 7, "c": 4, "d": 2})


def mixed_functions() -> Program:
    """Scopes of different functions."""
    lengths = {"exp": (exp_work, 3), "sine": (sine_work, 1), "log": (log_work, 3), "arithmetic": (arithmetic_work, 4)}
    return _chain(lengths, jnp.full((256, 256), 0.3), {"exp": 4, "sine": 3, "log": 4, "arithmetic": 6})


def memory_bound() -> Program:
    """Scopes with little arithmetic on large arrays, reading different ones."""
    x = jnp.full((1024, 1024), 0.3)

    def read_one(x):
        return x * 1.5 + 0.1

    def read_three(x, y, z):
        return x + y * z + z

    def function(x, y, z, w):
        return _scoped("three", read_three)(_scoped("one", read_one)(x), y, z) * w

    parts = {"one": Part(read_one, (x,)), "three": Part(read_three, (x, x + 1, x + 2))}
    return Program(function, (x, x + 1, x + 2, jnp.float32(2.0)), parts)


def _layers(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


def _gradient(function: Apply) -> Apply:
    """The forward and the backward pass of a part, with a cotangent that is at hand."""

    def both(cotangent, *arguments):
        value, pull_back = jax.vjp(function, *arguments)
        return value, pull_back(cotangent)

    return both


def training() -> Program:
    """The gradient of six layers, four of them in one scope."""
    weights, x = [jnp.full((128, 128), 0.003 * (1 + index)) for index in range(6)], jnp.ones((128, 128))

    def loss(weights, x):
        x = _scoped("light", _layers)(weights[:2], x)
        x = _scoped("heavy", _layers)(weights[2:], x)
        return (x**2).mean()

    parts = {
        "light": Part(_gradient(_layers), (x, weights[:2], x)),
        "heavy": Part(_gradient(_layers), (x, weights[2:], x)),
    }
    return Program(jax.value_and_grad(loss, argnums=(0, 1)), (weights, x), parts)


def elementwise_gradient() -> Program:
    """The gradient of elementwise work: forward and backward of both scopes share kernels."""
    x = jnp.full((256, 256), 0.3)
    light, heavy = _repeated(tanh_work, 1), _repeated(exp_work, 3)

    def loss(x):
        return _scoped("heavy", heavy)(_scoped("light", light)(x)).sum()

    parts = {
        "light": Part(_gradient(_repeated(light, 4)), (x, x), 4),
        "heavy": Part(_gradient(heavy), (x, x)),
    }
    return Program(jax.value_and_grad(loss), (x,), parts)


def scanned() -> Program:
    """A loop whose body is a matrix product, an elementwise scope and another that is heavier."""
    weight, x = jnp.full((256, 256), 0.003), jnp.full((256, 256), 0.3)
    works: dict[str, Apply] = {
        "product": lambda x: x @ weight,
        "light": _repeated(tanh_work, 2),
        "heavy": _repeated(log_work, 4),
    }

    def loop(body: Apply) -> Apply:
        return lambda x: lax.scan(lambda x, _: (body(x), None), x, None, length=4)[0]

    def body(x):
        for name, work in works.items():
            x = _scoped(name, work)(x)
        return x

    # The elementwise scopes are one kernel: each is timed in a loop of about its length.
    parts = {
        "product": Part(loop(works["product"]), (x,)),
        "light": Part(loop(_repeated(works["light"], 3)), (x,), 3),
        "heavy": Part(loop(_repeated(works["heavy"], 2)), (x,), 2),
    }
    return Program(loop(body), (x,), parts)


def rematerialised() -> Program:
    """The gradient of a checkpointed layer: product, activation."""
    weight, x = jnp.full((256, 256), 0.002), jnp.full((256, 256), 0.3)

    def product(weight, x):
        return x @ weight

    def activation(x):
        return jax.nn.gelu(jnp.sin(x))

    def layer(weight, x):
        return _scoped("activation", activation)(_scoped("product", product)(weight, x))

    def twice(function):
        """A checkpointed part computes its forward pass again in the backward pass."""
        return _gradient(jax.checkpoint(function))

    parts = {"product": Part(twice(product), (x, weight, x)), "activation": Part(twice(activation), (x, x))}
    return Program(_gradient(jax.checkpoint(layer)), (x, weight, x), parts)


def vectorised() -> Program:
    """A function of one example under `vmap`: normalisation, activation, a small product."""
    weight, x = jnp.full((128, 128), 0.01), jnp.linspace(-1, 1, 1024 * 128).reshape(1024, 128)

    def norm(row):
        centred = row - row.mean()
        return centred * lax.rsqrt((centred**2).mean() + 1e-6)

    def activation(row):
        return jax.nn.silu(jnp.sin(row) + jnp.exp(-(row**2)))

    def product(row):
        return row @ weight

    works: dict[str, Apply] = {"norm": norm, "activation": activation, "product": product}

    def function(row):
        for name, work in works.items():
            row = _scoped(name, work)(row)
        return row

    parts = {name: Part(jax.vmap(work), (x,)) for name, work in works.items()}
    return Program(jax.vmap(function), (x,), parts)


def convolutional() -> Program:
    """A convolution, an activation and a pooling, which become one kernel."""
    image, kernel = jnp.full((8, 32, 32, 16), 0.1), jnp.full((3, 3, 16, 32), 0.01)
    numbers = ("NHWC", "HWIO", "NHWC")

    def convolve(image):
        return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    def activate(image):
        return jax.nn.gelu(image + 1.0)

    def pool(image):
        return image.mean((1, 2))

    def function(image):
        return _scoped("pool", pool)(_scoped("activation", activate)(_scoped("convolution", convolve)(image)))

    wide = jnp.full((8, 32, 32, 32), 0.1)
    parts = {
        "convolution": Part(convolve, (image,)),
        "activation": Part(activate, (wide,)),
        "pool": Part(pool, (wide,)),
    }
    return Program(function, (image,), parts)


def attention() -> Program:
    """Scores, softmax, values and a projection."""
    x, weight = jnp.linspace(-1, 1, 4 * 256 * 64).reshape(4, 256, 64), jnp.full((64, 256), 0.01)

    def scores(x):
        return jnp.einsum("bqd,bkd->bqk", x, x)

    def values(p, x):
        return jnp.einsum("bqk,bkd->bqd", p, x)

    def project(x):
        return jax.nn.gelu(x @ weight)

    def function(x):
        p = _scoped("softmax", jax.nn.softmax)(_scoped("scores", scores)(x))
        return _scoped("project", project)(_scoped("values", values)(p, x))

    s = jnp.linspace(-1, 1, 4 * 256 * 256).reshape(4, 256, 256)
    parts = {
        "scores": Part(scores, (x,)),
        "softmax": Part(jax.nn.softmax, (s,)),
        "values": Part(values, (s, x)),
        "project": Part(project, (x,)),
    }
    return Program(function, (x,), parts)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "1:2:4:8": doubling,
    "functions": mixed_functions,
    "memory": memory_bound,
    "training": training,
    "gradient": elementwise_gradient,
    "scan": scanned,
    "remat": rematerialised,
    "vmap": vectorised,
    "convolution": convolutional,
    "attention": attention,
}
