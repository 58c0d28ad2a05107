"""Decoding: training loops for models that read behavior out of neural activity, in JAX and in PyTorch."""

from trackside.decoding.decoding_step import make_step, mse_loss
from trackside.decoding.jax_loop import train_decoding_jax
from trackside.decoding.r2 import R2, r2_score
from trackside.decoding.torch_loop import train_decoding_torch

__all__ = ["R2", "make_step", "mse_loss", "r2_score", "train_decoding_jax", "train_decoding_torch"]
