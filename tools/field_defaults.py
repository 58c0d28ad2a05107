"""Shows a field of a dataclass as `tags = []`, not as `tags = field(default_factory=list)`: an extension of griffe."""

from typing import Any

import griffe

EMPTY = {"dict": "{}", "list": "[]", "set": "set()", "tuple": "()"}


class FieldDefaults(griffe.Extension):
    """Replaces calls of `dataclasses.field` by the defaults that they stand for."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Called by griffe for each attribute that it finds in the source."""
        call = attr.value
        if isinstance(call, griffe.ExprCall) and call.function.canonical_name == "field":
            attr.value = _default(call)


def _default(call: griffe.ExprCall) -> griffe.Expr | str | None:
    given = {argument.name: argument.value for argument in call.arguments if isinstance(argument, griffe.ExprKeyword)}
    factory = given.get("default_factory")
    if factory is None:
        return given.get("default")
    if isinstance(factory, griffe.ExprLambda):
        return factory.body
    if isinstance(factory, str) or str(factory) in EMPTY:
        return EMPTY.get(str(factory))
    return griffe.ExprCall(factory, [])
