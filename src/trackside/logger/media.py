"""What is logged beside numbers: images, text, histograms and figures, for the tools that can show them."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from trackside.errors import MetricError
from trackside.logger.images import render_figure, to_image, to_numbers


class MediaLogging(ABC):
    """The part of a logger that takes things to look at, checks them and passes them on."""

    def log_image(self, name: str, value: Any, step: int, mode: str | None = None) -> None:
        """Log an image or a batch of them to the tools that show images.

        Args:
            name: What to call it.
            value: numpy or JAX array, HxW, HxWxC or NxHxWxC; uint8, or float in [0, 1].
            step: The current step.
            mode: What to log it under; None for the current mode.
        """
        self._show("log_image", name, to_image(name, value), step, mode)

    def log_text(self, name: str, value: str, step: int, mode: str | None = None) -> None:
        """Log text to the event file and the tools that show text; arguments as for `log_image`."""
        if not isinstance(value, str):
            raise MetricError(f"log_text: {name!r} is a {type(value).__name__}. Pass a string.")
        self._show("log_text", name, value, step, mode)
        self._write_text(name, value, step, mode)

    def log_histogram(self, name: str, value: Any, step: int, mode: str | None = None) -> None:
        """Log the distribution of an array's finite numbers; other arguments as for `log_image`."""
        self._show("log_histogram", name, to_numbers(name, value), step, mode)

    def log_figure(self, name: str, value: Any, step: int, mode: str | None = None) -> None:
        """Log a matplotlib figure as it looks now; other arguments as for `log_image`."""
        if self._can_show("log_figure"):  # drawing takes long
            self._show("log_figure", name, render_figure(name, value), step, mode)

    @abstractmethod
    def _can_show(self, method: str) -> bool:
        """Whether a tool has the method."""

    @abstractmethod
    def _show(self, method: str, name: str, value: np.ndarray | str, step: int, mode: str | None) -> None:
        """Pass a value to the tools that have the method."""

    @abstractmethod
    def _write_text(self, name: str, value: str, step: int, mode: str | None) -> None:
        """Write text to the event file."""
