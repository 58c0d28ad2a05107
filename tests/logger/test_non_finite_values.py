"""Values that are not finite, and the warnings about them."""

import math

import numpy as np

from trackside.logger.non_finite_values import NonFiniteValues


def test_another_metric_going_bad_is_another_warning(caplog):
    """Each metric is warned of once."""
    values = NonFiniteValues()
    values.check({"loss": math.nan})
    values.check({"loss": math.nan, "grad_norm": np.float32("inf")}, step=3)
    assert values.found
    assert "grad_norm=inf" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2
