"""An object that is called as a step and has more than that, such as a state: all but its calls is its own."""

import functools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

_OWN = ("_measured", "__wrapped__", "measured_by")


def is_plain_function(function: Any) -> bool:
    """Whether a function around it is as good as itself. What is jitted has methods, and no state that changes."""
    kinds = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)
    return isinstance(function, kinds) or hasattr(function, "lower")


class MeasuredObject:
    """An object whose calls are measured. Made by `run.step`.

    Args:
        measured: What is called instead.
        wrapped: The object.
        measured_by: Who measures it.
    """

    def __init__(self, measured: Callable[..., Any], wrapped: Any, measured_by: Any):
        self._measured = measured
        self.__wrapped__ = wrapped
        self.measured_by = measured_by

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object."""
        return self._measured(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _OWN:  # not set yet, as while being copied
            raise AttributeError(attribute)
        return getattr(self.__wrapped__, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        if attribute in _OWN:
            super().__setattr__(attribute, value)
        else:
            setattr(self.__wrapped__, attribute, value)
