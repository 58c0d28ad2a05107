"""A finding as a value."""

import json

import pytest

from trackside.errors import ConfigError
from trackside.findings import Finding

FINDING = Finding(
    "input_bound",
    "severe",
    "training waits for data (62 % of wall time)",
    {"data_wait_share": 0.62, "num_steps": 100, "reason": "data_wait"},
    "raise workers or prefetch",
    subject="train",
)


def test_message_is_one_line_with_verdict_and_advice():
    """The message names the finding, what is the matter and what to do."""
    assert FINDING.message == ("input-bound: training waits for data (62 % of wall time); raise workers or prefetch")


def test_it_comes_back_from_json():
    """A finding that went through JSON is equal to what it was."""
    assert Finding.from_dict(json.loads(json.dumps(FINDING.to_dict()))) == FINDING


def test_it_comes_back_from_an_event_row():
    """Keys that are no fields, as an event row has them, are passed over."""
    assert Finding.from_dict({"kind": "finding", "t": 1.0, "step": 5, **FINDING.to_dict()}) == FINDING


def test_unknown_severity_is_refused():
    """A severity that is none is an error with the finding, the value and the choices."""
    with pytest.raises(ConfigError, match=r"severity of the finding 'x': expected one of 'severe'.*; got 'fatal'"):
        Finding("x", "fatal", "", {}, "")  # pyright: ignore[reportArgumentType]


def test_missing_field_is_named():
    """Plain values without a field are refused with its name."""
    plain = FINDING.to_dict()
    del plain["advice"]
    with pytest.raises(ConfigError, match="advice missing"):
        Finding.from_dict(plain)


def test_key_does_not_depend_on_figures():
    """The same finding with other figures has the same key, one about something else has not."""
    later = Finding("input_bound", "warning", "30 %", {"data_wait_share": 0.3}, "", subject="train")
    other = Finding("input_bound", "severe", FINDING.title, {}, "", subject="val")
    assert later.key == FINDING.key != other.key
