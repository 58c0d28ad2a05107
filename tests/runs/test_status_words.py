"""How a run stands, in words."""

from typing import Any

import pytest

from trackside.runs.status_words import RunStatus, judge_status

LEG: dict[str, Any] = {"kind": "leg", "step": 0}
STOP: dict[str, Any] = {"kind": "stop", "reason": "early stopping: val_loss did not improve", "step": 28}


def test_early_stop_is_a_status_with_its_reason() -> None:
    """A success that a callback ended before its goal is one that stopped early, and says when and why."""
    status = judge_status("success", [LEG, STOP], step=28, goal=100)
    assert status == RunStatus("stopped early", "val_loss did not improve", 28)
    assert status.text == "stopped early at step 28: val_loss did not improve"


@pytest.mark.parametrize(
    ("word", "rows", "step"),
    [
        ("success", [LEG], 28),
        ("success", [LEG, STOP], 100),
        ("success", [LEG, STOP, LEG], 50),
        ("nan", [LEG, STOP], 28),
    ],
    ids=["no stop", "goal reached", "resumed since", "another end"],
)
def test_other_ends_keep_their_word(word: str, rows: list[dict[str, Any]], step: int) -> None:
    """Only a stop in the last leg, before the goal, in a run that ended well, makes it one that stopped early."""
    assert judge_status(word, rows, step, goal=100) == RunStatus(word)


def test_word_of_a_newer_version_is_shown_as_it_is() -> None:
    """A status that is not known has a meaning and a style nevertheless."""
    status = RunStatus("paused")
    assert (status.tone, status.text) == ("fair", "paused: the status that the run itself wrote")
