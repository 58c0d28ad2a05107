"""Inputs that are almost right: what a file may hold after damage, or in another version's hands."""

import itertools
import os
import random
import time
from collections.abc import Iterator
from typing import Any

FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
"""For how long each test continues with new inputs, beyond those of every run; `make soak` sets it."""

_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3.5, -0.0, 1e308, 2**31, 2**63, -(2**63), 2**64 - 1, 10**30, "", "nan", "inf", "x"),
    *([], [[]], {}, {"": None}, [None], ["x"], [1, "x", None], {"x": {"x": 1}}, "\x00\u202e\ud7ff", "9" * 400),
)


def random_sources(num: int, seed: int) -> Iterator[random.Random]:
    """A source of chance for each input: the same few each time, then new ones for `FUZZ_SECONDS`."""
    for index in range(num):
        yield random.Random(f"{seed}/{index}")
    end = time.monotonic() + FUZZ_SECONDS
    for index in itertools.count(num):
        if time.monotonic() >= end:
            return
        yield random.Random(f"{seed}/{index}")


def odd_value(chance: random.Random) -> Any:
    """A value of any kind."""
    return nested(chance.choice([5, 400, 5000])) if chance.random() < 0.03 else chance.choice(_ODD_VALUES)


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def mutated_row(row: Any, chance: random.Random) -> Any:
    """A copy of plain values in which something is missing, added, or of another kind."""
    if chance.random() < 0.15 or not isinstance(row, dict | list) or not row:
        return odd_value(chance)
    if isinstance(row, list):
        index = chance.randrange(len(row))
        return [*row[:index], mutated_row(row[index], chance), *row[index + 1 :]]
    name = chance.choice(list(row))
    if chance.random() < 0.2:
        return {key: value for key, value in row.items() if key != name}
    if chance.random() < 0.1:
        return {**row, chance.choice(["", "x", "kind", "t", "step", "values"]): odd_value(chance)}
    return {**row, name: mutated_row(row[name], chance)}


def mutated_bytes(data: bytes, chance: random.Random) -> bytes:
    """A copy with bits flipped, bytes put in, or parts cut out, doubled or moved."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5, 20])):
        if not out:
            break
        at, size = chance.randrange(len(out)), chance.choice([1, 2, 8, 100, 1000])
        kind = chance.randrange(6)
        if kind == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            out[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif kind == 2:
            del out[at : at + size]
        elif kind == 3:
            out[at:at] = out[at : at + size]
        elif kind == 4:
            out[at:at] = bytes([chance.choice([0xFF, 0x80, 0x00])]) * size
        else:
            del out[at:]
    return bytes(out)
