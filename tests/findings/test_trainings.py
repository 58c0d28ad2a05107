"""Trainings without a fault and with one: what is true of each is found, and nothing else.

`benchmarks/findings_truth.py` does the same with trainings that really run.
"""

import pytest

from tests.findings.trainings import HEALTHY, SICK, Described


def described(trainings: list[Described]) -> list:
    return [pytest.param(training, id=training.name) for training in trainings]


@pytest.mark.parametrize("training", described([*HEALTHY, *SICK]))
def test_what_is_true_is_found_and_nothing_else(training: Described) -> None:
    """Each training has the findings that are listed with it."""
    assert {finding.id for finding in training.findings()} == training.expected


@pytest.mark.parametrize("training", described([one for one in SICK if one.says or one.never_says]))
def test_advice_fits_what_the_user_has(training: Described) -> None:
    """It speaks of the user's loader and settings, and of nothing that is so already or cannot be had."""
    advice = " ".join(finding.advice for finding in training.findings())
    assert [words for words in training.says if words not in advice] == []
    assert [words for words in training.never_says if words in advice] == []
