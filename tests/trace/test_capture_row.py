"""A row `capture` as what it was: which captures have tables, which failed, and what older rows lack."""

from tests.trace.test_analyse import cpu_space
from trackside.trace import TraceReport, analyse_trace
from trackside.trace.capture_row import CaptureRow, analysed_captures


def row(**fields) -> CaptureRow:
    return CaptureRow({"kind": "capture", "path": "/runs/a/profile", "first_step": 11, "last_step": 20, **fields})


def test_a_row_gives_the_report_that_it_was_written_from():
    """The tables come back as the report that they were, and the row is still the row."""
    report = analyse_trace(cpu_space())
    capture = row(report=report.to_dict(), session="first", error="", utilisation=0.5)
    assert capture.report == report
    assert capture.is_analysed
    assert (capture.session, capture.first_step, capture.last_step, capture.utilisation) == ("first", 11, 20, 0.5)
    assert capture["report"] == report.to_dict()
    assert isinstance(capture, dict)


def test_a_failed_capture_has_no_tables():
    """An error without tables is a failure; so are tables without any device time, and tables that cannot be read."""
    failed, empty, damaged = row(error="full disk"), row(report=TraceReport().to_dict()), row(report={"scopes": 3})
    assert not any(capture.is_analysed for capture in (failed, empty, damaged))
    assert failed.error == "full disk"
    assert empty.error == ""
    assert "scopes" in damaged.error
    assert analysed_captures([failed, empty, damaged]) == []


def test_tables_count_although_something_failed_after_them():
    """An export that failed after the analysis takes nothing from the tables."""
    capture = row(report=analyse_trace(cpu_space()).to_dict(), error="no space for the file of Perfetto")
    assert [found for found, _ in analysed_captures([capture])] == [capture]
    assert capture.error


def test_rows_that_lack_fields_have_defaults():
    """A row of an earlier version, or a damaged one, never raises."""
    bare = CaptureRow({"first_step": None, "last_step": float("nan"), "warnings": 3, "utilisation": "much"})
    assert (bare.session, bare.path, bare.reason, bare.error) == ("", "", "", "")
    assert (bare.first_step, bare.last_step, bare.utilisation, bare.report, bare.notes) == (0, 0, None, None, [])


def test_a_plain_row_is_taken_as_it_is():
    """Rows as they are in an event file can be given wherever captures are read."""
    plain = {"report": analyse_trace(cpu_space()).to_dict()}
    ((capture, report),) = analysed_captures([plain])
    assert report.num_steps == 2
    assert CaptureRow.of(capture) is capture
