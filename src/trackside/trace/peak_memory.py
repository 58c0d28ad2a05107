"""What fills a program's memory at its peak, by scope and phase, from the compiler's buffer assignment.

The HLO that a capture carries has, beside the program, where the compiler put each buffer and in which order it
allocated and freed them. Played back, that gives the moment at which most temporary memory is in use and what is in
it then: in a training step the activations that were saved for the backward pass, by layer. The figures are those of
one device, and what the compiler planned; an allocator's own overhead comes on top.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from trackside.errors import TraceError
from trackside.trace import wire
from trackside.trace.device_events import OpKey, Program
from trackside.trace.hlo import HloModule
from trackside.trace.ops import OpInfo, describe_ops
from trackside.trace.wire import Span, WireError
from trackside.trace.xspace import EventMetadata

_ALLOCATE, _FREE, _SHARE = 0, 1, 2


@dataclass(frozen=True)
class LiveRow:
    """What one scope holds at the peak in what one phase made."""

    scope: tuple[str, ...] = ()
    """The user's scopes, outermost first; empty for what the compiler made and could not be traced back."""
    phase: str = "other"
    """One of `trackside.trace.scopes.PHASES`: which phase computed the buffers, not which one needs them."""
    num_bytes: int = 0
    num_buffers: int = 0


@dataclass(frozen=True)
class PeakMemory:
    """The memory of a program on one device."""

    parameter_bytes: int = 0
    """Its arguments."""
    donated_bytes: int = 0
    """Those of the arguments whose memory the outputs take over."""
    output_bytes: int = 0
    """Outputs that have memory of their own."""
    constant_bytes: int = 0
    """Constants."""
    temporary_bytes: int = 0
    """All else that is allocated for a call."""
    peak_temporary_bytes: int | None = None
    """The most bytes that buffers hold at one moment; less than is allocated, as there are gaps between them."""
    peak_instruction: str = ""
    """The instruction that runs at that moment."""
    peak_scope: tuple[str, ...] = ()
    """The scope that the instruction belongs to."""
    peak_phase: str = "other"
    """The phase that it belongs to."""
    rows: tuple[LiveRow, ...] = ()
    """What holds the bytes of the peak, the largest first."""
    missing: tuple[str, ...] = ()
    """What the program's HLO does not tell."""

    @property
    def total_bytes(self) -> int:
        """All memory that a call needs, its arguments included."""
        return self.parameter_bytes + self.output_bytes + self.constant_bytes + self.temporary_bytes


def peak_memory(hlo_proto: bytes) -> PeakMemory | None:
    """Find what fills a program's memory at its peak.

    Args:
        hlo_proto: A serialized `HloProto`: `HloModule.proto` of a trace.

    Returns:
        The program's memory; None if the HLO has no buffer assignment. Where it has one without the order of
        allocations, the peak is missing, and said to be.

    Raises:
        TraceError: If the bytes are no `HloProto`.
    """
    try:
        return _read(HloModule("", hlo_proto))
    except (WireError, LookupError) as error:
        raise TraceError(
            f"hlo_proto of {len(hlo_proto)} bytes: no complete HloProto ({error}); pass the bytes that the trace holds"
        ) from error


def _read(module: HloModule) -> PeakMemory | None:
    assignment = next((span for number, span in wire.spans(module.proto) if number == 3), None)
    if assignment is None:
        return None
    parts: dict[int, list[Span]] = {1: [], 3: [], 4: []}
    for number, span in wire.spans(module.proto, assignment):
        if number in parts:
            parts[number].append(span)
    sizes = _allocation_sizes(module.proto, parts[3])
    buffers = dict(_read_buffer(module, span) for span in parts[1])
    peak = max((_play(module.proto, span, buffers) for span in parts[4]), key=lambda peak: peak.num_bytes, default=None)
    if peak is None and not sizes["temporary"]:
        peak = _Peak(0, "", ())
    live = [buffers[buffer] for buffer in peak.live] if peak else []
    at, *makers = _describe(module, [peak.instruction if peak else "", *(buffer.instruction for buffer in live)])
    return PeakMemory(
        parameter_bytes=sizes["parameter"] + sizes["donated"],
        donated_bytes=sizes["donated"],
        output_bytes=sizes["output"],
        constant_bytes=sizes["constant"],
        temporary_bytes=sizes["temporary"],
        peak_temporary_bytes=peak.num_bytes if peak else None,
        peak_instruction=at.name,
        peak_scope=at.scope,
        peak_phase=at.phase,
        rows=_rows(live, makers),
        missing=() if peak else ("the order of allocations, and with it the peak by scope",),
    )


