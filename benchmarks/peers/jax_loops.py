"""Hand-written JAX loops and the trainer, on Flax Linen models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.peers.tasks import LEARNING_RATE, Task, make_batches
from trackside.callbacks import CheckpointConfig, MemoryProfileConfig, ProgressBarConfig
from trackside.logger import FileLoggerConfig, LoggerConfig, TensorBoardLoggerConfig
from trackside.profiling import profile_data_loader
from trackside.trainer import (
    Batch,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    SchedulerConfig,
    Trainer,
    TrainerConfig,
    TrainerModule,
)

Run = Callable[[int], None]
"""Trains a given number of steps more, and returns when the device is done."""

_ACTIVATIONS = {"tanh": nn.tanh, "swish": nn.swish, "gelu": nn.gelu}


class MLP(nn.Module):
    config: Task

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        act = _ACTIVATIONS[self.config.activation]
        for width in self.config.hidden:
            if self.config.is_residual:
                x = x if x.shape[-1] == width else nn.Dense(width)(x)
                x = x + act(nn.Dense(width)(nn.LayerNorm()(x)))
            else:
                x = act(nn.Dense(width)(x))
        return nn.Dense(1)(x)


class CNN(nn.Module):
    config: Task

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        x = nn.relu(nn.Conv(16, (3, 3))(x))
        x = nn.relu(nn.Conv(32, (3, 3), strides=2)(x))
        return nn.Dense(10)(x.reshape(len(x), -1))


class Transformer(nn.Module):
    config: Task

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        task = self.config
        mask = nn.make_causal_mask(x)
        x = nn.Embed(task.num_classes, task.width)(x) + nn.Embed(task.context, task.width)(jnp.arange(task.context))
        for _ in range(task.num_layers):
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(task.width)(nn.gelu(nn.Dense(4 * task.width)(nn.LayerNorm()(x))))
        return nn.Dense(task.num_classes)(nn.LayerNorm()(x))


MODELS = {"mlp": MLP, "cnn": CNN, "transformer": Transformer}


def losses_of(task: Task, outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The loss of each example, or of each letter."""
    if task.is_classification:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, targets)
    return (outputs - targets) ** 2


class TaskTrainer(TrainerModule):
    def loss_function(self, params: Any, apply_fn: Callable, batch: Batch, rng: Any, train: bool = True) -> Any:
        outputs = apply_fn({"params": params}, batch.inputs, train=train)
        losses = losses_of(self.model_config.model_config, outputs, batch.targets)
        return losses.mean(), ({"loss": {"value": losses.sum(), "count": losses.size}}, None)


def _endless(batches: list[Any], num_steps: int) -> list[Any]:
    return [batches[index % len(batches)] for index in range(num_steps)]


def hand_written(task: Task, same_work: bool) -> Run:
    """A donated, jitted step in a `for`: the loss only, or all that the trainer computes in a step."""
    model, tx = MODELS[task.kind](task), optax.adam(LEARNING_RATE)
    batches = make_batches(task)

    def loss_of(params: Any, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        losses = losses_of(task, model.apply({"params": params}, inputs), targets)
        return losses.mean(), losses.sum()

    def update(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, Any, Any, Any]:
        (loss, total), grads = jax.value_and_grad(loss_of, has_aux=True)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, grads, loss, total

    def loss_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, opt_state, _, loss, _ = update(*state, batch)
        return (params, opt_state), loss

    def full_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, opt_state, rng, sums = state
        rng, _ = jax.random.split(rng)
        params, opt_state, grads, loss, total = update(params, opt_state, batch)
        grad_norm = optax.global_norm(grads)
        sums = {
            "loss": sums["loss"] + total,
            "count": sums["count"] + np.float32(batch[1].size),
            "grad_norm": sums["grad_norm"] + grad_norm,
            "param_norm": sums["param_norm"] + optax.global_norm(params),
            "finite": sums["finite"] * jnp.isfinite(loss + grad_norm),
        }
        return (params, opt_state, rng, sums), loss

    params = model.init(jax.random.key(0), batches[0][0])["params"]
    state: Any = (params, tx.init(params))
    if same_work:
        names = ("loss", "count", "grad_norm", "param_norm", "finite")
        state = (*state, jax.random.key(0), {name: jnp.zeros(()) for name in names})
    step = jax.jit(full_step if same_work else loss_step, donate_argnums=0)

    def run(num_steps: int) -> None:
        nonlocal state
        loss = None
        for batch in _endless(batches, num_steps):
            state, loss = step(state, batch)
        jax.block_until_ready(loss)

    return run


def short_trainer(task: Task, folder: Path) -> Run:
    """`Trainer` with nothing but what it has to be given: a row for each step, a CSV, a checkpoint at the end."""

    def loss_fn(model: Any, batch: Any, rng: Any) -> jax.Array:
        inputs, targets = batch
        return losses_of(task, model(inputs), targets).mean()

    built = Trainer(MODELS[task.kind](task), loss_fn, optax.adam(LEARNING_RATE), run=folder / "short")
    epoch, num_made = _endless(make_batches(task), task.num_steps), 0

    def run(num_steps: int) -> None:
        nonlocal num_made
        num_made += num_steps
        built.fit(epoch, num_train_steps=num_made)

    return run


def trainer(task: Task, folder: Path, log_every: int = 50, steps_per_call: Any = None, has_all: bool = False) -> Run:
    """The trainer, at its defaults unless told otherwise.

    Args:
        task: What is trained.
        folder: Where its run is written.
        log_every: How many steps a log row covers.
        steps_per_call: As in `TrainerConfig`; its default if left out.
        has_all: Whether timers, memory profiler, progress bar, CSV, TensorBoard and an idle checkpoint are on.
    """
    batches = [Batch(*batch) for batch in make_batches(task)]
    tools = [FileLoggerConfig(), TensorBoardLoggerConfig()] if has_all else []
    callbacks: list[Any] = []
    if has_all:
        callbacks = [
            ProgressBarConfig(),
            MemoryProfileConfig(log_dir=str(folder / "memory")),
            CheckpointConfig(every_n_epochs=1_000_000),
        ]
    chosen = {} if steps_per_call is None else {"steps_per_call": steps_per_call}
    built = TaskTrainer(
        TrainerConfig(
            logger=LoggerConfig(log_path=folder, log_every_n_steps=log_every, log_tools=tools),
            callbacks=callbacks,
            **chosen,
        ),
        ModelConfig(model_class=MODELS[task.kind], parallel=ParallelConfig(), model_config=task),
        OptimizerConfig(name="adam", scheduler=SchedulerConfig(name="constant", lr=LEARNING_RATE)),
        batch=batches[0],
    )
    epoch = _endless(batches, task.num_steps)
    timed_epoch = profile_data_loader(epoch) if has_all else epoch

    def run(num_steps: int) -> None:
        built.train_model(timed_epoch, num_train_steps=built.global_step + num_steps)

    return run
