"""The compiled programs of a trace: what each instruction is, where in the user's code it comes from.

JAX puts each program's HLO into the plane `/host:metadata`. A program is decoded when first asked for, and then once.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from trackside.trace import wire
from trackside.trace.wire import Span
from trackside.trace.xspace import XSpace

METADATA_PLANE = "/host:metadata"
_PROGRAM_NAME = re.compile(r"(.*)\((\d+)\)", re.DOTALL)
_LIBRARY_FILE = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]|^<")
_OWN_FOLDER = str(Path(__file__).parent.parent)
_MAX_NESTING = 100
_DEMO = str(Path(_OWN_FOLDER, "demo.py"))

# Bytes per element by the number of the element type: s8 is 2, f32 is 11, bf16 is 16 and so on.
_ELEMENT_BYTES = {
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33), 1),
    **dict.fromkeys((3, 7, 10, 16), 2),
    **dict.fromkeys((4, 8, 11), 4),
    **dict.fromkeys((5, 9, 12, 15), 8),
    18: 16,
}


class Shape(NamedTuple):
    """What a value is: an array, or a tuple of values."""

    element_type: int
    """XLA's number of the element type; 13 for a tuple."""
    dimensions: tuple[int, ...]
    parts: tuple["Shape", ...]
    """The values of a tuple; empty for an array."""

    @property
    def num_elements(self) -> int:
        """The elements of an array; those of all arrays of a tuple."""
        return sum(part.num_elements for part in self.parts) if self.parts else math.prod(self.dimensions)

    @property
    def num_bytes(self) -> int | None:
        """The bytes that it takes; None for an element type that is not known here."""
        if self.parts:
            sizes = [part.num_bytes for part in self.parts]
            return None if None in sizes else sum(size for size in sizes if size is not None)
        size = _ELEMENT_BYTES.get(self.element_type)
        return None if size is None else size * math.prod(self.dimensions)


@dataclass(frozen=True)
class Frame:
    """A place in source code."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Whether it is outside of installed packages, Python's own library and trackside, but for its demo."""
        return self.file == _DEMO or not (_LIBRARY_FILE.search(self.file) or self.file.startswith(_OWN_FOLDER))


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a program."""

    name: str
    opcode: str
    op_name: str
    """The metadata's path of scopes, transformations and primitive; empty where the compiler gave none."""
    instruction_id: int
    computation_id: int
    operand_ids: tuple[int, ...]
    called_ids: tuple[int, ...]
    """The computations it calls: what a fusion fuses, a loop's body."""
    target: str
    """What a custom call calls."""
    shape: Span
    frame_id: int
    source_file: str
    source_line: int
    body: Span
    """The whole instruction, for what few ask about."""


@dataclass(frozen=True)
class Computation:
    """A function of a program: the entry, a loop's body, what a fusion fuses."""

    computation_id: int
    root_id: int
    instructions: tuple[Instruction, ...]


class HloModule:
    """A compiled program.

    Args:
        name: Its name, such as `jit_train_call`.
        proto: The serialized `HloProto`: the module, and the buffer assignment where the compiler kept it.
    """

    def __init__(self, name: str, proto: bytes):
        self.name = name
        self.proto = proto
        self._stacks: dict[int, list[Frame]] = {}

    @cached_property
    def computations(self) -> dict[int, Computation]:
        """The computations by id."""
        found = (self._read_computation(span) for number, span in self._module_fields() if number == 3)
        return {computation.computation_id: computation for computation in found}

    @cached_property
    def instructions(self) -> dict[str, Instruction]:
        """The instructions by name; names are unique in a program."""
        return {instruction.name: instruction for instruction in self.by_id.values()}

    @cached_property
    def by_id(self) -> dict[int, Instruction]:
        """The instructions by id."""
        return {
            instruction.instruction_id: instruction
            for computation in self.computations.values()
            for instruction in computation.instructions
        }

    @cached_property
    def callers(self) -> dict[int, Instruction]:
        """By a computation's id, the instruction that calls it."""
        return {called: caller for caller in self.by_id.values() for called in caller.called_ids}

    def frames(self, instruction: Instruction) -> list[Frame]:
        """Where the instruction was traced, innermost first."""
        if not instruction.frame_id:
            known = bool(instruction.source_file)
            return [Frame(instruction.source_file, instruction.source_line, "")] if known else []
        if instruction.frame_id not in self._stacks:
            self._stacks[instruction.frame_id] = self._stack(instruction.frame_id)
        return self._stacks[instruction.frame_id]

    def num_bytes(self, instruction: Instruction) -> int | None:
        """The bytes of an instruction's result; None for an element type that is not known here."""
        return self.shape_of(instruction).num_bytes

    def shape_of(self, instruction: Instruction) -> Shape:
        """What an instruction results in."""
        return _read_shape(self.proto[instruction.shape[0] : instruction.shape[1]])

    def numbers_in(self, instruction: Instruction, *path: int) -> list[int]:
        """The numbers of a field of an instruction, such as a matrix product's contracted dimensions.

        Args:
            instruction: The instruction.
            path: The field's number in `HloInstructionProto`, or those of the messages that hold it and its own.
        """
        *outer, last = path
        spans = [instruction.body]
        for number in outer:
            spans = [value for span in spans for at, value in wire.spans(self.proto, span) if at == number]
        found = (value for span in spans for at, value in wire.fields(self.proto, span) if at == last)
        return [number for value in found for number in wire.numbers(self.proto, value)]

    def text_in(self, instruction: Instruction, number: int) -> str:
        """A text of an instruction by its field's number; empty where there is none."""
        found = (value for at, value in wire.spans(self.proto, instruction.body) if at == number)
        return next((wire.text(self.proto, value) for value in found), "")

    def _module_fields(self) -> Iterator[tuple[int, Span]]:
        for number, span in wire.spans(self.proto):
            if number == 1:
                yield from wire.spans(self.proto, span)

    def _read_computation(self, span: Span) -> Computation:
        computation_id = root_id = 0
        bodies: list[Span] = []
        for number, value in wire.fields(self.proto, span):
            if isinstance(value, tuple):
                if number == 2:
                    bodies.append(value)
            elif number == 5:
                computation_id = value
            elif number == 6:
                root_id = value
        instructions = tuple(_read_instruction(self.proto, body, computation_id) for body in bodies)
        return Computation(computation_id, root_id, instructions)

    @cached_property
    def _frame_tables(self) -> dict[int, list[Span]]:
        """File names (1), function names (2), locations (3) and stack frames (4)."""
        tables: dict[int, list[Span]] = {1: [], 2: [], 3: [], 4: []}
        for number, span in self._module_fields():
            if number == 17:
                for table, entry in wire.spans(self.proto, span):
                    tables.setdefault(table, []).append(entry)
        return tables

    def _stack(self, frame_id: int) -> list[Frame]:
        stack: list[Frame] = []
        frames = self._frame_tables[4]
        while 0 < frame_id <= len(frames) and len(stack) < 256:
            # Ids count from 1. A frame is a location and the frame that called it.
            entry = _numbers_by_field(self.proto, frames[frame_id - 1])
            frame_id = entry.get(2, 0)
            location = self._row(3, entry.get(1, 0))
            if location is not None:
                stack.append(self._frame(_numbers_by_field(self.proto, location)))
        return stack

    def _frame(self, location: dict[int, int]) -> Frame:
        file, function = self._row(1, location.get(1, 0)), self._row(2, location.get(2, 0))
        return Frame(
            wire.text(self.proto, file) if file else "",
            location.get(3, 0),
            wire.text(self.proto, function) if function else "",
        )

    def _row(self, table: int, row_id: int) -> Span | None:
        rows = self._frame_tables[table]
        return rows[row_id - 1] if 0 < row_id <= len(rows) else None


