"""The names by which data may refer to code: config classes by their own names, everything else through `register`.

Data never causes an import. A name is looked up among what the program has already defined or imported.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, overload

from trackside.config.wording import shown
from trackside.errors import ConfigError

T = TypeVar("T")


def qualified_name(obj: Any) -> str:
    """The `module.qualname` of a class or function."""
    return f"{obj.__module__}.{obj.__qualname__}"


class Registered:
    """A base class whose subclasses can be found by name."""

    __slots__ = ()

    _by_name: ClassVar[dict[str, list[type]]] = {}

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        # `dataclass(slots=True)` creates the class a second time and sets its qualname only afterwards, so
        # `find_configs` decides which entry replaces which.
        Registered._by_name.setdefault(cls.__name__, []).append(cls)


def find_configs(name: str, family: type) -> list[type]:
    """The config classes of this name that are `family` or derive from it.

    Args:
        name: A class name, or `module.qualname` if the class name alone is ambiguous.
        family: The class that the field declares.

    Returns:
        The classes that fit. Of two with the same module and qualname, only the later one.
    """
    found: dict[str, type] = {}
    for cls in Registered._by_name.get(name.rpartition(".")[2], ()):
        if issubclass(cls, family) and name in (cls.__name__, qualified_name(cls)):
            found[qualified_name(cls)] = cls
    return list(found.values())


def is_config_name(name: str) -> bool:
    """Whether any config class has this name."""
    return bool(find_configs(name, Registered))


def config_names(family: type) -> list[str]:
    """The sorted names of all config classes that are `family` or derive from it."""
    classes = (cls for entries in Registered._by_name.values() for cls in entries)
    return sorted({cls.__name__ for cls in classes if issubclass(cls, family) and dataclasses.is_dataclass(cls)})


def config_name(cls: type, family: type) -> str | None:
    """The shortest name under which a field that declares `family` finds `cls` again, or None if there is none."""
    # Data may be read where a base of the class is declared, so the name must be unique among all its relatives.
    root = [parent for parent in cls.__mro__ if issubclass(parent, Registered) and dataclasses.is_dataclass(parent)][-1]
    for relatives in (family if issubclass(root, family) else root, family):
        for name in (cls.__name__, qualified_name(cls)):
            if find_configs(name, relatives) == [cls]:
                return name
    return None


_NAMED: dict[str, Any] = {}


@overload
def register(name: str) -> Callable[[T], T]: ...
@overload
def register(name: str, obj: T) -> T: ...
def register(name: str, obj: Any = None) -> Any:
    """Let configs hold a class or function under a name.

    A field annotated `Callable` accepts only registered names; a class field also accepts the names of imported
    classes. Works as a call, `register("relu", jax.nn.relu)`, and as a decorator, `@register("my_loss")`.

    Args:
        name: What configs write, e.g. in JSON.
        obj: The class or function. Leave it out to use `register` as a decorator.

    Returns:
        `obj`, or the decorator.

    Raises:
        ConfigError: If the name is taken by something else.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"register: expected a name, got {shown(name)}; write @register('name') above a definition")
    if obj is None:
        return lambda decorated: register(name, decorated)
    if not callable(obj):
        raise ConfigError(f"register({name!r}): expected a class or function, got {shown(obj)}")
    known = _NAMED.get(name, obj)
    if known is not obj and not _redefines(obj, known):
        raise ConfigError(f"register({name!r}): the name is already taken by {shown(known)}; choose another")
    _NAMED[name] = obj
    return obj


def _redefines(new: Any, old: Any) -> bool:
    # A notebook cell that runs again, or a reloaded module, defines the same thing again.
    qualname = getattr(new, "__qualname__", "<none>")
    if "<" in qualname or qualname != getattr(old, "__qualname__", None):
        return False
    return new.__module__ == old.__module__


def registered(name: str) -> Any:
    """What is registered under `name`, or None."""
    return _NAMED.get(name)


def registered_name(obj: Any) -> str | None:
    """The first name that `obj` was registered under, or None."""
    return next((name for name, known in _NAMED.items() if known is obj), None)


def registered_names() -> list[str]:
    """All names given to `register`, sorted."""
    return sorted(_NAMED)
