"""Shows how far a training is: as a bar in terminals and notebooks, elsewhere as a line in the log now and then."""

import logging
import math
import sys
import time
from collections.abc import Iterable
from typing import Any

import tqdm.auto
import tqdm.std

from trackside.text import duration

LOGGER = logging.getLogger(__name__)

REFRESH_EVERY_S = 0.1
LINE_EVERY_S = 60.0


def is_shown(enabled: bool, is_main_process: bool) -> bool:
    """Whether a bar is worth drawing: somebody asked for it, and it goes to a terminal or a notebook.

    In a file or a pipe, a bar is a line that never ends.
    """
    return enabled and is_main_process and (_is_notebook() or sys.stderr.isatty())


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook. One that talks to kernels has imported ipykernel as well."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return tqdm.auto.tqdm is not tqdm.std.tqdm and hasattr(get_shell(), "kernel")


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
            self._bar.set_postfix_str("compiling")  # until the first step is done

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
        loss = f"loss={step_metrics['loss']:.4g}" if "loss" in step_metrics else ""
        self._bar.set_postfix_str(loss, refresh=False)
        self._bar.update(step - self._bar.n)

    def close(self, step: int) -> None:
        """Draw for the last time."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            self._bar.close()
            self._bar = None
            self.next_refresh_s = math.inf


class ProgressLines:
    """What a bar shows, as a line in the log every minute. A step costs a comparison.

    Args:
        total: Steps in all; infinite if unknown.
    """

    def __init__(self, total: float = math.inf):
        self.next_refresh_s = -math.inf
        self._total = total
        self._epoch = 0
        self._last: tuple[int, float] | None = None

    def start_epoch(self, epoch: int) -> None:
        """Remember which epoch it is."""
        if self._epoch == 0:
            LOGGER.info("compiling train_step, unless it is in the cache; then come the steps")
        self._epoch = epoch

    def show(self, step: int, step_metrics: dict[str, float], now_s: float) -> None:
        """Log the state after a step; the first, which compiled, only starts the clock."""
        if self._last is not None:
            LOGGER.info("%s", describe_progress(self._epoch, step, self._total, step_metrics, *self._last, now_s))
        self._last, self.next_refresh_s = (step, now_s), now_s + LINE_EVERY_S

    def close(self, step: int) -> None:
        """Log nothing more."""
        self.next_refresh_s = math.inf


def describe_progress(
    epoch: int, step: int, total: float, step_metrics: dict[str, float], last_step: int, last_s: float, now_s: float
) -> str:
    """How far a training is, as a line: epoch, step, loss, speed, time left.

    Args:
        epoch: The current epoch.
        step: The last step.
        total: Steps in all; infinite if unknown.
        step_metrics: Metrics of the last step.
        last_step: The step of the line before.
        last_s: When that was written, on the clock.
        now_s: What the clock shows.
    """
    is_known = math.isfinite(total)
    parts = [f"epoch {epoch}", f"step {step:,} of {int(total):,}" if is_known else f"step {step:,}"]
    if "loss" in step_metrics:
        parts.append(f"loss {step_metrics['loss']:.4g}")
    if step > last_step and now_s > last_s:
        per_second = (step - last_step) / (now_s - last_s)
        parts.append(f"{per_second:.3g} steps per second")
        if is_known:
            parts.append(f"about {duration((total - step) / per_second)} left")
    return ", ".join(parts)


def build_bar(is_wanted: bool, is_main: bool, step: int, num_steps: int | None) -> ProgressBar | ProgressLines:
    """What shows the progress of a loop of the user's own.

    Args:
        is_wanted: Whether anything is to be shown.
        is_main: Whether this is the process that shows it.
        step: Steps done before.
        num_steps: Steps in all, if that is known.
    """
    total = float("inf") if num_steps is None else num_steps
    shown = is_shown(is_wanted, is_main)
    if is_wanted and is_main and not shown:
        return ProgressLines(total)
    return ProgressBar(shown, step, total)
