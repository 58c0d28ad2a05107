"""Small models whose training steps the trace benchmarks capture."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.profiler import ProfileOptions, StepTraceAnnotation
from jax.sharding import NamedSharding, PartitionSpec

Loss = Callable[[Any, Any], jax.Array]


class MLP(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        for _ in range(self.depth):
            x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(10)(x)


def linen(width: int, depth: int, batch: int) -> tuple[Loss, Any, Any]:
    net, x = MLP(width, depth), jnp.ones((batch, width))

    def loss(params, x):
        with jax.named_scope("loss"):
            return (net.apply(params, x) ** 2).mean()

    return loss, jax.jit(net.init)(jax.random.key(0), x), x


def scan() -> tuple[Loss, Any, Any]:
    """Layers in a rematerialised scan, data parallel on two devices."""
    mesh = jax.make_mesh((2,), ("dp",))
    key = jax.random.key(0)
    params = {"layers": jax.random.normal(key, (6, 256, 256)) * 0.05, "head": jax.random.normal(key, (256, 10)) * 0.05}

    def loss(params, x):
        @jax.checkpoint
        def layer(hidden, weight):
            with jax.named_scope("layer"):
                return jax.nn.gelu(hidden @ weight) + hidden, None

        with jax.named_scope("forward"):
            hidden, _ = jax.lax.scan(layer, x, params["layers"])
            with jax.named_scope("head"):
                logits = hidden @ params["head"]
        with jax.named_scope("loss"):
            return (logits**2).mean()

    x = jax.device_put(jnp.ones((512, 256)), NamedSharding(mesh, PartitionSpec("dp")))
    return loss, jax.device_put(params, NamedSharding(mesh, PartitionSpec())), x


def equinox() -> tuple[Loss, Any, Any]:
    """A transformer of two blocks in Equinox, with scopes as its user would open them."""
    import equinox as eqx  # pyright: ignore[reportMissingImports]

    keys = iter(jax.random.split(jax.random.key(0), 16))

    def block():
        attention = eqx.nn.MultiheadAttention(4, 128, key=next(keys))
        return attention, eqx.nn.MLP(128, 128, 512, 1, key=next(keys)), eqx.nn.LayerNorm(128)

    params, static = eqx.partition([block() for _ in range(2)], eqx.is_array)

    def loss(params, x):
        def forward(tokens):
            for index, (attention, mlp, norm) in enumerate(eqx.combine(params, static)):
                with jax.named_scope(f"block{index}"):
                    normed = jax.vmap(norm)(tokens)
                    with jax.named_scope("attention"):
                        tokens = tokens + attention(normed, normed, normed)
                    with jax.named_scope("mlp"):
                        tokens = tokens + jax.vmap(mlp)(tokens)
            return tokens

        with jax.named_scope("loss"):
            return (jax.vmap(forward)(x) ** 2).mean()

    return loss, params, jnp.ones((8, 64, 128))


MODELS: dict[str, Callable[[], tuple[Loss, Any, Any]]] = {
    "deep": lambda: linen(64, 24, 64),
    "linen": lambda: linen(256, 4, 512),
    "scan": scan,
    "equinox": equinox,
}


def capture(model: str, folder: str, num_steps: int) -> None:
    """Write a trace of `num_steps` training steps."""
    loss, params, x = MODELS[model]()
    optimizer = optax.adam(1e-3)

    @jax.jit
    def train_step(params, state, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        with jax.named_scope("update"):
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

    params, state, value = train_step(params, optimizer.init(params), x)
    options = ProfileOptions()
    options.python_tracer_level = 0
    jax.block_until_ready(value)
    with jax.profiler.trace(folder, profiler_options=options):
        for step in range(num_steps):
            with StepTraceAnnotation("train", step_num=step):
                params, state, value = train_step(params, state, x)
        jax.block_until_ready(value)
