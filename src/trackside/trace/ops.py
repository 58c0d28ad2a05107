"""From an operation's name in a trace to what it is: kind, scope, phase and source line.

Its own metadata comes first. A fusion's can be missing or less telling than that of what it fuses. What the compiler
made itself (copies, mostly) has none: it belongs to the operation whose result it moves, else to the one that it feeds,
else to the loop that holds it; that is inferred, and counted as such.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.trace.categories import CONTROL_FLOW, categorise, categorise_by_name, is_collective, plain_opcode
from trackside.trace.device_events import OpKey, Program
from trackside.trace.hlo import Frame, HloModule, Instruction
from trackside.trace.scopes import OpName
from trackside.trace.scopes import parse_op_name as parse_single_name

_MAX_NEIGHBOURS = 32
_HEAVY = ("dot", "convolution")
_REDUCING = ("all-reduce", "reduce-scatter")
_PACKING = ("get-tuple-element", "tuple")
GRADIENT_SYNC = "gradient_sync"
"""The scope of reductions of gradients over devices, which the compiler makes and names after what they follow."""


@dataclass(frozen=True)
class OpInfo:
    """What is known about an operation."""

    program: str
    """The program's name; empty where the trace does not tell."""
    name: str
    opcode: str
    """The HLO opcode; empty where the trace does not hold the program."""
    category: str
    op_name: str
    """The metadata that it was resolved to; empty if to none."""
    is_inferred: bool
    """Whether that metadata is another operation's."""
    scope: tuple[str, ...]
    phase: str
    source: Frame | None
    """The user's source line."""
    is_control_flow: bool
    collective: str
    """The collective's opcode; empty for all other operations."""
    num_bytes: int | None
    """For a collective, the bytes that one device puts in; None where they are not known."""


def describe_ops(
    keys: Sequence[OpKey], programs: Sequence[Program], modules: Sequence[Mapping[int, HloModule]]
) -> list[OpInfo]:
    """What is known about each operation.

    Args:
        keys: The operations, as the events name them.
        programs: The programs that the keys refer to.
        modules: For each host, its programs' HLO by program id.
    """
    resolvers: dict[int, _Resolver] = {}
    described = []
    for key in keys:
        program = programs[key.program] if key.program >= 0 else None
        module = find_module(program, modules[key.host]) if program else None
        instruction = module.instructions.get(key.name) if module else None
        if program is None or module is None or instruction is None:
            described.append(_describe_by_event(key, program.name if program else ""))
            continue
        if id(module) not in resolvers:
            resolvers[id(module)] = _Resolver(module)
        described.append(resolvers[id(module)].describe(instruction, program.name))
    return described


def parse_op_name(op_name: str) -> OpName:
    """Take an operation's name apart; of those that the compiler merged into `jit(f)/(first:second)`, the first."""
    outer, is_merged, names = op_name.partition("/(")
    if not is_merged or not names.endswith(")"):
        return parse_single_name(op_name)
    depth = 0
    for index, character in enumerate(names[:-1]):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == ":" and depth == 0:
            return parse_single_name(f"{outer}/{names[:index]}")
    return parse_single_name(op_name)


def find_module(program: Program, modules: Mapping[int, HloModule]) -> HloModule | None:
    """A program's HLO: by its id, else by its name where all that have it are alike.

    What JAX loads from its persistent cache bears the id that it was first compiled under, in another process: it may
    be unknown here, or that of another program.
    """
    named = [module for module in modules.values() if module.name == program.name]
    by_id = modules.get(program.program_id) if program.program_id is not None else None
    if by_id is not None and (by_id in named or not named):
        return by_id
    are_alike = all(module.instructions.keys() == named[0].instructions.keys() for module in named)
    return named[0] if named and are_alike else None


def _describe_by_event(key: OpKey, program: str) -> OpInfo:
    """What the event itself tells, for traces without HLO."""
    stats = key.metadata.stats
    told = str(stats.get("hlo_category", ""))
    parsed = parse_op_name(key.framework_name) if key.framework_name else OpName((), "other", "")
    category = categorise_by_name(key.name, told)
    opcode = key.name.partition(".")[0]
    return OpInfo(
        program=program,
        name=key.name,
        opcode="",
        category=category,
        op_name=key.framework_name,
        is_inferred=False,
        scope=parsed.scope,
        phase=parsed.phase,
        source=_parse_source(str(stats.get("source", ""))),
        is_control_flow=told in CONTROL_FLOW or opcode in CONTROL_FLOW,
        collective=plain_opcode(opcode) if category == "collective" else "",
        num_bytes=None,
    )


def _parse_source(text: str) -> Frame | None:
    file, _, line = text.rpartition(":")
    return Frame(file, int(line), "") if file and line.isdecimal() else None


