"""From an operation's name in a trace to what it is: kind, scope, phase and source line.

Its own metadata comes first. A fusion's can be missing or less telling than that of what it fuses. What the compiler
made itself (copies, mostly) has none: it belongs to the operation whose result it moves, else to the one that it feeds,
else to the loop that holds it; that is inferred, and counted as such. A matrix product that the compiler wrote in
another way has lost its name, too: it belongs to the neighbor deepest in the model, not to what reads its batch.

A kernel that holds operations of several places in the user's code bears the name of one of them. Its time is split
among them by what each costs (`kernel_costs`); that is estimated, and counted as such. Where there is no estimate, the
kernel is said to be one over several scopes.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.trace.categories import CONTROL_FLOW, categorise, categorise_by_name, is_collective, plain_opcode
from trackside.trace.device_events import OpKey, Program
from trackside.trace.hlo import Frame, HloModule, Instruction
from trackside.trace.kernel_costs import instructions_inside, kernel_costs
from trackside.trace.op_costs import ACCELERATOR, CPU, FREE, CostModel, UnknownCostError
from trackside.trace.op_parts import OpPart, Place, merge_places, split_by_cost
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
    parts: tuple[OpPart, ...]
    """Where its time belongs. `scope`, `phase` and `source` are those of the part that it is named after."""
    is_unsplit: bool = False
    """Whether it may hold several places' operations, of which the trace does not say what each costs."""

    @property
    def places(self) -> frozenset[Place]:
        """The different scopes and phases of its parts."""
        return frozenset(part.place for part in self.parts)


def describe_ops(
    keys: Sequence[OpKey], programs: Sequence[Program], modules: Sequence[Mapping[int, HloModule]]
) -> list[OpInfo]:
    """What is known about each operation.

    Args:
        keys: The operations, as the events name them.
        programs: The programs that the keys refer to.
        modules: For each host, its programs' HLO by program id.
    """
    found = [_find_instruction(key, programs, modules) for key in keys]
    executed: dict[int, set[str]] = {}
    for module, instruction in (each for each in found if each is not None):
        executed.setdefault(id(module), set()).add(instruction.name)
    resolvers: dict[int, _Resolver] = {}
    described = []
    for key, known in zip(keys, found, strict=True):
        program = programs[key.program].name if key.program >= 0 else ""
        if known is None:
            described.append(_describe_by_event(key, program))
            continue
        module, instruction = known
        if id(module) not in resolvers:
            resolvers[id(module)] = _Resolver(module, executed[id(module)])
        described.append(
            resolvers[id(module)].describe(instruction, program, ACCELERATOR if key.is_accelerator else CPU)
        )
    return described


def _find_instruction(
    key: OpKey, programs: Sequence[Program], modules: Sequence[Mapping[int, HloModule]]
) -> tuple[HloModule, Instruction] | None:
    module = find_module(programs[key.program], modules[key.host]) if key.program >= 0 else None
    instruction = module.instructions.get(key.name) if module else None
    return (module, instruction) if module and instruction else None


def parse_op_name(op_name: str) -> OpName:
    """Take an operation's name apart; of those that the compiler merged into `jit(f)/(first:second)`, the first."""
    return parse_single_name(_merged_names(op_name)[0])


def _merged_names(op_name: str) -> list[str]:
    """The names that the compiler merged into `jit(f)/(first:second)`; any other name alone."""
    outer, is_merged, names = op_name.partition("/(")
    if not is_merged or not names.endswith(")"):
        return [op_name]
    found, depth, start = [], 0, 0
    for index, character in enumerate(names):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if (character == ":" and depth == 0) or index == len(names) - 1:
            found.append(f"{outer}/{names[start:index]}")
            start = index + 1
    return found if len(found) > 1 else [op_name]


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
    places = _joined_places(key.framework_name)
    category = categorise_by_name(key.name, told)
    opcode = key.name.partition(".")[0]
    scope, phase = merge_places(places)
    source = _parse_source(str(stats.get("source", "")))
    return OpInfo(
        program=program,
        name=key.name,
        opcode="",
        category=category,
        op_name=key.framework_name,
        is_inferred=False,
        scope=scope,
        phase=phase,
        source=source,
        is_control_flow=told in CONTROL_FLOW or opcode in CONTROL_FLOW,
        collective=plain_opcode(opcode) if category == "collective" else "",
        num_bytes=None,
        parts=(OpPart(scope, phase, source),),
        # A fused kernel bears one operation's name, or several; what each costs is in the HLO only.
        is_unsplit=len(places) > 1 or "fusion" in f"{told} {key.name}".lower(),
    )


def _joined_places(op_name: str) -> list[Place]:
    """The scopes and phases of names joined by `;`. Later ones may have lost their beginning."""
    places: list[Place] = []
    for name in filter(None, op_name.split(";")):
        scope, phase, *_ = parse_op_name(name)
        is_end_of_known = any(known[len(known) - len(scope) :] == scope for known, _ in places)
        if not is_end_of_known:
            places.append((scope, phase))
    return places or [((), "other")]


def _parse_source(text: str) -> Frame | None:
    file, _, line = text.rpartition(":")
    return Frame(file, int(line), "") if file and line.isdecimal() else None


