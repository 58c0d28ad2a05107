"""A problem that a linear model solves, and models of it, for the tests of the loops."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

NUM_INPUTS, NUM_OUTPUTS = 3, 2


def make_data(num_samples: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(num_samples, NUM_INPUTS)).astype(np.float32)
    weights = np.random.default_rng(7).normal(size=(NUM_INPUTS, NUM_OUTPUTS)).astype(np.float32)
    return inputs, inputs @ weights


def make_batches(data: tuple[np.ndarray, np.ndarray], batch_size: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
    starts = range(0, len(data[0]), batch_size)
    return [(data[0][start : start + batch_size], data[1][start : start + batch_size]) for start in starts]


class Linear(eqx.Module):
    """Linear, with a state that counts the steps, and dropout that hides in its key."""

    layer: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key: jax.Array, dropout: float = 0.0):
        self.layer = eqx.nn.Linear(NUM_INPUTS, NUM_OUTPUTS, key=key)
        self.dropout = eqx.nn.Dropout(dropout)

    def __call__(self, x, state, key):
        return self.dropout(self.layer(x), key=key), None if state is None else {"num_steps": state["num_steps"] + 1}


class JaxProblem:
    """The arguments of `train_decoding_jax`, to be changed by name."""

    def __init__(self, dropout: float = 0.0):
        self.model = Linear(jax.random.PRNGKey(3), dropout)
        self.opt = optax.sgd(0.1, momentum=0.5)
        data, val = make_data(), make_data(seed=1)
        self.arguments = {
            "model": self.model,
            "filter_spec": eqx.is_inexact_array,
            "train_loader": make_batches(data),
            "train_tensors": data,
            "val_tensors": val,
            "state": {"num_steps": jnp.zeros((), jnp.int32)},
            "opt": self.opt,
            "opt_state": self.opt.init(eqx.filter(self.model, eqx.is_inexact_array)),
            "epochs": 4,
            "log_every": 2,
            "key": jax.random.PRNGKey(0),
        }


class TorchProblem:
    """The arguments of `train_decoding_torch`, to be changed by name."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(NUM_INPUTS, NUM_OUTPUTS)
        data, val = make_data(), make_data(seed=1)
        self.arguments = {
            "model": self.model,
            "train_loader": make_batches(data),
            "train_tensors": data,
            "val_tensors": val,
            "optimizer": torch.optim.Adam(self.model.parameters(), lr=0.05),
            "loss_fn": torch.nn.MSELoss(),
            "num_epochs": 4,
            "log_every": 2,
            "device": "cpu",
        }
