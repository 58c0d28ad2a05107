"""Configs: dataclasses that become plain data, files and command-line overrides, and come back equal.

Any dataclass that derives from `ConfigDict` takes part. Data may name config classes, registered functions and classes
that are imported already; it never causes an import.
"""

from trackside.config.base import ConfigDict
from trackside.config.files import load_config, save_config
from trackside.config.overrides import apply_overrides
from trackside.config.registry import register

__all__ = ["ConfigDict", "apply_overrides", "load_config", "register", "save_config"]
