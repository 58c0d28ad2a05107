"""Finding the files of a trace."""

import os
from pathlib import Path

import pytest

from trackside.errors import TraceError
from trackside.trace.trace_files import find_trace_files, read_trace_file


@pytest.fixture
def log_dir(tmp_path):
    """A log directory with an old session of one host, and a new one of two."""
    for age, (session, host) in enumerate([("b_new", "h1"), ("b_new", "h0"), ("z_old", "h0")]):
        folder = tmp_path / "plugins" / "profile" / session
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{host}.xplane.pb"
        file.write_bytes(b"x")
        os.utime(file, (1_000_000 - 1_000 * age, 1_000_000 - 1_000 * age))
    return tmp_path


def test_newest_session_of_a_log_directory(log_dir):
    """Of several sessions the newest is read, with all its hosts."""
    files = find_trace_files(log_dir)
    assert [file.name for file in files] == ["h0.xplane.pb", "h1.xplane.pb"]
    assert {file.parent.name for file in files} == {"b_new"}


def test_session_directory(log_dir):
    """A session's directory is read itself, however old."""
    folder = log_dir / "plugins" / "profile" / "z_old"
    assert find_trace_files(folder) == [folder / "h0.xplane.pb"]


def test_single_file(log_dir):
    """A file is taken as it is, one host of many."""
    file = log_dir / "plugins" / "profile" / "b_new" / "h1.xplane.pb"
    assert find_trace_files(file) == [file]


def test_path_that_does_not_exist(tmp_path):
    """A wrong path is named."""
    with pytest.raises(TraceError, match="nothing-here: no such file"):
        find_trace_files(tmp_path / "nothing-here")


def test_directory_without_a_trace(tmp_path):
    """A directory without a trace says what was looked for."""
    (tmp_path / "a.trace.json.gz").write_bytes(b"x")
    with pytest.raises(TraceError, match=r"holds no \*\.xplane\.pb"):
        find_trace_files(tmp_path)


def test_file_that_cannot_be_read(tmp_path):
    """What the system says about a file is passed on."""
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace_file(tmp_path)


def test_name_that_is_too_long_is_not_there() -> None:
    """A path that no file system takes is a documented error, as one without a file is."""
    with pytest.raises(TraceError, match="no such file or directory"):
        find_trace_files(Path("9" * 5000))
