"""Images and figures brought into one form before they reach a tool."""

import sys
from typing import Any

import numpy as np

from trackside.errors import MetricError
from trackside.text import a_type

_NUM_CHANNELS = (1, 3, 4)
_TOLERANCE = 1e-3  # floats may miss [0, 1] by rounding


def to_image(name: str, image: Any) -> np.ndarray:
    """An image, or a batch of them, as bytes that no one else holds.

    Args:
        name: What it is logged as, for the error.
        image: numpy or JAX array, HxW, HxWxC or NxHxWxC with 1, 3 or 4 channels; uint8, bool or float in [0, 1].

    Returns:
        A uint8 array, HxWxC or NxHxWxC.

    Raises:
        MetricError: It is no image.
    """
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim not in (3, 4) or array.shape[-1] not in _NUM_CHANNELS or array.size == 0:
        raise MetricError(
            f"log_image: {name!r} has shape {np.shape(image)}. Pass HxW, HxWxC or NxHxWxC with the channels "
            f"(1, 3 or 4) last; np.moveaxis(image, -3, -1) turns channels-first around."
        )
    if array.dtype == np.uint8:
        return array.copy()
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if not _is_float(array):
        raise MetricError(f"log_image: {name!r} has dtype {array.dtype}. Pass uint8 in [0, 255] or floats in [0, 1].")
    array = array.astype(np.float32)
    low, high = float(array.min()), float(array.max())
    if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):
        raise MetricError(
            f"log_image: {name!r} has values from {low:g} to {high:g}. Floats must be finite and in [0, 1]: "
            "scale them, or pass uint8."
        )
    return np.rint(array.clip(0, 1) * 255).astype(np.uint8)


def to_numbers(name: str, values: Any) -> np.ndarray:
    """The finite numbers of an array, flat and as a copy, for a histogram.

    Args:
        name: What it is logged as, for the error.
        values: numpy or JAX array of numbers, or a list of them.

    Raises:
        MetricError: These are no numbers.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" and not _is_float(array):
        raise MetricError(f"log_histogram: {name!r} has dtype {array.dtype}. Pass an array of numbers.")
    array = array.astype(np.float64).reshape(-1)
    return array[np.isfinite(array)]


def render_figure(name: str, figure: Any) -> np.ndarray:
    """A matplotlib figure as it looks now, drawn on the calling thread: HxWx4, uint8.

    Args:
        name: What it is logged as, for the error.
        figure: The figure; left as it was, and open.

    Raises:
        MetricError: It is no matplotlib figure.
    """
    matplotlib_figure = sys.modules.get("matplotlib.figure")  # loaded, if there is a figure at all
    if matplotlib_figure is None or not isinstance(figure, matplotlib_figure.Figure):
        raise MetricError(f"log_figure: {name!r} is {a_type(figure)}. Pass a matplotlib figure.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas_before = figure.canvas
    try:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.array(canvas.buffer_rgba(), dtype=np.uint8)
    finally:
        figure.set_canvas(canvas_before)


def _is_float(array: np.ndarray) -> bool:
    # bfloat16 and its kin are floats that numpy itself calls void or custom.
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float"))
