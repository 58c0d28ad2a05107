"""Layers of a Linen module that compute their intermediate results again in the backward pass.

Linen makes its submodules while it runs, so their calls are intercepted. Those that were chosen go through the lifted
`nn.remat`, which hands on variables and keys as they are: results are the same as without it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn

from trackside.trainer.models.named_leaves import Path, split_arrays
from trackside.trainer.models.remat import Remat


class LinenRemat:
    """Intercepts the calls of a module's layers.

    Args:
        remat: Chooses the layers.
    """

    def __init__(self, remat: Remat):
        self._remat = remat
        self._chosen: frozenset[Path] = frozenset()

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """While the module is initialized: learn which layers there are, and choose."""
        paths: list[Path] = []

        def note(next_fun: Callable, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
            paths.append(context.module.path)
            return next_fun(*args, **kwargs)

        with nn.intercept_methods(note):
            yield
        self._chosen = self._remat.choose(paths)

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        """While the module is called: the chosen layers forget."""
        inside: set[Path] = set()

        def intercept(next_fun: Callable, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
            path = context.module.path
            if context.method_name != "__call__" or path not in self._chosen:
                return next_fun(*args, **kwargs)
            if path in inside:  # called by `run` below
                with nn.override_named_call(True):
                    return next_fun(*args, **kwargs)
            inside.add(path)
            try:
                with nn.override_named_call(False):  # the layer's name is that of the call around it
                    return self._checkpointed(context.module, args, kwargs)
            finally:
                inside.discard(path)

        with nn.intercept_methods(intercept):
            yield

    def _checkpointed(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        arrays, put_back = split_arrays((args, kwargs))

        def run(module: Any, *arrays: Any) -> Any:
            args, kwargs = put_back(arrays)
            return module(*args, **kwargs)

        return nn.remat(run, policy=self._remat.policy)(module, *arrays)
