"""Fields that hold classes or functions. They are written as names, and found again without importing anything."""

import sys
import types
from typing import Any, get_args

from trackside.config.hints import canonical, describe, members_of
from trackside.config.mismatch import Mismatch
from trackside.config.registry import qualified_name, registered, registered_name, registered_names
from trackside.config.wording import listed


def write_class(hint: Any, value: Any) -> str:
    """The registered name of a class, or its `module.qualname`."""
    if not isinstance(value, type) or not _is_allowed(hint, value):
        raise Mismatch(f"a class ({describe(hint)})")
    name = registered_name(value) or qualified_name(value)
    if _find_class(name) is not value:
        raise Mismatch(
            "a class that can be found by its name: define it at the top of its module, or name it with "
            "trackside.config.register"
        )
    return name


def read_class(hint: Any, data: Any) -> type:
    """The class of a name."""
    found = _find_class(data) if isinstance(data, str) else data
    if not isinstance(found, type):
        raise Mismatch(
            f"the name of a class ({describe(hint)}); import the module that defines it, or name it with "
            "trackside.config.register"
        )
    if not _is_allowed(hint, found):
        raise Mismatch(describe(hint))
    return found


def write_callable(hint: Any, value: Any) -> str:
    """The name under which a function or class was registered."""
    name = registered_name(value) if callable(value) else None
    if name is None:
        raise Mismatch("a registered callable; name it with trackside.config.register")
    return name


def read_callable(hint: Any, data: Any) -> Any:
    """The function or class registered under a name; never one that was only imported."""
    found = registered(data) if isinstance(data, str) else data
    if not callable(found):
        raise Mismatch(f"a name given to trackside.config.register (registered: {listed(registered_names())})")
    return found


def _is_allowed(hint: Any, cls: type) -> bool:
    args = get_args(hint)
    bounds = members_of(args[0]) if args else [Any]
    return any(bound is Any or issubclass(cls, canonical(bound)) for bound in bounds)


def _find_class(name: str) -> Any:
    if (known := registered(name)) is not None:
        return known
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:split]))
        if issubclass(type(module), types.ModuleType):
            return _follow(module, parts[split:])
    return None


def _follow(module: Any, names: list[str]) -> Any:
    # Only through `__dict__`: getattr on a module may import something, by its `__getattr__` or lazy loading.
    found = object.__getattribute__(module, "__dict__").get(names[0])
    for name in names[1:]:
        found = vars(found).get(name) if isinstance(found, type) else None
    return found
