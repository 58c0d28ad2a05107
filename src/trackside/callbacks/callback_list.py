"""Several callbacks as one."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from trackside.callbacks.callback import Callback, CallbackConfig, hears_steps
from trackside.callbacks.trainer_view import TrainerView
from trackside.errors import ConfigError
from trackside.profiling.ledger import Ledger
from trackside.profiling.ledger_totals import CHECKPOINTING
from trackside.schedule import next_boundary

LOGGER = logging.getLogger(__name__)


class CallbackList:
    """Several callbacks, called in order.

    Args:
        callbacks: The callbacks.
        ledger: Where the time of each is booked.
    """

    def __init__(self, callbacks: Iterable[Callback] = (), ledger: Ledger | None = None):
        self.callbacks = list(callbacks)
        self._ledger = Ledger() if ledger is None else ledger
        self._failed: list[Callback] = []

    def append(self, callback: Callback) -> None:
        """Add a callback behind the others."""
        self.callbacks.append(callback)

    @property
    def active(self) -> list[Callback]:
        """Those that have not failed."""
        return [callback for callback in self.callbacks if callback not in self._failed]

    @property
    def on_step(self) -> "CallbackList":
        """Those that have to hear of each step, as a list of their own."""
        chosen = CallbackList([callback for callback in self.callbacks if hears_steps(callback)], self._ledger)
        chosen._failed = self._failed
        return chosen

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook of every callback. An error names the callback that it came from."""
        for callback in self.callbacks:
            self._call_one(callback, hook, *args)

    def _call_one(self, callback: Callback, hook: str, *args: Any, part: str = "") -> Any:
        """Call a hook. The time is booked under a part of the ledger, by default that of the callback."""
        if callback in self._failed:
            return None
        before = self._ledger.switch(part or callback.ledger_part)
        try:
            result = getattr(callback, hook)(*args)
            return _copied(result) if hook == "state_dict" else result
        except Exception as error:
            where = f"{_described(callback)}.{hook}"
            if callback.config.on_error == "raise":
                error.add_note(f"raised in {where}")
                raise
            self._failed.append(callback)
            LOGGER.exception("%s failed; training continues without this callback", where)
            return None
        finally:
            self._ledger.switch(before)

    def next_boundary(self, step: int) -> float:
        """The first step after `step` after which one of them may have to act."""
        return next_boundary(self.active, step)

    def decide(self, step: int) -> list[Callback]:
        """Those that act after `step`. Each is asked, whatever the others say: some ask the other processes."""
        return [callback for callback in self.callbacks if self._call_one(callback, "decide", step)]

    def act(self, callbacks: Iterable[Callback], epoch_idx: int, step_idx: int) -> None:
        """Let those that have decided to act do so."""
        for callback in callbacks:
            self._call_one(callback, "on_boundary", epoch_idx, step_idx)

    def state_dict(self) -> dict[str, Any]:
        """The states of all callbacks, by class and order, as they are now, whatever callbacks change later."""
        named = list(self._named())
        states = {name: self._call_one(callback, "state_dict", part=CHECKPOINTING) for name, callback in named}
        return {name: state for name, state in states.items() if state is not None}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Give saved states back to the callbacks of the same class and order."""
        for name, callback in self._named():
            if name in states:
                self._call_one(callback, "load_state_dict", states[name])

    def _named(self) -> Iterator[tuple[str, Callback]]:
        counts: Counter[str] = Counter()
        for callback in self.callbacks:
            name = type(callback).__name__
            yield f"{name}-{counts[name]}", callback
            counts[name] += 1

    def finalize(self, status: str) -> None:
        """Close every callback; one that fails is reported and does not keep the others from closing."""
        for callback in self.callbacks:
            try:
                with self._ledger.spend(callback.ledger_part):
                    callback.finalize(status)
            except Exception:
                LOGGER.exception("%s failed to close", _described(callback))

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __len__(self) -> int:
        return len(self.callbacks)

    def __getitem__(self, index: int) -> Callback:
        return self.callbacks[index]


CallbackArgument = Callback | CallbackConfig | Iterable[Callback | CallbackConfig] | None
"""What users may write for callbacks: several, one, or none."""


def listed_callbacks(given: Any) -> list[Callback | CallbackConfig]:
    """The callbacks that a user gave, or configs of them; one alone is a list of one.

    Raises:
        ConfigError: One is neither.
    """
    if given is None:
        return []
    if isinstance(given, str) or not isinstance(given, Callback | CallbackConfig | Iterable):
        raise ConfigError(f"callbacks: expected a list of callbacks or of their configs, got {given!r}{_call(given)}")
    several = [given] if isinstance(given, Callback | CallbackConfig) else list(given)
    for one in several:
        if not isinstance(one, Callback | CallbackConfig):
            raise ConfigError(f"callbacks: expected callbacks or their configs, got {one!r}{_call(one)}")
    return several


def _call(given: Any) -> str:
    """For a class in place of its instance: that it has to be called."""
    return f"; write {given.__name__}()" if isinstance(given, type) else ""


def bind_callbacks(given: CallbackArgument, trainer: TrainerView, data_module: Any = None) -> list[Callback]:
    """Callbacks that run in this process, bound to a trainer.

    Args:
        given: Callbacks, or configs to build them from; one alone is a list of one.
        trainer: The trainer.
        data_module: The loaders, if they are known already.

    Raises:
        ConfigError: One is neither, or cannot work with several processes.
    """
    bound: list[Callback] = []
    for one in listed_callbacks(given):
        config = one.config if isinstance(one, Callback) else one
        config.check_cadence()  # here too, since a config may have a `__post_init__` of its own
        config.check_processes(trainer.processes)
        if config.main_process_only and not trainer.processes.is_main:
            continue
        if isinstance(one, Callback):
            one.bind(trainer)
        bound.append(one if isinstance(one, Callback) else one.create(trainer, data_module))
    return bound


def _described(callback: Callback) -> str:
    return callback.described_as or type(callback).__name__


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state, allow_nan=False))
