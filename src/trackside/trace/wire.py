"""The protobuf wire format, read without protobuf: one message at a time, or a million in lockstep.

An xplane file is a few big messages that hold very many small ones of the same form. The big ones are walked field by
field in plain Python (`fields`); the small ones are decoded together by numpy (`scan`): each round takes the next field
of every message that has one, so that the number of Python steps is the number of fields of the longest message, not
the number of messages. Nothing is copied: a nested message is a span, a pair of offsets into the bytes.

Why not `jax.profiler.ProfileData`: it does not give the HLO programs that a trace carries, which scopes, phases and
source lines come from; it needs jaxlib, where traces are read without; and it makes an object per event, which takes
longer (`benchmarks.trace_analysis` measures it). A test holds the two against each other on real traces.
"""

import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_WORD_BYTES = 8
_BYTE = np.uint64(0xFF)
_SEVEN_STOPS = np.uint64(0x0080808080808080)
_SEVEN_BITS = np.uint64(0x007F7F7F7F7F7F7F)
_SQUEEZE = tuple(
    (np.uint64(mask), np.uint64(shift))
    for mask, shift in ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4))
)
"""How groups of seven bits, one per byte, are moved together: halves of a pair, then pairs, then fours."""
_TOO_LONG = "a field reaches beyond the end of its message"

Span = tuple[int, int]
"""Where a message's bytes begin and end."""


class WireError(ValueError):
    """Bytes that are not what the wire format allows."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at an offset, and the offset behind it."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError(_TOO_LONG)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise WireError("a number of more than ten bytes")


def fields(data: bytes, span: Span | None = None) -> Iterator[tuple[int, int | Span]]:
    """The fields of one message: field number, and its number or, where the field has a length, its span.

    Args:
        data: The bytes.
        span: Where the message is; all of the bytes if left out.

    Raises:
        WireError: If the bytes are no message.
    """
    at, end = span or (0, len(data))
    while at < end:
        key, at = (data[at], at + 1) if data[at] < 0x80 else read_varint(data, at)
        kind = key & 7
        if kind == LENGTH_DELIMITED:
            length, at = read_varint(data, at)
            value = (at, at + length)
            at += length
        elif kind == VARINT:
            value, at = read_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            width = 8 if kind == FIXED64 else 4
            value = int.from_bytes(data[at : at + width], "little")
            at += width
        else:
            raise WireError(f"wire type {kind}, which no message uses")
        if at > end or key < 8:
            raise WireError(_TOO_LONG if at > end else "a field with the number 0")
        yield key >> 3, value


def spans(data: bytes, span: Span | None = None) -> Iterator[tuple[int, Span]]:
    """Only those fields of a message that have a length: strings and nested messages."""
    for number, value in fields(data, span):
        if isinstance(value, tuple):
            yield number, value


def numbers(data: bytes, value: int | Span) -> list[int]:
    """The numbers of a repeated field, packed or not."""
    if isinstance(value, int):
        return [value]
    at, end = value
    found = []
    while at < end:
        number, at = read_varint(data, at)
        found.append(number)
    return found


def text(data: bytes, value: int | Span) -> str:
    """A string field."""
    if isinstance(value, int):
        raise WireError("a number where a text belongs")
    return data[value[0] : value[1]].decode("utf-8", "replace")


def signed(value: int) -> int:
    """An int64 field, which the wire carries in two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def as_double(value: int) -> float:
    """A double field, from the eight bytes that the wire carries."""
    return struct.unpack("<d", value.to_bytes(8, "little"))[0]


class Round(NamedTuple):
    """The next field of each message that had one left."""

    owner: np.ndarray
    """Which message, as an index into the spans."""
    number: np.ndarray
    """The field's number."""
    value: np.ndarray
    """The field's number as unsigned 64 bits; where it has a length, the offset of its first byte."""
    end: np.ndarray
    """The offset behind the field."""