def _describe(module: HloModule, instructions: list[str]) -> list[OpInfo]:
    """Where instructions come from in the user's program, as the tables of device time say it."""
    nothing = EventMetadata(name="", display_name="", stats={})
    keys = [OpKey(program=0, name=name, framework_name="", metadata=nothing, host=0) for name in instructions]
    return describe_ops(keys, [Program(host=0, program_id=0, name=module.name)], [{0: module}])


class _Buffer(NamedTuple):
    """A value that needs memory."""

    num_bytes: int
    instruction: str
    """The instruction that makes it."""


class _Peak(NamedTuple):
    """The moment at which most memory is in use."""

    num_bytes: int
    instruction: str
    live: tuple[int, ...]


def _allocation_sizes(proto: bytes, allocations: list[Span]) -> Counter[str]:
    """Bytes by what they are for."""
    sizes: Counter[str] = Counter()
    for span in allocations:
        told = _numbers(proto, span)
        is_parameter, is_output = told.get(5, 0), told.get(7, 0)
        if told.get(3, 0):
            continue  # thread-local: on the stack of whoever runs it
        if is_parameter:
            kind = "donated" if is_output else "parameter"
        elif told.get(12, 0):
            kind = "constant"
        else:
            kind = "output" if is_output else "temporary"
        sizes[kind] += told.get(2, 0)
    return sizes


def _read_buffer(module: HloModule, span: Span) -> tuple[int, _Buffer]:
    """A logical buffer by its id: its size and the instruction that defines it."""
    told = _numbers(module.proto, span)
    defined_at = next((value for number, value in wire.spans(module.proto, span) if number == 3), (0, 0))
    instruction = module.by_id.get(_numbers(module.proto, defined_at).get(4, -1))
    return told.get(1, 0), _Buffer(told.get(2, 0), instruction.name if instruction else "")


def _play(proto: bytes, trace: Span, buffers: dict[int, _Buffer]) -> _Peak:
    """Allocate and free as the compiler did, and keep the fullest moment."""
    owner: dict[int, int] = {}  # a buffer that shares another's memory, by id
    num_users: Counter[int] = Counter()
    in_use = most = 0
    moment, live = "", ()
    for kind, buffer, shared, instruction in _events(proto, trace):
        if kind == _FREE:
            holder = owner.get(buffer, buffer)
            num_users[holder] -= 1
            if num_users[holder] == 0:
                del num_users[holder]
                in_use -= buffers[holder].num_bytes
            continue
        holder = owner[buffer] = owner.get(shared, shared) if kind == _SHARE else buffer
        num_users[holder] += 1
        if num_users[holder] == 1:
            in_use += buffers[holder].num_bytes
        if in_use > most:
            most, moment, live = in_use, instruction, tuple(num_users)
    return _Peak(most, moment, live)


def _events(proto: bytes, trace: Span) -> Iterator[tuple[int, int, int, str]]:
    """Kind, buffer, the buffer whose memory it shares, and the instruction of each step of a heap trace."""
    for number, span in wire.spans(proto, trace):
        if number != 1:
            continue
        told, instruction = {}, ""
        for field, value in wire.fields(proto, span):
            if isinstance(value, int):
                told[field] = value
            elif field == 4:
                instruction = wire.text(proto, value)
        yield told.get(1, _ALLOCATE), told.get(2, 0), told.get(5, 0), instruction


def _rows(live: list[_Buffer], makers: list[OpInfo]) -> tuple[LiveRow, ...]:
    num_bytes: Counter[tuple[tuple[str, ...], str]] = Counter()
    num_buffers: Counter[tuple[tuple[str, ...], str]] = Counter()
    for buffer, maker in zip(live, makers, strict=True):
        num_bytes[maker.scope, maker.phase] += buffer.num_bytes
        num_buffers[maker.scope, maker.phase] += 1
    return tuple(LiveRow(*key, size, num_buffers[key]) for key, size in num_bytes.most_common())


def _numbers(proto: bytes, span: Span) -> dict[int, int]:
    return {number: value for number, value in wire.fields(proto, span) if isinstance(value, int)}
