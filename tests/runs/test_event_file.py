"""An event file in blocks of whole lines."""

from pathlib import Path

import pytest

from trackside.runs import event_file
from trackside.runs.event_file import EventFile, event_files, process_index_of


@pytest.mark.parametrize("block_bytes", [1, 3, 7, 64])
def test_blocks_are_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Whatever is read at once, also less than a line, blocks end with lines and lose nothing."""
    monkeypatch.setattr(event_file, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "events-00000.jsonl"
    path.write_bytes(b"one\ntwo-is-longer\n\nthree\nfo")
    file = EventFile(path)
    blocks = [bytes(block) for block in file.blocks()]
    assert all(block.endswith(b"\n") for block in blocks)
    assert b"".join(blocks) == b"one\ntwo-is-longer\n\nthree\n"
    assert (file.offset, file.num_pending) == (25, 2)
    with path.open("ab") as end:
        end.write(b"ur\n")
    assert [bytes(block) for block in file.blocks()] == [b"four\n"]
    assert file.num_pending == 0


@pytest.mark.parametrize("block_bytes", [3, 64])
def test_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Reading begins and stops where it was told to."""
    monkeypatch.setattr(event_file, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "events-00000.jsonl"
    path.write_bytes(b"one\ntwo\nthree\nfour\n")
    assert b"".join(map(bytes, EventFile(path, 4).blocks(until=14))) == b"two\nthree\n"


def test_files_of_a_folder(tmp_path: Path) -> None:
    """Event files are found by their names, in the order of processes; other files are none."""
    for name in (
        "events-00010.jsonl",
        "events-00002.jsonl",
        "events-123456.jsonl",
        "events-1.jsonl",
        "events-00002.csv",
    ):
        (tmp_path / name).touch()
    assert list(event_files(tmp_path)) == [2, 10, 123456]
    assert process_index_of(Path("events-00007.jsonl")) == 7
    assert process_index_of(Path("metrics.jsonl")) is None
