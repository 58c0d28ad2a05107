"""Captures as files for Perfetto."""

from pathlib import Path

import pytest

from tests.trace.test_analyse import cpu_space
from trackside.trace.perfetto import export_captures


@pytest.mark.parametrize(
    ("session", "name"),
    [("../../x", "x"), ("{folder}/y", "y"), ("step_1", "step_1"), (".", "1"), (None, "1"), (7, "7")],
)
def test_session_stays_in_the_directory(tmp_path: Path, session: object, name: str) -> None:
    """The name of a session is a part of the file's name, whatever the run's file says."""
    capture = tmp_path / "capture"
    capture.mkdir()
    (capture / "host.xplane.pb").write_bytes(cpu_space())
    out = tmp_path / "deep" / "out"
    given = session.format(folder=tmp_path) if isinstance(session, str) else session
    (written,) = export_captures([{"path": str(capture), "session": given}], out)
    assert written == out / f"{name}-host.trace.json.gz"
    assert list(tmp_path.rglob("*.gz")) == [written]
