"""Progress bars, in terminals and notebooks."""

import math
import sys
import time
from collections.abc import Iterable
from typing import Any

import tqdm.auto
import tqdm.std

REFRESH_EVERY_S = 0.1


def is_shown(enabled: bool, is_main_process: bool) -> bool:
    """Whether a bar is worth drawing: somebody asked for it, and it goes to a terminal or a notebook.

    In a file or a pipe, a bar is a line that never ends.
    """
    is_notebook = tqdm.auto.tqdm is not tqdm.std.tqdm and "ipykernel" in sys.modules
    return enabled and is_main_process and (is_notebook or sys.stderr.isatty())


def track(iterator: Iterable, shown: bool, **kwargs: Any) -> Iterable:
    """The iterator, wrapped in a bar if one is shown."""
    return tqdm.auto.tqdm(iterator, **kwargs) if shown else iterator


class ProgressBar:
    """The bar of a training. Drawn a few times a second at most; a step costs a comparison.

    Args:
        shown: Whether to draw at all.
        initial: Steps done before.
        total: Steps in all; infinite if unknown.
        num_epochs: Epochs in all, if known.
    """

    def __init__(self, shown: bool, initial: int = 0, total: float = math.inf, num_epochs: int | None = None):
        self.next_refresh_s = -math.inf if shown else math.inf
        self._num_epochs = num_epochs
        self._bar = None
        if shown:
            self._bar = tqdm.auto.tqdm(
                total=None if math.isinf(total) else int(total),
                initial=initial,
                unit="step",
                dynamic_ncols=True,
                mininterval=0,
                smoothing=0.3,
            )

    def start_epoch(self, epoch: int) -> None:
        """Show which epoch it is."""
        if self._bar is not None:
            of_all = f"/{self._num_epochs}" if self._num_epochs else ""
            self._bar.set_description(f"epoch {epoch}{of_all}", refresh=False)

    def show(self, step: int, step_metrics: dict[str, float], now_s: float) -> None:
        """Draw the state after a step."""
        if self._bar is None:
            return
        if self.next_refresh_s < 0:  # the first step, which compiled: rate and time left count from here
            self._bar.n = self._bar.initial = step
            self._bar.start_t = self._bar.last_print_t = time.time()
            self._bar.last_print_n = step
        self.next_refresh_s = now_s + REFRESH_EVERY_S
        if "loss" in step_metrics:
            self._bar.set_postfix_str(f"loss={step_metrics['loss']:.4g}", refresh=False)
        self._bar.update(step - self._bar.n)

    def close(self, step: int) -> None:
        """Draw for the last time."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            self._bar.close()
            self._bar = None
            self.next_refresh_s = math.inf
