"""The protobuf wire format, read one message at a time and many in lockstep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.synthetic import field, message, varint
from trackside.trace import wire

NUMBERS = st.integers(0, 2**64 - 1)
FIELD = st.tuples(st.integers(1, 2000), st.one_of(NUMBERS, st.floats(allow_nan=False), st.binary(max_size=20)))
MESSAGES = st.lists(st.lists(FIELD, max_size=6), max_size=8)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(NUMBERS)
def test_number_of_any_size_is_read(number):
    """Every 64-bit number comes back, with the offset behind it."""
    raw = varint(number)
    assert wire.read_varint(raw, 0) == (number, len(raw))


def test_fields_are_numbers_and_spans():
    """A field is its number, or where its bytes lie."""
    data = message((1, 300), (2, "name"), (3, 1.5))
    first, second, third = wire.fields(data)
    assert first == (1, 300)
    assert wire.text(data, second[1]) == "name"
    assert wire.as_double(third[1]) == 1.5


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(MESSAGES)
def test_lockstep_reads_what_one_at_a_time_reads(messages):
    """Decoding messages together gives each the fields that decoding it alone gives."""
    parts = [message(*fields) for fields in messages]
    ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
    starts = ends - np.array([len(part) for part in parts], np.int64)
    data = b"".join(parts)
    found: list[list] = [[] for _ in parts]
    for fields in wire.scan(np.frombuffer(data, np.uint8), starts, ends):
        for owner, number, value, end in zip(*(column.tolist() for column in fields), strict=True):
            found[owner].append((number, value, end))
    for index, span in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        alone = [
            (number, value if isinstance(value, int) else value[0], None if isinstance(value, int) else value[1])
            for number, value in wire.fields(data, span)
        ]
        together = [
            (number, value, end if expected[2] is not None else None)
            for (number, value, end), expected in zip(found[index], alone, strict=True)
        ]
        assert together == alone


def test_repeated_messages_are_split_from_the_rest():
    """The messages of one field are found, and the other fields are kept with their keys."""
    data = message((2, "line"), (4, b"x" * 200), (3, 5), (4, b"yy"))
    starts, ends, rest = wire.split_repeated(data, (0, len(data)), 4)
    assert [data[a:b] for a, b in zip(starts, ends, strict=True)] == [b"x" * 200, b"yy"]
    assert [data[a:b] for a, b in rest] == [field(2, "line"), field(3, 5)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05abc",
        b"\x08",
        b"\x08\xff",
        b"\x09\x01",
        b"\x0b",
        b"\x00\x01",
        b"\x08" + b"\xff" * 10 + b"\x01",
        b"\x22",
    ],
    ids=[
        "long length",
        "no number",
        "cut number",
        "cut double",
        "unknown type",
        "field 0",
        "eleven bytes",
        "key alone",
    ],
)
@pytest.mark.parametrize("read", ["alone", "together", "split"])
def test_bytes_that_are_no_message_are_refused(data, read):
    """What the wire format does not allow is an error in every reader, never a wrong number."""
    ends = np.array([len(data)])
    readers = {
        "alone": lambda: list(wire.fields(data)),
        "together": lambda: list(wire.scan(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), ends)),
        "split": lambda: [list(wire.fields(data, span)) for span in wire.split_repeated(data, (0, len(data)), 4)[2]],
    }
    with pytest.raises(wire.WireError):
        readers[read]()


def test_negative_number_is_read_as_two_s_complement():
    """The wire carries int64 as unsigned numbers."""
    assert wire.signed(wire.read_varint(varint(-5), 0)[0]) == -5


def test_repeated_numbers_packed_or_not():
    """Numbers may come one per field, or many in one."""
    data = varint(3) + varint(500)
    assert wire.numbers(data, (0, len(data))) == [3, 500]
    assert wire.numbers(data, 9) == [9]
