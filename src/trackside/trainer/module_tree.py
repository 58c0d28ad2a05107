"""The modules of a model as a tree, put together from the paths of its parameters and the scopes of its operations.

The two do not always agree. A Linen scope begins with the name of the model's class, an element of a list is one scope
(`blocks.0`) and two names in a path, a call of another method has its name in the scope (`embed.attend`), and a module
that only holds others opens no scope. Here each scope finds the module that it was opened by. One that belongs to none,
such as a `jax.named_scope` of the user's, becomes a part of the module around it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_LAYER_CLASS = re.compile(r"eqx\.nn\.\w+")
"""Scopes that Equinox opens in its own layers: they repeat the layer's class, not its name."""
_EINSUM = re.compile(r"(?=.*(,|->))[A-Za-z.,\s]+(->[A-Za-z.\s]*)?")
"""Scopes that `jnp.einsum` opens, such as `bqhd,bkhd->bhqk`: a product of the module around it, and no part of it."""


@dataclass
class Module:
    """A module, or a named part of one, with what was added to it. What its parts have is not in its own figures."""

    name: str = ""
    """What the scope of its calls is called within that of its parent, and otherwise what its attribute is."""
    scope: tuple[str, ...] | None = None
    """The scope in which its operations run; None if none do."""
    order: int | None = None
    """Which of all modules it is, in the order in which they first run."""
    figures: Counter[str] = field(default_factory=Counter)
    parts: dict[str, "Module"] = field(default_factory=dict)

    def part(self, name: str) -> "Module":
        """The part of a name, made if it is not there."""
        return self.parts.setdefault(name, Module(name))

    def totals(self) -> Counter[str]:
        """Its figures and those of all of its parts."""
        total = Counter(self.figures)
        for part in self.parts.values():
            total.update(part.totals())
        return total

    @property
    def first_run(self) -> float:
        """When it, or the first of its parts, runs first; infinite if none does."""
        own = math.inf if self.order is None else self.order
        return min([own, *(part.first_run for part in self.parts.values())])

    @property
    def is_scoped(self) -> bool:
        """Whether operations run in its scope, or in that of a part."""
        return self.first_run < math.inf


class ModuleTree:
    """The modules of a model.

    Args:
        root_name: What the scope of the whole model is called, inside that of the loss; empty if it has none.
    """

    def __init__(self, root_name: str = ""):
        self.root = Module()
        self._root_name = root_name
        self._num_scoped = 0

    def add_array(self, path: tuple[str, ...], **figures: int) -> None:
        """Add an array of the model.

        Args:
            path: Its path; all but the last name are those of modules.
            figures: What it adds to its module.
        """
        module = self.root
        for name in path[:-1]:
            module = module.part(name)
        module.figures.update(figures)

    def add_scope(self, scope: tuple[str, ...], prefix: tuple[str, ...] = (), **figures: int) -> None:
        """Add what runs in a scope. The arrays have to be there before.

        Args:
            scope: The scope, inside that of the loss.
            prefix: The scopes around it.
            figures: What it adds to its module.
        """
        module = self.root
        for index, component in enumerate(scope):
            is_root = index == 0 and component.partition(".")[0] == self._root_name
            if _EINSUM.fullmatch(component):
                continue
            if not is_root and not _LAYER_CLASS.fullmatch(component):
                module = _find(module, component) or module.part(component)
            if module.scope is None:
                module.scope, module.order = (*prefix, *scope[: index + 1]), self._num_scoped
                self._num_scoped += 1
        module.figures.update(figures)

    def visible(self) -> Iterator[tuple[int, str, Module]]:
        """All modules with their depth and name, those that run first before the others.

        A list, or another module that only holds others, is not one of them: its parts are named after it.
        """
        yield from _visible(self.root, 0, "")


def _visible(module: Module, depth: int, name: str) -> Iterator[tuple[int, str, Module]]:
    is_list = depth > 0 and module.scope is None and bool(module.parts) and not module.figures
    if is_list and all(part.isdigit() for part in module.parts):
        for part in _in_order(module):
            yield from _visible(part, depth, f"{name}.{part.name}")
        return
    yield depth, name, module
    for part in _in_order(module):
        yield from _visible(part, depth + 1, part.name)


def _in_order(module: Module) -> list[Module]:
    """Those that run first, then the others; elements of a list by their numbers."""
    parts = list(module.parts.values())
    if all(part.name.isdigit() for part in parts):
        return sorted(parts, key=lambda part: int(part.name))
    return sorted(parts, key=lambda part: part.first_run)


def _find(module: Module, component: str) -> Module | None:
    """The nearest module below that a name stands for: `blocks.0`, or `embed.attend` for a method of `embed`."""
    names = component.split(".")
    for wanted in ([component], names, names[:-1]):
        if wanted and (found := _nearest(module, wanted)) is not None:
            return found
    return None


def _nearest(module: Module, names: list[str]) -> Module | None:
    """The module with these names at the end of its path. None if several are equally near."""
    level = [module]
    while level:
        found = [reached for one in level if (reached := _follow(one, names)) is not None]
        if found:
            return found[0] if len(found) == 1 else None
        level = [part for one in level for part in one.parts.values()]
    return None


def _follow(module: Module, names: list[str]) -> Module | None:
    for name in names:
        if name not in module.parts:
            return None
        module = module.parts[name]
    return module
