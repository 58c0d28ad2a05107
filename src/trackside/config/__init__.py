"""Configs: dataclasses that can be written as plain data or files, read back equal, and overridden by text.

Any dataclass that derives from `ConfigDict` works. Data may name config classes, registered functions and classes that
are already imported; it never causes an import.
"""

from trackside.config.base import ConfigDict
from trackside.config.config_files import load_config, save_config
from trackside.config.overrides import apply_overrides
from trackside.config.registry import register

__all__ = ["ConfigDict", "apply_overrides", "load_config", "register", "save_config"]
