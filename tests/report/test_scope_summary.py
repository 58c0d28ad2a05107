"""Device time by scope, from captures."""

from trackside.report.scope_summary import summarise_scopes


def test_failed_capture_is_skipped() -> None:
    """A capture without tables says nothing about scopes."""
    assert summarise_scopes([{"session": "a", "report": None, "error": "disk full"}]) is None
