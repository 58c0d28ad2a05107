"""Mixed precision as a policy: in which types parameters are kept, the model computes, and its outputs come back.

Parameters are kept in one type and cast to another inside the function that is differentiated, so gradients arrive in
the type of the parameters. What is cast is said in `models/casting.py`, and how float16 is kept from running out of
range in `loss_scale.py`.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from trackside.config import ConfigDict
from trackside.config.wording import did_you_mean
from trackside.errors import ConfigError
from trackside.trainer.loss_scale import LossScaleConfig
from trackside.trainer.models.casting import Casting

_NAMES = {
    "f32": "float32",
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "float16": "float16",
    "f64": "float64",
    "fp64": "float64",
    "float64": "float64",
}


@dataclass
class PrecisionConfig(ConfigDict):
    """In which types the model is kept, computes and answers. `"bf16"` in place of it means `compute="bf16"`."""

    params: str = "float32"
    """The type in which parameters are kept, and in which gradients reach the optimizer."""
    compute: str = "float32"
    """The type to which parameters and floating-point inputs are cast when the model is called."""
    output: str = "float32"
    """The type of what the model returns, and of the loss."""
    loss_scale: LossScaleConfig | None = None
    """Scales the loss so that small gradients survive; None for float16 only, with the defaults."""

    def __post_init__(self) -> None:
        for name in ("params", "compute", "output"):
            setattr(self, name, _long_name(f"PrecisionConfig.{name}", getattr(self, name)))
        if self.loss_scale is None and self.compute == "float16":
            self.loss_scale = LossScaleConfig()
        if self.loss_scale is not None and self.params == "float16":
            raise ConfigError(
                "PrecisionConfig.params: float16 has no room for gradients that are scaled back; keep the parameters "
                "in float32 or bfloat16"
            )

    def params_dtype(self) -> Any:
        """The type in which parameters are kept."""
        return jnp.dtype(self.params)

    def casting(self) -> Casting:
        """What is cast around a call of the model."""
        return Casting(jnp.dtype(self.compute), jnp.dtype(self.output))


def to_precision(value: Any, name: str = "precision") -> PrecisionConfig | None:
    """A policy, from what a user may write for it: a config, the short name of the type to compute in, or None."""
    if value is None or isinstance(value, PrecisionConfig):
        return value
    return PrecisionConfig(compute=_long_name(name, value))


def _long_name(name: str, value: Any) -> str:
    if isinstance(value, type | jnp.dtype):  # such as jnp.bfloat16
        value = jnp.dtype(value).name
    if isinstance(value, str) and value.lower() in _NAMES:
        return _NAMES[value.lower()]
    raise ConfigError(
        f"{name}: expected f32, bf16, fp16 or f64, got {value!r}.{did_you_mean(value, _NAMES)} For other types of "
        "parameters or outputs, write a PrecisionConfig"
    )
