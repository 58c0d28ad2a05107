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


def test_sessions_that_end_alike_have_files_of_their_own(tmp_path: Path) -> None:
    """No capture overwrites another's file, also where a number is already part of a session's name."""
    captures = []
    for session in ("first/step_1", "second/step_1", "step_1-2"):
        capture = tmp_path / session
        capture.mkdir(parents=True)
        for host in ("a", "b"):
            (capture / f"{host}.xplane.pb").write_bytes(cpu_space())
            (capture / f"{host}.trace.json.gz").write_bytes(f"{session} {host}".encode())
        captures.append({"path": str(capture), "session": session})
    written = {path.name: path.read_text() for path in list(export_captures(captures, tmp_path / "out"))}
    assert written == {
        "step_1-a.trace.json.gz": "first/step_1 a",
        "step_1-b.trace.json.gz": "first/step_1 b",
        "step_1-2-a.trace.json.gz": "second/step_1 a",
        "step_1-2-b.trace.json.gz": "second/step_1 b",
        "step_1-2-2-a.trace.json.gz": "step_1-2 a",
        "step_1-2-2-b.trace.json.gz": "step_1-2 b",
    }
