"""Several training steps in one call of a compiled program."""

from trackside.fusing.fused_function import FusedSteps, fuse_steps

__all__ = ["FusedSteps", "fuse_steps"]
