"""Writes xplane files with known contents: the wire format, planes with JAX's names, HLO programs."""

import struct
from collections.abc import Iterable

Value = int | float | str | bytes

F32, S32 = 11, 4


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, value: Value) -> bytes:
    """One field: a number, a double, or something with a length."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def message(*fields: tuple[int, Value]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)


class PlaneWriter:
    """A plane that is filled event by event; times are given in nanoseconds."""

    def __init__(self, name: str, **stats: Value):
        self.name = name
        self._stats = stats
        self._stat_ids: dict[str, int] = {}
        self._metadata: dict[str, tuple[int, dict[str, Value], str]] = {}
        self._lines: dict[str, list[bytes]] = {}
        self._timestamps: dict[str, int] = {}

    def line(self, name: str, timestamp_ns: int = 0) -> None:
        self._lines[name] = []
        self._timestamps[name] = timestamp_ns

    def describe(self, name: str, display_name: str = "", **stats: Value) -> None:
        """Metadata that all events of a name share."""
        self._metadata[name] = (len(self._metadata) + 1, stats, display_name)

    def event(self, line: str, name: str, start_ns: float, duration_ns: float, **stats: Value) -> None:
        if line not in self._lines:
            self.line(line)
        if name not in self._metadata:
            self.describe(name)
        body = message((1, self._metadata[name][0]), (2, round(start_ns * 1000)), (3, round(duration_ns * 1000)))
        body += b"".join(field(4, self._stat(key, value)) for key, value in stats.items())
        self._lines[line].append(body)

    def counted_event(self, line: str, name: str, num_occurrences: int) -> None:
        """An event that stands for many and has no time."""
        self.event(line, name, 0, 0)
        self._lines[line][-1] = message((1, self._metadata[name][0]), (5, num_occurrences))

    def serialise(self) -> bytes:
        lines = [
            message((2, name), (3, self._timestamps[name]), *((4, event) for event in events))
            for name, events in self._lines.items()
        ]
        metadata = []
        for name, (key, stats, display_name) in self._metadata.items():
            entry = message((1, key), (2, name), (4, display_name))
            entry += b"".join(field(5, self._stat(stat, value)) for stat, value in stats.items())
            metadata.append(message((1, key), (2, entry)))
        own = [self._stat(key, value) for key, value in self._stats.items()]
        names = [message((1, key), (2, message((1, key), (2, name)))) for name, key in self._stat_ids.items()]
        parts = [(3, line) for line in lines] + [(4, entry) for entry in metadata] + [(5, name) for name in names]
        return message((2, self.name), *parts, *((6, stat) for stat in own))

    def _stat(self, name: str, value: Value) -> bytes:
        """A text is referred to by the id of its name, as JAX does, but for those named `annotation`."""
        number = {float: 2, int: 4, bytes: 6}.get(type(value), 5 if name == "annotation" else 7)
        written = self._stat_id(str(value)) if number == 7 else value
        return message((1, self._stat_id(name)), (number, written))

    def _stat_id(self, name: str) -> int:
        return self._stat_ids.setdefault(name, len(self._stat_ids) + 1)


def space(*planes: PlaneWriter | bytes, warnings: Iterable[str] = ()) -> bytes:
    written = [plane if isinstance(plane, bytes) else plane.serialise() for plane in planes]
    return message(*((1, plane) for plane in written), *((3, text) for text in warnings), (4, "testhost"))


def shape(*dimensions: int, element_type: int = F32) -> bytes:
    return message((2, element_type), (3, b"".join(varint(each) for each in dimensions)))


def instruction(
    instruction_id: int,
    name: str,
    opcode: str,
    op_name: str = "",
    *,
    operands: Iterable[int] = (),
    called: Iterable[int] = (),
    result: bytes = b"",
    frame: int = 0,
    target: str = "",
    fields: Iterable[tuple[int, Value]] = (),
) -> bytes:
    """An instruction; `fields` are further ones of `HloInstructionProto`, such as a parameter's number (9)."""
    metadata = message(*([(2, op_name)] if op_name else []), *([(15, frame)] if frame else []))
    return message(
        (1, name),
        (2, opcode),
        (3, result or shape()),
        (7, metadata),
        (28, target),
        (35, instruction_id),
        (36, b"".join(varint(each) for each in operands)),
        (38, b"".join(varint(each) for each in called)),
        *fields,
    )


def parameter(instruction_id: int, number: int, result: bytes) -> bytes:
    return instruction(instruction_id, f"p.{instruction_id}", "parameter", result=result, fields=[(9, number)])


