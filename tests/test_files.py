"""Files are replaced whole or not at all, and only regular ones are read."""

import os
from pathlib import Path

import pytest

from trackside.files import open_regular, read_regular, replacing, write_atomically


@pytest.mark.parametrize("content", ["text in \u00fc", b"bytes\x00"])
def test_a_file_is_replaced_and_its_folder_made(tmp_path: Path, content: str | bytes) -> None:
    """Text and bytes, over an old file and in a folder that is not there yet."""
    path = tmp_path / "new" / "file"
    write_atomically(path, "old")
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """Half of what was to be written is never seen."""
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A pipe, a device or a folder is refused at once; a link to a file is opened."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(OSError):  # noqa: PT011 (of several kinds)
            open_regular(path)
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"


def test_large_files_are_not_read(tmp_path: Path) -> None:
    """A file beyond the limit is refused before anything of it is read."""
    (tmp_path / "file").write_bytes(b"content")
    assert read_regular(tmp_path / "file", max_bytes=7) == b"content"
    with pytest.raises(OSError, match="larger than 6 bytes"):
        read_regular(tmp_path / "file", max_bytes=6)