class _Resolver:
    """Describes the instructions of one program."""

    def __init__(self, module: HloModule, executed: Collection[str]):
        self._module = module
        self._executed = executed

    def describe(self, instruction: Instruction, program: str, model: CostModel) -> OpInfo:
        inside = self._inside(instruction)
        origin, is_inferred = self._origin(instruction, inside)
        collective = plain_opcode(instruction.opcode) if is_collective(instruction.opcode) else ""
        places = self._collective_places(instruction, origin) if collective else _places_of(origin)
        own = OpPart(*merge_places(places), self._source(origin))
        parts = self._parts(instruction, inside, own, model)
        is_unsplit = parts is None or len(places) > 1
        if parts is None:
            own, *_ = parts = self._merge(inside, own)
        return OpInfo(
            program=program,
            name=instruction.name,
            opcode=instruction.opcode,
            category=_category(instruction, inside),
            op_name=origin.op_name if origin else "",
            is_inferred=is_inferred,
            scope=own.scope,
            phase=own.phase,
            source=own.source,
            is_control_flow=instruction.opcode in CONTROL_FLOW and not inside,
            collective=collective,
            num_bytes=self._operand_bytes(instruction) if collective else None,
            parts=parts,
            is_unsplit=is_unsplit,
        )

    def _collective_places(self, instruction: Instruction, origin: Instruction | None) -> list[Place]:
        """Those of all collectives that the compiler merged into one."""
        places = _places_of(origin)
        is_gradient = plain_opcode(instruction.opcode) in _REDUCING and places[0][1] == "backward"
        return [((GRADIENT_SYNC,), "other")] if is_gradient and self._ends_backward(instruction) else places

    def _inside(self, instruction: Instruction) -> list[Instruction]:
        """What one kernel computes: what a fusion fuses, or a call that has an event while nothing in it has one.

        On a CPU, a small loop is such a call: one kernel.
        """
        if instruction.opcode not in ("fusion", "call"):
            return []
        inside = instructions_inside(self._module, instruction)
        is_one = instruction.opcode == "fusion" or not any(inner.name in self._executed for inner in inside)
        return inside if is_one else []

    def _parts(
        self, kernel: Instruction, inside: list[Instruction], own: OpPart, model: CostModel
    ) -> tuple[OpPart, ...] | None:
        """Where a kernel's time belongs; None if it holds several places' operations of unknown cost."""
        if not any(_is_traced(inner) for inner in inside):
            is_hidden = kernel.opcode == "fusion" and not inside
            return None if is_hidden else (own,)
        try:
            costs = kernel_costs(self._module, kernel, model)
        except UnknownCostError:
            return None if len(self._places(inside, own)) > 1 else (own,)
        sums: dict[OpPart, float] = {}
        for inner, cost in costs:
            part = self._part(inner, own)
            sums[part] = sums.get(part, 0.0) + cost
        return split_by_cost(sums) or (own,)

    def _merge(self, inside: list[Instruction], own: OpPart) -> tuple[OpPart, ...]:
        """One part for a kernel over several places."""
        places = self._places(inside, own)
        return (OpPart(*merge_places(places), None),) if len(places) > 1 else (own,)

    def _places(self, inside: list[Instruction], own: OpPart) -> set[Place]:
        """What a kernel's operations come from, without what costs nothing."""
        working = (inner for inner in inside if _is_traced(inner) and inner.opcode not in FREE)
        return {self._part(inner, own).place for inner in working}

    def _part(self, inner: Instruction, own: OpPart) -> OpPart:
        """Where an instruction inside of a kernel comes from; the compiler's own, from what is next to it."""
        near = [inner] if _is_traced(inner) else self._near(inner)
        origin = next((candidate for candidate in near if _is_traced(candidate)), None)
        return OpPart(*_places_of(origin)[0], self._source(origin)) if origin else own

    def _ends_backward(self, instruction: Instruction) -> bool:
        """Whether nothing of the backward pass computes with the result: a gradient, on its way to the optimizer."""
        seen, frontier, is_used = {instruction.instruction_id}, [instruction], False
        while frontier:
            for user in self._users(frontier.pop()):
                if user.instruction_id in seen:
                    continue
                seen.add(user.instruction_id)
                fused = self._inside(user)
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

    def _origin(self, instruction: Instruction, fused: list[Instruction]) -> tuple[Instruction | None, bool]:
        """The instruction whose metadata counts, and whether it is a guess."""
        own = [instruction, *self._telling(fused)]
        for candidate in own:
            if _has_scope(candidate):
                return candidate, False
        named = next((candidate for candidate in own if _is_path(candidate)), None)
        if named is not None:
            return named, False
        near = (candidate for candidate in self._near(instruction) if _has_scope(candidate))
        origin = max(near, key=_tells_of_model, default=None) if instruction.opcode in _HEAVY else next(near, None)
        return origin, origin is not None

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


def _category(instruction: Instruction, inside: list[Instruction]) -> str:
    """The kind of a kernel is that of the heaviest that it computes, also where it is a call."""
    opcode = "fusion" if inside else instruction.opcode
    return categorise(opcode, {inner.opcode for inner in inside}, instruction.target)


def _places_of(origin: Instruction | None) -> list[Place]:
    """Scope and phase of an instruction; of one that the compiler merged from several, those of each."""
    names = [parse_single_name(name) for name in _merged_names(origin.op_name)] if origin else []
    return list(dict.fromkeys((name.scope, name.phase) for name in names)) or [((), "other")]


def _is_path(instruction: Instruction) -> bool:
    """Whether the metadata names an operation; a parameter's is its path in the arguments."""
    return bool(instruction.op_name) and instruction.opcode != "parameter"


def _is_traced(instruction: Instruction) -> bool:
    """Whether the metadata is a path: what the compiler made up has none, or a single name."""
    return _is_path(instruction) and "/" in instruction.op_name


def _tells_of_model(instruction: Instruction) -> tuple[bool, int]:
    """How much a neighbor says of the layer that a matrix product belongs to; the first of equal ones counts."""
    name = parse_op_name(instruction.op_name)
    return name.phase not in ("optimizer", "other"), len(name.scope)


def _has_scope(instruction: Instruction) -> bool:
    return _is_path(instruction) and bool(parse_op_name(instruction.op_name).scope)
