"""Model adapters: what lets one engine train models of any library."""

from trackside.trainer.models.adapter import ModelAdapter, ModelConfig
from trackside.trainer.models.functions import FunctionModel
from trackside.trainer.models.library import adapter_for, build_model

__all__ = ["FunctionModel", "ModelAdapter", "ModelConfig", "adapter_for", "build_model"]
