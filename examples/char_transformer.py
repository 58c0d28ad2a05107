"""A transformer that learns characters from Python's own text: python examples/char_transformer.py [RUN_DIR]."""

import sys
import tempfile
import this  # prints the Zen of Python; its text is what the model learns

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from trackside import Trainer, open_run

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 32, 48, 4, 2, 16
text = "".join(this.d.get(letter, letter) for letter in this.s)
alphabet = sorted(set(text))
codes = np.array([alphabet.index(letter) for letter in text], np.int32)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attend_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.attend(self.attend_norm(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(jax.nn.gelu(self.up(self.mlp_norm(x))))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.letters = nnx.Embed(len(alphabet), WIDTH, rngs=rngs)
        self.places = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, len(alphabet), rngs=rngs)

    def __call__(self, x):
        x = self.letters(x) + self.places(jnp.arange(x.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_fn(model, batch, rng):
    losses = optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"])
    return losses.mean(), {"bits": losses.mean() / jnp.log(2.0)}


def make_batches(num_batches, seed):
    starts = np.random.default_rng(seed).integers(0, len(codes) - CONTEXT - 1, (num_batches, BATCH))
    windows = codes[starts[..., None] + np.arange(CONTEXT + 1)]
    return [{"x": window[:, :-1], "y": window[:, 1:]} for window in windows]


def continue_text(model, prompt, length):
    """The most likely continuation, letter by letter."""
    predict = jax.jit(lambda window, at: jnp.argmax(model(window[None])[0, at]))
    window, written = np.zeros(CONTEXT, np.int32), [alphabet.index(letter) for letter in prompt]
    for _ in range(length):
        recent = written[-CONTEXT:]
        window[: len(recent)] = recent
        written.append(int(predict(jnp.asarray(window), len(recent) - 1)))
    return "".join(alphabet[code] for code in written)


run_dir = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
trainer = Trainer(lambda rngs: Transformer(rngs), loss_fn, optax.adamw(3e-3), run=run_dir)
batches = make_batches(60, seed=0)
trainer.build(batches[0], validates=True).calibrate_peak()  # MFU on a CPU needs its peak, which no data sheet has
results = trainer.fit(batches, make_batches(4, seed=1), num_epochs=4)
ledger = open_run(run_dir).ledger
bits, speed = results["val"]["bits"], ledger.tokens_per_second
print(f"{bits:.2f} bits per letter; {speed:,.0f} tokens per second, MFU {ledger.mfu:.0%}")
print(continue_text(trainer.model, "Beautiful is", 40))
