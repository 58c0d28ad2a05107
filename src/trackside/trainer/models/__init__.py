"""Model adapters: what lets one engine train models of any library."""

from typing import Any

from trackside.errors import ConfigError
from trackside.trainer.models.adapter import ModelAdapter, ModelConfig
from trackside.trainer.models.linen import LinenAdapter, build_module

__all__ = ["LinenAdapter", "ModelAdapter", "ModelConfig", "adapter_for", "build_module"]


def adapter_for(model: Any, config: ModelConfig) -> ModelAdapter:
    """The adapter for a model.

    Args:
        model: The model, as its library knows it.
        config: How it is spread over devices.
    """
    import flax.linen as nn

    if not isinstance(model, nn.Module):
        raise ConfigError(f"build_model: expected it to set self.model to a flax.linen.Module, got {model!r}")
    return LinenAdapter(model, config.parallel.rules)
