"""Files are replaced whole or not at all."""

from pathlib import Path

import pytest

from trackside.files import replacing, write_atomically


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
