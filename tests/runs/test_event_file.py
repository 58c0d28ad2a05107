"""An event file in blocks of whole lines, and the lines of a block."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.runs import event_file
from trackside.runs.event_file import METRICS, OTHER, PACKED, EventFile, split_lines

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"",
                b'{"kind":"metrics",',
                b'{"kind":"metrics","t":1}',
                b'{"kind":"metrics","mode":"train_epoch"}',
                b'{"kind":"metrics',
                b'{"kind":"packed_metrics","t":1}',
                b'{"kind":"packed_metrics"',
                b'{"kind":"leg"}',
            ]
        ),
        st.binary(max_size=20).map(lambda text: text.replace(b"\n", b" ")),
    ),
    max_size=40,
)


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


@settings(max_examples=200, deadline=None)
@given(lines=LINES)
def test_lines_are_those_of_the_block(lines: list[bytes]) -> None:
    """Each line that is not empty is found; those that begin like metrics are marked, except those of an epoch."""
    block = b"".join(line + b"\n" for line in lines)
    found = split_lines(block)
    expected = [line for line in lines if line]
    assert [block[start:end] for start, end in zip(found.starts, found.ends, strict=True)] == expected
    assert found.forms.tolist() == [form_of(line) for line in expected]
    together = [(form, expected[begin:end]) for begin, end, form in found.runs()]
    assert [line for _, lines in together for line in lines] == expected
    assert all(set(map(form_of, lines)) == {form} for form, lines in together)
    assert all(len(lines) == 1 for form, lines in together if form == OTHER)


def form_of(line: bytes) -> int:
    """How a line is read."""
    for prefix, form in ((b'{"kind":"metrics",', METRICS), (b'{"kind":"packed_metrics",', PACKED)):
        if line.startswith(prefix) and len(line) > len(prefix) and b"train_epoch" not in line:
            return form
    return OTHER


def test_torn_rows_of_metrics() -> None:
    """Rows of metrics that do not end like a row are counted, other lines are not."""
    block = b'{"kind":"metrics","t":1}\n{"kind":"metrics","t":\n{"kind":"leg\n{"kind":"metrics","t":2}\n'
    assert split_lines(block).num_torn_metrics(block) == 1
