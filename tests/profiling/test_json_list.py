"""A JSON list that is whole at every moment, whatever happens to its writer."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from trackside.errors import ConfigError
from trackside.profiling.json_list import (
    FIRST_BYTES,
    PAGE_BYTES,
    JsonListWriter,
    continue_json_list,
    read_json_list,
)

NUM_KILLS = int(os.environ.get("KILL_LEGS", "5"))

WRITER = """
import os, sys
from pathlib import Path
from trackside.profiling.json_list import continue_json_list, read_json_list

path = Path(sys.argv[1])
entries = list(read_json_list(path)) if path.exists() else []
writer = continue_json_list(path, lambda entry: True)
step = len(entries)
while True:
    writer.append({"step": step, "text": "x" * (step * 37 % 900)})
    os.write(1, b"%d\\n" % step)
    step += 1
"""


def parsed(path: Path) -> Any:
    return json.loads(path.read_bytes())


def make_entry(step: int, size: int = 10) -> dict[str, Any]:
    return {"step": step, "text": "x" * size}


def test_file_is_whole_after_every_append(tmp_path: Path) -> None:
    """The file is valid JSON with all entries so far after each append, across pages and growths."""
    path, entries = tmp_path / "list.json", []
    with closing(JsonListWriter(path)) as writer:
        assert parsed(path) == []
        for step in range(120):
            entries.append(make_entry(step, step * 37 % 900))
            writer.append(entries[-1])
            assert parsed(path) == entries
    assert path.stat().st_size > FIRST_BYTES


def test_no_entry_lies_across_two_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write inside the file is within one page, where a kill cannot cut it."""
    spans = []
    pwrite = os.pwrite

    def spy(descriptor: int, data: bytes, start: int) -> int:
        spans.append((start, start + len(data) - 1))
        return pwrite(descriptor, data, start)

    monkeypatch.setattr(os, "pwrite", spy)
    with closing(JsonListWriter(tmp_path / "list.json")) as writer:
        for step in range(100):
            writer.append(make_entry(step, step * 37 % 900))
    assert len(spans) > 50
    assert all(first // PAGE_BYTES == last // PAGE_BYTES for first, last in spans)


def test_entry_larger_than_a_page(tmp_path: Path) -> None:
    """An entry that no page can hold is written all the same."""
    path = tmp_path / "list.json"
    entries = [make_entry(0), make_entry(1, 3 * PAGE_BYTES), make_entry(2)]
    with closing(JsonListWriter(path)) as writer:
        for entry in entries:
            writer.append(entry)
        assert parsed(path) == entries


def test_old_file_stands_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """While a file is being replaced, a reader finds the old one."""
    path = tmp_path / "list.json"
    JsonListWriter(path, [make_entry(0)]).close()
    seen = []

    def entries() -> Iterator[dict[str, Any]]:
        for entry in (make_entry(1), make_entry(2)):
            seen.append(parsed(path))
            yield entry

    JsonListWriter(path, entries()).close()
    assert seen == [[make_entry(0)]] * 2
    assert parsed(path) == [make_entry(1), make_entry(2)]


def test_closed_file_has_no_room_left(tmp_path: Path) -> None:
    """Closing takes the white space away and keeps the entries."""
    path = tmp_path / "list.json"
    writer = JsonListWriter(path)
    writer.append(make_entry(0))
    writer.close()
    writer.close()
    assert path.read_text() == '[\n{"step":0,"text":"xxxxxxxxxx"}\n]\n'


def test_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that cannot be written is an OSError; the list is whole, and continues when there is room again."""
    path = tmp_path / "list.json"
    with closing(JsonListWriter(path)) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space"):
                writer.append(make_entry(0))
        assert parsed(path) == []
        writer.append(make_entry(1))
        assert parsed(path) == [make_entry(1)]


def test_entries_are_read_one_by_one(tmp_path: Path) -> None:
    """The reader gives the entries of a file that is being written, in order."""
    path = tmp_path / "list.json"
    entries = [make_entry(step, 500) for step in range(30)]
    with closing(JsonListWriter(path)) as writer:
        for entry in entries:
            writer.append(entry)
        assert list(read_json_list(path)) == entries


@pytest.mark.parametrize(
    "text", ["", '{"a": 1}', '[\n{"a":1}\n', '[\n{"a":1}\n]\n]', '[\n{"a":\n]\n', '[\n  {\n    "step": 0\n  }\n]\n']
)
def test_reader_refuses_what_is_no_list_of_ours(text: str, tmp_path: Path) -> None:
    """A file that is cut, damaged or laid out by others is a ValueError."""
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"."):
        list(read_json_list(path))


def test_going_on_drops_what_is_not_kept(tmp_path: Path) -> None:
    """A list that is continued has the entries that are kept, then the new ones."""
    path = tmp_path / "list.json"
    JsonListWriter(path, [make_entry(step) for step in range(5)]).close()
    with closing(continue_json_list(path, lambda entry: entry["step"] < 3)) as writer:
        writer.append(make_entry(3))
    assert [entry["step"] for entry in parsed(path)] == [0, 1, 2, 3]
    assert {name.name for name in tmp_path.iterdir() if name.suffix == ".json"} == {"list.json"}


@pytest.mark.parametrize("text", ["my notes", '[{"step": 7}', '[\n{"other":1}\n]\n', '[\n{"step":9}\n]\n'])
def test_what_does_not_belong_here_is_set_aside(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A foreign or damaged file, and a list of which nothing is kept, get another name and a warning."""
    path = tmp_path / "list.json"
    for number in (1, 2):
        path.write_text(text)
        continue_json_list(path, lambda entry: entry["step"] < 3).close()
        assert (tmp_path / f"list.old-{number}.json").read_text() == text
        assert parsed(path) == []
    assert "list.old-2.json" in caplog.text


def test_second_writer_is_refused(tmp_path: Path) -> None:
    """A file that is being written is not opened again, nor moved away."""
    path = tmp_path / "list.json"
    writer = JsonListWriter(path, [make_entry(0)])
    for keeps in (True, False):
        with pytest.raises(ConfigError, match=r"list\.json is being written"):
            continue_json_list(path, lambda entry, keeps=keeps: keeps)
    writer.append(make_entry(1))
    assert len(parsed(path)) == 2
    writer.close()
    continue_json_list(path, lambda entry: True).close()


@pytest.mark.slow
def test_writer_killed_at_random_moments(tmp_path: Path) -> None:
    """After a SIGKILL the file is valid JSON with every entry whose append had returned, and is continued."""
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    moments, path = random.Random(seed), tmp_path / "list.json"
    for _ in range(NUM_KILLS):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(moments.randint(1, 2000)):
                written = process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            written = (process.stdout.read().rpartition(b"\n")[0].rpartition(b"\n")[2]) or written
        steps = [entry["step"] for entry in parsed(path)]
        assert steps == list(range(len(steps)))
        assert steps[-1] >= int(written)
