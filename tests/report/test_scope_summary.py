"""Device time by scope, from captures."""

import pytest

from tests.trace.synthetic import fused_chain
from tests.trace.test_analyse import COSTS, fused_space
from trackside.report.scope_summary import summarise_scopes
from trackside.trace import analyse_trace


def test_failed_capture_is_skipped() -> None:
    """A capture without tables says nothing about scopes."""
    assert summarise_scopes([{"session": "a", "report": None, "error": "disk full"}]) is None


def test_what_was_split_by_estimate_is_said() -> None:
    """The summary has how much of the time was split by estimate, in all and by scope."""
    report = analyse_trace(fused_space(fused_chain(COSTS))).to_dict()
    summary = summarise_scopes([{"session": "a", "report": report}])
    assert summary is not None
    assert (summary.estimated_share, summary.unsplit_share) == (pytest.approx(1.0), 0.0)
    assert [scope.scope for scope in summary.scopes] == ["d", "c", "b", "a"]
    assert all(scope.is_estimated for scope in summary.scopes)
    per_step_s = [scope.seconds_per_step for scope in summary.scopes]
    assert summary.busy_s_per_step == pytest.approx(sum(one or 0.0 for one in per_step_s))
    assert sum(scope.estimated_share for scope in summary.scopes) == pytest.approx(1.0)


def test_capture_of_an_older_version_has_nothing_estimated() -> None:
    """A row that was written before times were split is read, and nothing in it is called estimated."""
    time = {"busy_s": 1.0, "share": 1.0, "num_ops": 1}
    report = {"coverage": {"busy_s": 1.0, "resolved_s": 1.0}, "scopes": {"rows": [{"scope": "loss", **time}]}}
    summary = summarise_scopes([{"session": "a", "report": report}])
    assert summary is not None
    assert (summary.resolved_share, summary.estimated_share, summary.unsplit_share) == (1.0, 0.0, 0.0)
    assert not summary.scopes[0].is_estimated
