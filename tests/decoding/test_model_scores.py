import numpy as np

from trackside.decoding.model_scores import STATISTICS, array_statistics, name_statistics, score


def test_a_score_of_parts_is_that_of_the_whole():
    """The loss is weighed by samples, and R² is of all of them at once."""
    targets = np.arange(10.0).reshape(5, 2)
    found = score(lambda part: (1.0 if part.start == 0 else 6.0, targets[part]), targets, [slice(0, 3), slice(3, 5)])
    assert found.loss == 3.0
    assert found.r2.mean == 1.0


def test_statistics_of_an_array():
    """Mean, standard deviation, norm and the largest absolute value, in this order."""
    assert dict(zip(STATISTICS, array_statistics(np.array([3.0, -4.0])), strict=True)) == {
        "mean": -0.5,
        "std": 3.5,
        "norm": 5.0,
        "max_abs": 4.0,
    }


def test_complex_arrays_count_by_their_absolute_values():
    """As parameters of state-space models may be."""
    assert array_statistics(np.array([3 + 4j, 0j])) == [2.5, 2.5, 5.0, 5.0]


def test_named_statistics_have_the_norm_of_all():
    """The norms of two arrays add up as those of one."""
    rows = np.array([array_statistics(np.array([3.0])), array_statistics(np.array([4.0]))])
    named = name_statistics(["a", "b"], rows)
    assert named["norm"] == 5.0
    assert named["b.max_abs"] == 4.0
