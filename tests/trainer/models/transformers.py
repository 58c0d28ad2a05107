"""One small causal transformer in every library, with layers of the library's own, and weights that fit all of them."""

from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

VOCABULARY, CONTEXT, WIDTH, HEADS, NUM_BLOCKS = 11, 6, 8, 2, 1
EPS = 1e-6
PROJECTIONS = {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
MLP = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}


def attend(query: Any, key: Any, value: Any) -> Any:
    """Causal attention of one example: arrays of positions and features."""
    query, key, value = (x.reshape(len(x), HEADS, -1) for x in (query, key, value))
    scores = jnp.einsum("thd,shd->hts", query, key) / np.sqrt(WIDTH // HEADS).astype(np.float32)
    mask = jnp.tril(jnp.ones(scores.shape[1:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    return jnp.einsum("hts,shd->thd", weights, value).reshape(-1, WIDTH)


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        normed = nn.LayerNorm(epsilon=EPS, name="attend_norm")(x)
        query, key, value = (nn.Dense(WIDTH, name=name)(normed) for name in ("query", "key", "value"))
        x = x + nn.Dense(WIDTH, name="out")(jax.vmap(attend)(query, key, value))
        up = nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm(epsilon=EPS, name="mlp_norm")(x))
        return x + nn.Dense(WIDTH, name="down")(nn.gelu(up))


class LinenTransformer(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        places = nn.Embed(CONTEXT, WIDTH, name="places")(jnp.arange(CONTEXT))
        x = nn.Embed(VOCABULARY, WIDTH, name="letters")(tokens) + places[None]
        for index in range(NUM_BLOCKS):
            x = LinenBlock(name=f"block_{index}")(x)
        return nn.Dense(VOCABULARY, name="head")(nn.LayerNorm(epsilon=EPS, name="norm")(x))


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.attend_norm = nnx.LayerNorm(WIDTH, epsilon=EPS, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(WIDTH, epsilon=EPS, rngs=rngs)
        for name, shape in {**PROJECTIONS, **MLP}.items():
            setattr(self, name, nnx.Linear(*shape, rngs=rngs))

    def __call__(self, x: Any) -> Any:
        normed = self.attend_norm(x)
        x = x + self.out(jax.vmap(attend)(self.query(normed), self.key(normed), self.value(normed)))
        return x + self.down(jax.nn.gelu(self.up(self.mlp_norm(x))))


class NnxTransformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.letters = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.places = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)
        for index in range(NUM_BLOCKS):
            setattr(self, f"block_{index}", NnxBlock(rngs))
        self.norm = nnx.LayerNorm(WIDTH, epsilon=EPS, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.letters(tokens) + self.places(jnp.arange(CONTEXT))[None]
        for index in range(NUM_BLOCKS):
            x = getattr(self, f"block_{index}")(x)
        return self.head(self.norm(x))


class EquinoxBlock(eqx.Module):
    attend_norm: eqx.nn.LayerNorm
    mlp_norm: eqx.nn.LayerNorm
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    out: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: Any):
        self.attend_norm = eqx.nn.LayerNorm(WIDTH, eps=EPS)
        self.mlp_norm = eqx.nn.LayerNorm(WIDTH, eps=EPS)
        keys = jax.random.split(key, 6)
        for one, (name, shape) in zip(keys, {**PROJECTIONS, **MLP}.items(), strict=True):
            setattr(self, name, eqx.nn.Linear(*shape, key=one))

    def __call__(self, x: Any) -> Any:
        normed = jax.vmap(self.attend_norm)(x)
        query, key, value = (jax.vmap(layer)(normed) for layer in (self.query, self.key, self.value))
        x = x + jax.vmap(self.out)(attend(query, key, value))
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.mlp_norm)(x))))


class EquinoxTransformer(eqx.Module):
    letters: eqx.nn.Embedding
    places: eqx.nn.Embedding
    block_0: EquinoxBlock
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = jax.random.split(key, 4)
        self.letters = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
        self.places = eqx.nn.Embedding(CONTEXT, WIDTH, key=keys[1])
        self.block_0 = EquinoxBlock(keys[2])
        self.norm = eqx.nn.LayerNorm(WIDTH, eps=EPS)
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, key=keys[3])

    def __call__(self, tokens: Any) -> Any:
        """The logits of one example."""
        x = jax.vmap(self.letters)(tokens) + jax.vmap(self.places)(jnp.arange(CONTEXT))
        return jax.vmap(self.head)(jax.vmap(self.norm)(self.block_0(x)))


def _dense(params: Any, x: Any) -> Any:
    return x @ params["kernel"] + params["bias"]


def _norm(params: Any, x: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + EPS) * params["scale"] + params["bias"]


def apply_fn(params: Any, tokens: Any) -> Any:
    x = params["letters"]["embedding"][tokens] + params["places"]["embedding"]
    for index in range(NUM_BLOCKS):
        block = params[f"block_{index}"]
        normed = _norm(block["attend_norm"], x)
        query, key, value = (_dense(block[name], normed) for name in ("query", "key", "value"))
        x = x + _dense(block["out"], jax.vmap(attend)(query, key, value))
        x = x + _dense(block["down"], jax.nn.gelu(_dense(block["up"], _norm(block["mlp_norm"], x))))
    return _dense(params["head"], _norm(params["norm"], x))


def make_weights() -> dict[str, Any]:
    """The weights by the names of Flax and of the plain functions."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) / np.sqrt(shape[0]).astype(np.float32)

    def dense(shape: tuple[int, int]) -> dict[str, np.ndarray]:
        return {"kernel": array(*shape), "bias": np.full(shape[1], 0.1, np.float32)}

    def norm() -> dict[str, np.ndarray]:
        return {"scale": np.ones(WIDTH, np.float32), "bias": np.zeros(WIDTH, np.float32)}

    block_shapes = {**PROJECTIONS, **MLP}
    blocks = {
        f"block_{index}": {
            **{name: dense(shape) for name, shape in block_shapes.items()},
            **{name: norm() for name in ("attend_norm", "mlp_norm")},
        }
        for index in range(NUM_BLOCKS)
    }
    embeddings = {"letters": {"embedding": array(VOCABULARY, WIDTH)}, "places": {"embedding": array(CONTEXT, WIDTH)}}
    return {**embeddings, **blocks, "norm": norm(), "head": dense((WIDTH, VOCABULARY))}


def for_equinox(weights: dict[str, Any]) -> dict[str, Any]:
    """The same weights by the names of Equinox, whose kernels are transposed."""
    renamed: dict[str, Any] = {}
    for name, value in weights.items():
        if isinstance(value, dict):
            renamed[name] = for_equinox(value)
        else:
            renamed["bias" if name == "bias" else "weight"] = value.T if name == "kernel" else value
    return renamed


MODELS = {
    "linen": LinenTransformer(),
    "nnx": lambda rngs: NnxTransformer(rngs),
    "equinox": lambda key: EquinoxTransformer(key),
    "functions": (lambda key, tokens: jax.tree.map(jnp.asarray, make_weights()), apply_fn),
}


def make_token_data(num_batches: int, size: int = 4) -> list[dict[str, np.ndarray]]:
    """Batches of tokens and those that follow."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (num_batches, size, CONTEXT + 1)).astype(np.int32)
    return [{"x": batch[:, :-1], "y": batch[:, 1:]} for batch in tokens]