def scan(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Iterator[Round]:
    """Decode many messages together, a field of each at a time.

    Args:
        data: The bytes, as an array of uint8.
        starts: Where each message begins.
        ends: Where each message ends.

    Raises:
        WireError: If one of them is no message.
    """
    owner = np.flatnonzero(starts < ends)
    if not owner.size:
        return
    first, last = int(starts.min()), int(ends.max())
    if first < 0 or last > len(data):
        raise WireError(_TOO_LONG)
    # Copied, since a field at the very end is read as whole words, which reach behind it.
    piece = np.concatenate([data[first:last], np.zeros(2 * _WORD_BYTES, np.uint8)])
    words = np.ndarray(len(piece) - _WORD_BYTES + 1, "<u8", piece, strides=(1,))
    at, end = starts[owner] - first, ends[owner] - first
    while owner.size:
        number, value, behind = _next_fields(words, at, first)
        if (behind > end).any() or (number < 1).any():
            raise WireError(_TOO_LONG)
        yield Round(owner, number, value, behind + first)
        left = behind < end
        if left.all():
            at = behind
        else:
            owner, at, end = owner[left], behind[left], end[left]


def _next_fields(words: np.ndarray, at: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number, value and end of the field at each offset.

    A field's key and its number nearly always fit into the eight bytes of one word, so that a single look-up and a few
    operations on words decode them, however many bytes the number has.
    """
    word = words[at]
    key = word & _BYTE
    value, num_bytes = _decode(word >> np.uint64(8))
    long = np.flatnonzero((num_bytes == 0) | (key >= 0x80))
    if long.size:
        key[long], value[long], num_bytes[long] = _decode_long_fields(words, at[long])
    behind = at + 1 + num_bytes
    kind = key & np.uint64(7)
    with_length = kind == LENGTH_DELIMITED
    if with_length.any():
        # A length that reaches beyond the file must not overflow when it is added.
        length = np.where(with_length, np.minimum(value, np.uint64(len(words))), 0).astype(np.int64)
        value[with_length] = (behind[with_length] + first).astype(np.uint64)
        behind += length
    if not (with_length | (kind == VARINT)).all():
        _take_fixed(words, at + 1 + (key >= 0x80), kind, value, behind)
    return (key >> np.uint64(3)).astype(np.int64), value, behind


def _decode(word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that words begin with, and how many bytes each takes: 0 if it does not end within seven bytes."""
    stops = ~word & _SEVEN_STOPS
    stop = stops & (~stops + np.uint64(1))
    below = stop - np.uint64(1)
    num_bytes = ((np.bitwise_count(below) + 1) >> 3).astype(np.int64)
    num_bytes[stop == 0] = 0
    word &= below & _SEVEN_BITS
    for mask, shift in _SQUEEZE:
        low = word & mask
        word = low | ((word ^ low) >> shift)
    return word, num_bytes


def _decode_long_fields(words: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Key, number and bytes behind the key's first of fields that do not fit into a word, or have a fixed width."""
    key, num_bytes = _decode_long(words, at)
    num_bytes -= 1
    value = np.zeros(len(at), np.uint64)
    has_number = np.flatnonzero(((key & np.uint64(7)) == VARINT) | ((key & np.uint64(7)) == LENGTH_DELIMITED))
    value[has_number], num_value_bytes = _decode_long(words, (at + 1 + num_bytes)[has_number])
    num_bytes[has_number] += num_value_bytes
    return key, value, num_bytes


def _decode_long(words: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers at offsets, a byte at a time, and how many bytes each takes."""
    value, num_bytes = np.zeros(len(at), np.uint64), np.zeros(len(at), np.int64)
    more = np.arange(len(at))
    for index in range(_MAX_VARINT_BYTES):
        byte = words[np.minimum(at[more] + index, len(words) - 1)] & _BYTE
        value[more] |= (byte & np.uint64(0x7F)) << np.uint64(7 * index)
        num_bytes[more] += 1
        more = more[byte >= 0x80]
        if not more.size:
            return value, num_bytes
    raise WireError("a number of more than ten bytes")


def _take_fixed(words: np.ndarray, start: np.ndarray, kind: np.ndarray, value: np.ndarray, behind: np.ndarray) -> None:
    """Fill in the fields of a fixed width, in place."""
    if not np.isin(kind, (VARINT, FIXED64, LENGTH_DELIMITED, FIXED32)).all():
        raise WireError("a wire type that no message uses")
    for fixed, width in ((FIXED64, 8), (FIXED32, 4)):
        chosen = np.flatnonzero(kind == fixed)
        value[chosen] = words[np.minimum(start[chosen], len(words) - 1)] & np.uint64((1 << 8 * width) - 1)
        behind[chosen] = start[chosen] + width


def split_repeated(data: bytes, span: Span, number: int) -> tuple[np.ndarray, np.ndarray, list[Span]]:
    """Take the messages of one repeated field out of a message that consists of little else, fast.

    Args:
        data: The bytes.
        span: The message that holds them.
        number: The field's number, below 16.

    Returns:
        Where the messages begin, where they end, and the spans of the other fields, each with its key.
    """
    at, end = span
    key = number << 3 | LENGTH_DELIMITED
    # Lists would hold an object per offset: several times the bytes of the file.
    starts, ends = array("q"), array("q")
    rest: list[Span] = []
    add_start, add_end = starts.append, ends.append
    while at < end:
        if data[at] != key:
            behind = skip_field(data, at)
            rest.append((at, behind))
            at = behind
            continue
        # Most events are shorter than 128 bytes: a length of one byte.
        length = data[at + 1] if at + 1 < end else 0x80
        if length < 0x80:
            at += 2
        else:
            length, at = read_varint(data, at + 1)
            if length > end - at:  # before it is too large for the array
                raise WireError(_TOO_LONG)
        add_start(at)
        at += length
        add_end(at)
    if at > end:
        raise WireError(_TOO_LONG)
    return np.array(starts, np.int64), np.array(ends, np.int64), rest


def skip_field(data: bytes, at: int) -> int:
    """The offset behind a field."""
    key, at = read_varint(data, at)
    kind = key & 7
    if kind == LENGTH_DELIMITED:
        length, at = read_varint(data, at)
        return at + length
    if kind == VARINT:
        return read_varint(data, at)[1]
    if kind in (FIXED64, FIXED32):
        return at + (8 if kind == FIXED64 else 4)
    raise WireError(f"wire type {kind}, which no message uses")
