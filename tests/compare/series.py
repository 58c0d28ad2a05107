"""Made-up step times: a true time that only noise is added to, and noise that lasts for a while."""

import numpy as np

from trackside.compare.disturbance import StepSeries


def correlated(rng: np.random.Generator, num_values: int, correlation: float) -> np.ndarray:
    """A Gaussian series of which neighbours are correlated, with variance 1."""
    values = np.empty(num_values)
    values[0] = rng.standard_normal()
    shocks = rng.standard_normal(num_values) * np.sqrt(1 - correlation**2)
    for index in range(1, num_values):
        values[index] = correlation * values[index - 1] + shocks[index]
    return values


def step_series(
    rng: np.random.Generator, true_s: float = 1e-3, num_steps: int = 3000, noise: float = 0.3, name: str = "run"
) -> StepSeries:
    """Steps of a machine that is slower at times, for many steps in a row, and never faster than it can be."""
    slow = np.maximum(correlated(rng, num_steps, 0.98), 0.0) * noise
    jitter = rng.exponential(0.01, num_steps)
    return StepSeries(name, true_s * (1 + slow + jitter), np.ones(num_steps, np.int64))
