"""Keras 3 on JAX: the same models, optimizer and batches, trained by `fit`."""

import os

os.environ["KERAS_BACKEND"] = "jax"

from collections.abc import Callable
from typing import Any

import jax
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


def _build(task: Task) -> tuple[keras.Model, Any, Any]:
    """The model, its loss and its optimizer."""
    inputs = make_batches(task)[0][0]
    entry = keras.Input(inputs.shape[1:], dtype=inputs.dtype)
    model = keras.Model(entry, _MODELS[task.kind](task, entry))
    losses = keras.losses
    loss = (
        losses.SparseCategoricalCrossentropy(from_logits=True) if task.is_classification else losses.MeanSquaredError()
    )
    return model, loss, keras.optimizers.Adam(LEARNING_RATE)


def by_hand(task: Task) -> Callable[[int], None]:
    """The same model and optimizer in a jitted step of one's own, as Keras' guide to JAX shows it."""
    batches = make_batches(task)
    model, loss_of, optimizer = _build(task)
    optimizer.build(model.trainable_variables)

    def loss_and_updates(trainable: Any, others: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        outputs, others = model.stateless_call(trainable, others, inputs, training=True)
        return loss_of(targets, outputs), others

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        trainable, others, slots = state
        (loss, others), grads = jax.value_and_grad(loss_and_updates, has_aux=True)(trainable, others, *batch)
        trainable, slots = optimizer.stateless_apply(slots, grads, trainable)
        return (trainable, others, slots), loss

    jitted = jax.jit(step, donate_argnums=0)
    parts = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state: Any = tuple([jax.numpy.array(variable.value) for variable in part] for part in parts)

    def run(num_steps: int) -> None:
        nonlocal state
        loss = None
        for index in range(num_steps):
            state, loss = jitted(state, batches[index % len(batches)])
        jax.block_until_ready(loss)

    return run


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
    model, loss, optimizer = _build(task)
    model.compile(optimizer=optimizer, loss=loss)

    def run(num_steps: int) -> None:
        end = num_steps * task.batch_size
        model.fit(inputs[:end], targets[:end], batch_size=task.batch_size, shuffle=False, verbose=1 if has_bar else 0)

    return run