def dot_fields(*contracted: int) -> list[tuple[int, Value]]:
    """The dimensions of the left operand that a matrix product contracts."""
    return [(30, message((1, b"".join(varint(each) for each in contracted))))]


def computation(computation_id: int, *instructions: bytes, root: int = 0) -> bytes:
    return message((1, f"c{computation_id}"), *((2, each) for each in instructions), (5, computation_id), (6, root))


def frames(*stack: tuple[str, int, str]) -> bytes:
    """A stack frame index: frame k+1 is the k-th entry, called by the entry after it."""
    files = [(1, file) for file, _, _ in stack]
    functions = [(2, function) for _, _, function in stack]
    places = [(3, message((1, at + 1), (2, at + 1), (3, line))) for at, (_, line, _) in enumerate(stack)]
    linked = [(4, message((1, at + 1), *([(2, at + 2)] if at + 1 < len(stack) else []))) for at, _ in enumerate(stack)]
    return message(*files, *functions, *places, *linked)


def hlo_proto(name: str, *computations: bytes, stack: bytes = b"") -> bytes:
    parts = [(3, each) for each in computations]
    return message((1, message((1, name), *parts, *([(17, stack)] if stack else []))))


def metadata_plane(programs: dict[int, tuple[str, bytes]]) -> PlaneWriter:
    plane = PlaneWriter("/host:metadata")
    for program_id, (name, proto) in programs.items():
        plane.describe(f"{name}({program_id})", **{"Hlo Proto": proto, "program_id": program_id})
    return plane


def fused_chain(lengths: dict[str, int], opcode: str = "tanh", size: int = 1 << 20, frame_of=None) -> bytes:
    """A program of one fusion, named after its last scope; each scope has a chain of operations of the given length."""
    inner, last = [parameter(100, 0, shape(size))], 100
    for at, (scope, length) in enumerate(lengths.items()):
        for _ in range(length):
            name, frame = f"{opcode}.{last + 1}", frame_of(at) if frame_of else 0
            op_name = f"jit(step)/{scope}/{opcode}"
            inner.append(instruction(last + 1, name, opcode, op_name, operands=[last], result=shape(size), frame=frame))
            last += 1
    named = f"jit(step)/{list(lengths)[-1]}/{opcode}"
    return hlo_proto(
        "jit_step",
        computation(
            1,
            parameter(1, 0, shape(size)),
            instruction(2, "fusion.2", "fusion", named, operands=[1], called=[2], result=shape(size)),
            root=2,
        ),
        computation(2, *inner, root=last),
        stack=frames(*((f"/home/me/{scope}.py", 10 + at, scope) for at, scope in enumerate(lengths))),
    )


def cpu_op(plane: PlaneWriter, line: str, op: str, start_ns: float, duration_ns: float, **stats: Value) -> None:
    """An operation as XLA's CPU client writes it."""
    full = {"hlo_op": op, "hlo_module": "jit_step", "program_id": 7, "run_id": -5, "device_ordinal": 0} | stats
    plane.event(line, op, start_ns, duration_ns, **full)


STEP_PROGRAM = hlo_proto(
    "jit_step",
    computation(
        1,
        instruction(1, "dot.1", "dot", "jit(step)/jvp(loss)/Net/Dense_0/dot_general", frame=1),
        instruction(2, "dot.2", "dot", "jit(step)/transpose(jvp(loss))/Net/Dense_0/dot_general", frame=1),
        instruction(3, "add.3", "add", "jit(step)/update/add", operands=[2]),
        instruction(4, "copy.4", "copy", operands=[3]),
        instruction(5, "while.5", "while", "jit(step)/jvp(loss)/while", called=[2]),
        instruction(6, "psum.6", "all-reduce", "jit(step)/gradient_sync/psum", operands=[9], result=shape(4, 8)),
        instruction(9, "param.9", "parameter", "params['w']", result=shape(4, 8)),
        root=3,
    ),
    computation(
        2,
        instruction(7, "exp.7", "exponential", "jit(step)/jvp(loss)/while/body/Block/exp"),
        instruction(8, "copy.8", "copy"),
        root=7,
    ),
    stack=frames(
        ("/venv/lib/python3.11/site-packages/flax/linen/linear.py", 20, "Dense.__call__"),
        ("/home/me/model.py", 12, "Net.__call__"),
        ("/home/me/train.py", 90, "main"),
    ),
)
