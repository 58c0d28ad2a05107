"""Model adapters: what lets one step builder train models of any library."""

from trackside.trainer.models.base import ModelAdapter, ModelConfig
from trackside.trainer.models.linen import LinenAdapter, build_adapter

__all__ = ["LinenAdapter", "ModelAdapter", "ModelConfig", "build_adapter"]
