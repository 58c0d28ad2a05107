"""A compiled program in outline, by scope: what it computes, in how many kernels, in which types."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache

from trackside.trace import wire
from trackside.trace.categories import CONTROL_FLOW
from trackside.trace.hlo import HloModule, Instruction
from trackside.trace.ops import parse_op_name
from trackside.trace.tables import NO_SCOPE

# XLA's numbers of floating-point and complex types.
_TYPE_NAMES = {
    10: "f16",
    11: "f32",
    12: "f64",
    15: "c64",
    16: "bf16",
    18: "c128",
    19: "f8e5m2",
    20: "f8e4m3fn",
    23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz",
    25: "f8e4m3fnuz",
    28: "f8e4m3",
    29: "f8e3m4",
}
# What moves or names values, and computes nothing.
_NO_WORK = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "copy-start", "copy-done"),
        *("broadcast", "reshape", "transpose", "iota", "fusion", "call", "convert", "opt-barrier", "slice"),
        *CONTROL_FLOW,
    }
)

Key = tuple[str, str]


@dataclass(frozen=True)
class Operation:
    """What one primitive became in a scope."""

    num_traced: int
    """From how many places in the source it was traced."""
    num_instructions: int
    """How many instructions compute it; more where fusions repeat it."""
    kernels: frozenset[int]
    """The kernels that compute it: fusions, and what runs on its own."""


@dataclass(frozen=True)
class Outline:
    """A program by scope path and phase."""

    scopes: frozenset[str]
    """All scope paths that an instruction comes from."""
    operations: dict[Key, dict[tuple[str, str], Operation]]
    """What computes something, by opcode and primitive, inside of fusions and outside."""
    types: dict[Key, Counter[str]]
    """The floating-point types of the values in it."""


@lru_cache(maxsize=8)
def outline_of(module: HloModule) -> Outline:
    """Sum up a program."""
    scopes: set[str] = set()
    types: dict[Key, Counter[str]] = defaultdict(Counter)
    found: dict[Key, dict[tuple[str, str], list[Instruction]]] = defaultdict(lambda: defaultdict(list))
    for instruction in module.by_id.values():
        if "/" not in instruction.op_name:  # made by the compiler, or an argument
            continue
        parsed = parse_op_name(instruction.op_name)
        key = "/".join(parsed.scope) or NO_SCOPE, parsed.phase
        scopes.add(key[0])
        name = _element_type(module, instruction)
        if name and instruction.opcode not in ("parameter", "constant"):
            types[key][name] += 1
        if instruction.opcode not in _NO_WORK:
            found[key][instruction.opcode, parsed.primitive].append(instruction)
    operations = {
        key: {name: _describe(module, members) for name, members in by_name.items()} for key, by_name in found.items()
    }
    return Outline(frozenset(scopes), operations, dict(types))


def _describe(module: HloModule, instructions: list[Instruction]) -> Operation:
    origins = {(one.op_name, one.frame_id, one.source_line) for one in instructions}
    kernels = frozenset(_kernel_of(module, one).instruction_id for one in instructions)
    return Operation(len(origins), len(instructions), kernels)


def _kernel_of(module: HloModule, instruction: Instruction) -> Instruction:
    """The outermost fusion that holds an instruction, or what else runs it as one; itself if nothing does."""
    caller = module.callers.get(instruction.computation_id)
    # Loops and calls hold kernels, fusions and reductions are one. A damaged program may call itself.
    for _ in range(len(module.callers)):
        if caller is None or caller.opcode in CONTROL_FLOW:
            break
        instruction, caller = caller, module.callers.get(caller.computation_id)
    return instruction


def _element_type(module: HloModule, instruction: Instruction) -> str:
    for number, value in wire.fields(module.proto, instruction.shape):
        if number == 2 and isinstance(value, int):
            return _TYPE_NAMES.get(value, "")
    return ""