class _Resolver:
    """Describes the instructions of one program."""

    def __init__(self, module: HloModule):
        self._module = module

    def describe(self, instruction: Instruction, program: str) -> OpInfo:
        fused = self._fused(instruction)
        origin, is_inferred = self._origin(instruction, fused)
        parsed = parse_op_name(origin.op_name) if origin else OpName((), "other", "")
        collective = plain_opcode(instruction.opcode) if is_collective(instruction.opcode) else ""
        if collective in _REDUCING and parsed.phase == "backward" and self._ends_backward(instruction):
            parsed = parsed._replace(scope=(GRADIENT_SYNC,), phase="other")
        return OpInfo(
            program=program,
            name=instruction.name,
            opcode=instruction.opcode,
            category=categorise(instruction.opcode, {inner.opcode for inner in fused}, instruction.target),
            op_name=origin.op_name if origin else "",
            is_inferred=is_inferred,
            scope=parsed.scope,
            phase=parsed.phase,
            source=self._source(origin),
            is_control_flow=instruction.opcode in CONTROL_FLOW,
            collective=collective,
            num_bytes=self._operand_bytes(instruction) if collective else None,
        )

    def _ends_backward(self, instruction: Instruction) -> bool:
        """Whether nothing of the backward pass computes with the result: a gradient, on its way to the optimizer."""
        seen, frontier, is_used = {instruction.instruction_id}, [instruction], False
        while frontier:
            for user in self._users(frontier.pop()):
                if user.instruction_id in seen:
                    continue
                seen.add(user.instruction_id)
                fused = self._fused(user)
                kind = categorise(user.opcode, {inner.opcode for inner in fused})
                # What only moves it; a loop over layers puts each one's gradient into its place, and is done with it.
                if user.opcode in _PACKING or kind in ("copy", "gather/scatter"):
                    frontier.append(user)
                    is_used = is_used or kind == "gather/scatter"
                    continue
                is_used = True
                origin, _ = self._origin(user, fused)
                if origin is not None and parse_op_name(origin.op_name).phase == "backward":
                    return False
        return is_used

    def _fused(self, instruction: Instruction) -> list[Instruction]:
        """What a fusion fuses, fusions within it included."""
        if instruction.opcode != "fusion":
            return []
        inner = [
            fused
            for computation_id in instruction.called_ids
            if computation_id in self._module.computations
            for fused in self._module.computations[computation_id].instructions
        ]
        return inner + [nested for fused in inner for nested in self._fused(fused)]

    def _origin(self, instruction: Instruction, fused: list[Instruction]) -> tuple[Instruction | None, bool]:
        """The instruction whose metadata counts, and whether it is a guess."""
        own = [instruction, *self._telling(fused)]
        for candidate in own:
            if _has_scope(candidate):
                return candidate, False
        named = next((candidate for candidate in own if _is_path(candidate)), None)
        if named is not None:
            return named, False
        near = next((candidate for candidate in self._near(instruction) if _has_scope(candidate)), None)
        return near, near is not None

    def _telling(self, fused: list[Instruction]) -> list[Instruction]:
        """What a fusion fuses, the most telling first: its heavy parts, then what most of it comes from."""
        named = [inner for inner in fused if _is_path(inner)]
        counts = Counter(parse_op_name(inner.op_name)[:2] for inner in named)
        return sorted(named, key=lambda inner: (inner.opcode not in _HEAVY, -counts[parse_op_name(inner.op_name)[:2]]))

    def _near(self, instruction: Instruction) -> Iterator[Instruction]:
        """What an instruction gets its operands from, what uses it, and what calls the computation that holds it."""
        for neighbours in (self._operands, self._users):
            yield from self._reach(instruction, neighbours)
        caller = self._module.callers.get(instruction.computation_id)
        for _ in range(len(self._module.callers)):  # a damaged program may call itself
            if caller is None:
                return
            yield caller
            caller = self._module.callers.get(caller.computation_id)

    def _reach(self, instruction: Instruction, neighbours) -> Iterator[Instruction]:
        """The nearest instructions with metadata of their own, looking through those without."""
        seen, frontier = {instruction.instruction_id}, [instruction]
        while frontier and len(seen) < _MAX_NEIGHBOURS:
            for neighbour in neighbours(frontier.pop(0)):
                if neighbour.instruction_id in seen:
                    continue
                seen.add(neighbour.instruction_id)
                yield neighbour
                if not _is_path(neighbour):
                    frontier.append(neighbour)

    def _operands(self, instruction: Instruction) -> list[Instruction]:
        by_id = self._module.by_id
        return [by_id[operand] for operand in instruction.operand_ids if operand in by_id]

    def _users(self, instruction: Instruction) -> list[Instruction]:
        return self._users_by_id.get(instruction.instruction_id, [])

    @cached_property
    def _users_by_id(self) -> dict[int, list[Instruction]]:
        users: dict[int, list[Instruction]] = {}
        for instruction in self._module.by_id.values():
            for operand in instruction.operand_ids:
                users.setdefault(operand, []).append(instruction)
        return users

    def _source(self, origin: Instruction | None) -> Frame | None:
        frames = self._module.frames(origin) if origin else []
        return next((frame for frame in frames if frame.is_users), None)

    def _operand_bytes(self, instruction: Instruction) -> int | None:
        sizes = [self._module.num_bytes(operand) for operand in self._operands(instruction)]
        return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def _is_path(instruction: Instruction) -> bool:
    """Whether the metadata names an operation; a parameter's is its path in the arguments."""
    return bool(instruction.op_name) and instruction.opcode != "parameter"


def _has_scope(instruction: Instruction) -> bool:
    return _is_path(instruction) and bool(parse_op_name(instruction.op_name).scope)
