"""Keras 3 on JAX: the same models, optimizer and batches, trained by `fit`."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from collections.abc import Callable

import keras
import numpy as np
from keras import layers

from benchmarks.peers.tasks import LEARNING_RATE, Task, make_batches


def _mlp(task: Task, inputs: keras.KerasTensor) -> keras.KerasTensor:
    x = inputs
    for width in task.hidden:
        if task.is_residual:
            x = x if x.shape[-1] == width else layers.Dense(width)(x)
            x = layers.add([x, layers.Dense(width, activation=task.activation)(layers.LayerNormalization()(x))])
        else:
            x = layers.Dense(width, activation=task.activation)(x)
    return layers.Dense(1)(x)


def _cnn(task: Task, inputs: keras.KerasTensor) -> keras.KerasTensor:
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    return layers.Dense(10)(layers.Flatten()(x))


class _Places(layers.Layer):
    """Adds what it has learned for each place in the text."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.places = self.add_weight(shape=shape[1:], initializer="normal")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return x + self.places


def _transformer(task: Task, inputs: keras.KerasTensor) -> keras.KerasTensor:
    x = _Places()(layers.Embedding(task.num_classes, task.width)(inputs))
    for _ in range(task.num_layers):
        normed = layers.LayerNormalization()(x)
        attended = layers.MultiHeadAttention(4, task.width // 4)(normed, normed, use_causal_mask=True)
        x = layers.add([x, attended])
        hidden = layers.Dense(4 * task.width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.add([x, layers.Dense(task.width)(hidden)])
    return layers.Dense(task.num_classes)(layers.LayerNormalization()(x))


_MODELS = {"mlp": _mlp, "cnn": _cnn, "transformer": _transformer}


def fit(task: Task, has_bar: bool) -> Callable[[int], None]:
    """`fit` on arrays, as its guides show it: loss only, no norms, no log file.

    Args:
        task: What is trained.
        has_bar: Whether progress is shown, which is the default.
    """
    batches = make_batches(task)
    inputs, targets = (np.concatenate([batch[index] for batch in batches]) for index in (0, 1))
    repeats = -(-task.num_steps // len(batches))
    inputs, targets = np.concatenate([inputs] * repeats), np.concatenate([targets] * repeats)
    entry = keras.Input(inputs.shape[1:], dtype=inputs.dtype)
    model = keras.Model(entry, _MODELS[task.kind](task, entry))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if task.is_classification else "mse"
    model.compile(optimizer=keras.optimizers.Adam(LEARNING_RATE), loss=loss)

    def run(num_steps: int) -> None:
        end = num_steps * task.batch_size
        model.fit(inputs[:end], targets[:end], batch_size=task.batch_size, shuffle=False, verbose=1 if has_bar else 0)

    return run
