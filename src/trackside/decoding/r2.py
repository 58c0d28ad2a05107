"""R²: how much of the variance of a target its prediction explains."""

from typing import Any, NamedTuple

import numpy as np

from trackside.errors import DataError


class R2(NamedTuple):
    """Coefficients of determination."""

    per_output: np.ndarray
    """One per output, in their order."""
    mean: float
    """Their mean, each output counting the same."""


def r2_score(targets: Any, predictions: Any) -> R2:
    """Tell how well predictions explain targets: 1 - residual sum of squares / total sum of squares.

    The order of the arguments matters: the variance to explain is that of the targets. 1 is perfect, 0 is as good as
    predicting the mean of the targets, and below 0 is worse. Targets that never change have no variance to explain:
    their R² is 1 where the predictions are equal to them and 0 otherwise, as in scikit-learn.

    Args:
        targets: What was to be predicted, with the outputs on the last axis; all other axes are samples. An array of
            one axis has one output.
        predictions: What was predicted, of the same shape.

    Raises:
        DataError: The shapes differ, or there are fewer than two samples.
    """
    targets, predictions = np.asarray(targets, np.float64), np.asarray(predictions, np.float64)
    if targets.shape != predictions.shape:
        raise DataError(
            f"predictions: shape {predictions.shape} differs from that of the targets, {targets.shape}. "
            "The model has to give one prediction for each target"
        )
    num_outputs = targets.shape[-1] if targets.ndim > 1 else 1
    targets, predictions = targets.reshape(-1, num_outputs), predictions.reshape(-1, num_outputs)
    if len(targets) < 2:
        raise DataError(f"targets: R² needs at least 2 samples, got {len(targets)}")
    residual = np.sum((targets - predictions) ** 2, axis=0)
    is_constant = (targets == targets[0]).all(axis=0)  # exact, where a sum of squares is only almost 0
    total = np.where(is_constant, 1.0, np.sum((targets - targets.mean(axis=0)) ** 2, axis=0))
    for_constant = np.where(np.isnan(residual), np.nan, np.where(residual == 0, 1.0, 0.0))
    per_output = np.where(is_constant, for_constant, 1 - residual / total)
    return R2(per_output, float(per_output.mean()))
