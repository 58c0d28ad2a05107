"""What a user calls on a trainer is in its ledger, whichever method it is; the time between two calls is not."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, Protocol, TypeVar

from trackside.profiling.compiles import compile_counter
from trackside.profiling.ledger import Ledger

Params = ParamSpec("Params")
Result = TypeVar("Result")


class ProgramCache(Protocol):
    """Where compiled programs are kept."""

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        """For the length of a block, keep what this thread compiles."""
        ...


@contextlib.contextmanager
def accounting(ledger: Ledger, cache: ProgramCache | None = None) -> Iterator[bool]:
    """Keep account for the length of a block, with each compile of this thread as such.

    Args:
        ledger: The ledger. If it is running already, the block is part of what it runs for.
        cache: Where compiled programs are kept; None for nowhere.

    Yields:
        Whether it was started for this block.
    """
    if ledger.is_running:
        yield False
        return
    with compile_counter().booked_by(ledger), contextlib.nullcontext() if cache is None else cache.in_use():
        ledger.start()
        try:
            yield True
        finally:
            ledger.stop()


def in_ledger(method: Callable[Params, Result]) -> Callable[Params, Result]:
    """A method of a trainer whose time is in the trainer's ledger."""

    @functools.wraps(method)
    def accounted(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        trainer: Any = args[0]
        with accounting(trainer.ledger, trainer.compile_cache):
            return method(*args, **kwargs)

    return accounted
