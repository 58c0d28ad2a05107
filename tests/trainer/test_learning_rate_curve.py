"""What a curve of losses over learning rates suggests."""

import json

import numpy as np
import pytest

from trackside.trainer import LearningRateTest

RATES = np.geomspace(1e-5, 10, 100)


def curve(noise: float = 0.0, explodes: bool = True) -> np.ndarray:
    """Falls from 2 to 1 around 1e-2, and explodes around 1."""
    decades = np.log10(RATES)
    losses = 1 + 1 / (1 + np.exp(4 * (decades + 2))) + (np.exp(6 * decades) if explodes else 0)
    return losses + noise * np.random.default_rng(0).standard_normal(len(RATES))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_suggestion_is_a_tenth_of_the_rate_with_the_lowest_loss(noise: float) -> None:
    """The loss is as good as lowest from 0.03 to 0.3; the suggestion is a tenth of that, also with noise."""
    test = LearningRateTest(RATES, curve(noise), has_diverged=True)
    assert test.suggestion is not None
    assert 0.3e-2 < test.suggestion < 3e-2
    assert "the loss is lowest at 0." in test.reason
    assert "explodes at 10" in test.reason


def test_flat_curve_suggests_nothing() -> None:
    """A loss that does not fall gives no suggestion but a reason."""
    test = LearningRateTest(RATES, np.full(100, 2.0))
    assert test.suggestion is None
    assert "does not fall" in test.reason
    assert "suggested learning rate: none" in str(test)


def test_end_of_the_range_is_named() -> None:
    """If the loss still falls at the highest rate, the reason says to test higher ones."""
    cut = slice(0, 55)
    test = LearningRateTest(RATES[cut], curve()[cut])
    assert "test higher rates" in test.reason


def test_losses_that_are_not_finite_do_not_hide_the_curve() -> None:
    """A test that ended in NaN has the same suggestion, and can be written as JSON."""
    losses = curve()
    losses[-1] = np.nan
    test = LearningRateTest(RATES, losses, has_diverged=True)
    assert test.suggestion == LearningRateTest(RATES, curve(), has_diverged=True).suggestion
    assert json.loads(json.dumps(test.to_dict(), allow_nan=False))["losses"][-1] is None


def test_figure_has_curve_and_suggestion() -> None:
    """The figure draws losses and smoothed losses on a logarithmic axis, with a line at the suggestion."""
    figure = LearningRateTest(RATES, curve(), is_relative=True).plot()
    assert [trace.name for trace in figure.data] == ["loss", "smoothed"]
    assert figure.layout.xaxis.type == "log"
    assert "multiple" in figure.layout.xaxis.title.text
    assert len(figure.layout.shapes) == 1


def test_text_has_curve_and_suggestion() -> None:
    """The terminal shows the curve with a mark, its ends, the suggestion and the reason."""
    lines = str(LearningRateTest(RATES, curve(), is_relative=True, has_diverged=True)).splitlines()
    assert all("│" in line or "·" in line for line in lines[:10])
    assert lines[10].split() == ["1e-05x", "10x"]
    assert lines[12].startswith("suggested multiple of the optimizer's own learning rate: 0.00")