def read_modules(space: XSpace) -> dict[int, HloModule]:
    """The programs that a trace carries, by program id."""
    modules = {}
    for plane in space.planes:
        if plane.name != METADATA_PLANE:
            continue
        for metadata_id in plane.metadata_ids:
            metadata = plane.metadata(metadata_id)
            proto = next((value for value in metadata.stats.values() if isinstance(value, bytes)), None)
            if proto is None:
                continue
            name, program_id = split_program_name(metadata.name)
            told = metadata.stats.get("program_id", program_id)
            modules[int(told) if isinstance(told, int) else metadata_id] = HloModule(name, proto)
    return modules


def split_program_name(name: str) -> tuple[str, int | None]:
    """`jit_step(12)` as `jit_step` and 12; a name without a number as it is."""
    match = _PROGRAM_NAME.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def _read_instruction(proto: bytes, span: Span, computation_id: int) -> Instruction:
    texts = {1: "", 2: "", 28: ""}
    ids: dict[int, list[int]] = {36: [], 38: []}
    instruction_id, shape, metadata = 0, (0, 0), (0, 0)
    for number, value in wire.fields(proto, span):
        if number in texts:
            texts[number] = wire.text(proto, value)
        elif number in ids:
            ids[number] += wire.numbers(proto, value)
        elif number == 35 and isinstance(value, int):
            instruction_id = value
        elif number == 3 and isinstance(value, tuple):
            shape = value
        elif number == 7 and isinstance(value, tuple):
            metadata = value
    op_name, file, line, frame_id = _read_metadata(proto, metadata)
    return Instruction(
        texts[1],
        texts[2],
        op_name,
        instruction_id,
        computation_id,
        tuple(ids[36]),
        tuple(ids[38]),
        texts[28],
        shape,
        frame_id,
        file,
        line,
        span,
    )


def _read_metadata(proto: bytes, span: Span) -> tuple[str, str, int, int]:
    op_name, file, line, frame_id = "", "", 0, 0
    for number, value in wire.fields(proto, span):
        if number == 2:
            op_name = _text(proto[value[0] : value[1]]) if isinstance(value, tuple) else ""
        elif number == 3:
            file = wire.text(proto, value)
        elif isinstance(value, int):
            line, frame_id = (value, frame_id) if number == 4 else (line, value) if number == 15 else (line, frame_id)
    return op_name, file, line, frame_id


@lru_cache(maxsize=1 << 16)
def _text(raw: bytes) -> str:
    # A program repeats its op names; sharing them saves most of their memory.
    return raw.decode("utf-8", "replace")


def _numbers_by_field(proto: bytes, span: Span) -> dict[int, int]:
    return {number: value for number, value in wire.fields(proto, span) if isinstance(value, int)}


@lru_cache(maxsize=1 << 12)
def _read_shape(proto: bytes, depth: int = 0) -> Shape:
    """Element type (2), dimensions (3) and a tuple's parts (4). A program repeats its shapes."""
    if depth > _MAX_NESTING:
        raise wire.WireError("a shape of more tuples inside of each other than any program has")
    element_type, dimensions, parts = 0, [], []
    for number, value in wire.fields(proto):
        if number == 2 and isinstance(value, int):
            element_type = value
        elif number == 3:
            dimensions += wire.numbers(proto, value)
        elif number == 4 and isinstance(value, tuple):
            parts.append(_read_shape(proto[value[0] : value[1]], depth + 1))
    return Shape(element_type, tuple(dimensions), tuple(parts))
