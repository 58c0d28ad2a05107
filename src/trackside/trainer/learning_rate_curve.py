"""Losses over growing learning rates: what a range test has measured, and the rate that they suggest."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trackside.text import four_digits, three_digits

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LEAST_FALL = 0.02
"""How much the loss has to fall, as a part of what it was, for the curve to say anything."""
_ALMOST_LOWEST = 0.05
"""The loss counts as lowest from where it is this close to it, as a part of its fall: behind may be a long plain."""
_MARGIN = 10.0
"""How many times lower than the rate with the lowest loss the suggestion is. There, training is about to explode."""
_BANDWIDTH = 0.03
"""Of all steps, how many are averaged around each one: the standard deviation of their weights."""
_HEIGHT_PX = 420


def rate_text(rate: float, is_relative: bool = False) -> str:
    """A learning rate as people write it; a multiple of one with an `x`."""
    shown = f"{rate:.2g}" if rate < 1e-3 or rate >= 1e3 else three_digits(float(f"{rate:.2g}"))
    return f"{shown}x" if is_relative else shown


@dataclass(frozen=True, eq=False)
class LearningRateTest:
    """Losses over growing learning rates. `print` shows the curve and the suggestion, `plot` draws it."""

    learning_rates: np.ndarray
    """The learning rate of each step, growing by a constant factor."""
    losses: np.ndarray
    """The loss of each step, before its update."""
    is_relative: bool = False
    """Whether the rates are multiples of the optimizer's own learning rate, which is not known."""
    has_diverged: bool = False
    """Whether the test ended because the loss exploded; it ran to the highest rate otherwise."""

    @cached_property
    def smoothed(self) -> np.ndarray:
        """The losses, averaged over neighboring steps."""
        return _local_lines(self._bounded)

    @cached_property
    def suggestion(self) -> float | None:
        """A tenth of the learning rate at which the loss is lowest; None if the curve does not show one."""
        if self._lowest is None:
            return None
        return float(max(self.learning_rates[self._lowest] / _MARGIN, self.learning_rates[0]))

    @property
    def reason(self) -> str:
        """Why this rate is suggested, or why none is."""
        if self._lowest is None:
            at = int(np.argmin(self.smoothed))
            return (
                f"the loss does not fall by more than {_LEAST_FALL:.0%} anywhere ({four_digits(self.smoothed[0])} at "
                f"the start, {four_digits(self.smoothed[at])} at {self._text(at)}); test more steps or another range, "
                "or look for a mistake in the model or the loss"
            )
        end = self._text(len(self.losses) - 1)
        reason = f"the loss is lowest at {self._text(self._lowest)}, and a tenth of that leaves a margin; "
        if self.has_diverged:
            return f"{reason}it explodes at {end}"
        if self._lowest >= 0.9 * len(self.losses):
            return f"{reason}it still falls at {end}, so test higher rates as well"
        return f"{reason}it does not explode up to {end}"

    @property
    def shown_range(self) -> tuple[float, float]:
        """The losses to draw: an explosion would flatten the part of the curve that says something."""
        if self._lowest is None:
            return float(self._bounded.min()), float(self._bounded.max())
        low, start = float(self.smoothed.min()), float(self.smoothed[: self._lowest + 1].max())
        return low, start + 0.3 * (start - low)

    def plot(self) -> "Figure":
        """Draw the losses over the learning rates, with the suggestion.

        Returns:
            A figure of plotly.
        """
        from plotly.graph_objects import Figure

        figure = Figure()
        title = "learning rate, as a multiple of the optimizer's own" if self.is_relative else "learning rate"
        rates = self.learning_rates
        figure.add_scatter(x=rates, y=self._bounded, name="loss", mode="markers", opacity=0.35)
        figure.add_scatter(x=rates, y=self.smoothed, name="smoothed", mode="lines")
        if self.suggestion is not None:
            label = f"suggested: {rate_text(self.suggestion, self.is_relative)}"
            figure.add_vline(x=self.suggestion, line_dash="dot", annotation_text=label)
        figure.update_layout(
            height=_HEIGHT_PX,
            margin={"l": 60, "r": 20, "t": 40, "b": 50},
            legend={"orientation": "h", "yanchor": "bottom", "y": 1.0},
        )
        figure.update_xaxes(title_text=title, type="log", exponentformat="power")
        low, high = self.shown_range
        figure.update_yaxes(title_text="loss", range=[low - 0.05 * (high - low), high])
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data. A loss that is not finite is None, which JSON can hold."""
        plain = asdict(self)
        for name, values in (*plain.items(), ("smoothed", self.smoothed)):
            if isinstance(values, np.ndarray):
                plain[name] = [value if np.isfinite(value) else None for value in values.tolist()]
        return {**plain, "suggestion": self.suggestion, "reason": self.reason}

    def __str__(self) -> str:
        from trackside.trainer.learning_rate_text import render_test

        return render_test(self)

    @cached_property
    def _bounded(self) -> np.ndarray:
        """The losses without what an explosion would hide them behind."""
        finite = self.losses[np.isfinite(self.losses)]
        highest = explosion_threshold(finite) if self.has_diverged else finite.max()
        return np.minimum(np.where(np.isfinite(self.losses), self.losses, highest), highest)

    @cached_property
    def _lowest(self) -> int | None:
        """The first step at which the loss is as good as lowest; None if it never falls."""
        start, low = float(self.smoothed[0]), float(self.smoothed.min())
        if not start - low > _LEAST_FALL * abs(start):
            return None
        return int(np.argmax(self.smoothed <= low + _ALMOST_LOWEST * (start - low)))

    def _text(self, index: int) -> str:
        return rate_text(float(self.learning_rates[index]), self.is_relative)


def explosion_threshold(losses: np.ndarray) -> float:
    """From which loss on a training has exploded, given those so far; they may be negative.

    It is as far above the best as three times what was gained, or as four times a best that is hardly better than the
    first.
    """
    best = float(np.min(losses))
    return best + 3 * max(abs(best), float(losses[0]) - best)


def _local_lines(values: np.ndarray) -> np.ndarray:
    """At each point, the height of the line that fits best around it.

    A moving average lags behind: it would show the loss falling at higher rates than those at which it fell.
    """
    at = np.arange(len(values), dtype=float)
    distance = at[None, :] - at[:, None]
    weights = np.exp(-0.5 * (distance / max(1.0, _BANDWIDTH * len(values))) ** 2)
    total, first, second = (np.sum(weights * distance**power, axis=1) for power in (0, 1, 2))
    mean, moment = weights @ values, (weights * distance) @ values
    return (second * mean - first * moment) / (total * second - first**2)
