"""What the instructions inside of one kernel cost, by estimate.

The compiler fuses operations into one kernel, of which a trace has one time. The program says what is inside: each
instruction with its operands, its shape and where it comes from. Walking back from the results shows how many elements
of each value are needed. A slice of a parameter needs a slice only, and an update in place writes only what is new.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from trackside.trace.hlo import Computation, HloModule, Instruction
from trackside.trace.op_costs import FREE, CostModel, UnknownCostError, cost_of, elements_needed, extent

_CALLS = frozenset({"fusion", "call"})
_WRITES = frozenset({"dynamic-update-slice", "scatter"})
_NO_CHANGE = frozenset({"bitcast", "copy", "reshape", "get-tuple-element", "tuple"})
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d{1,12})"')
_BACKEND_CONFIG, _PARAMETER_NUMBER = 43, 9
_MAX_DEPTH = 32
_MAX_BYTES = 1 << 60
_MAX_INSTRUCTIONS = 1 << 18
"""A damaged program may call itself."""

Readers = defaultdict[int, float]
"""How many elements of a value each instruction needs, by the instruction's id."""


def kernel_costs(module: HloModule, kernel: Instruction, model: CostModel) -> list[tuple[Instruction, float]]:
    """Each instruction inside of a kernel with what it costs; those that cost nothing are left out.

    Args:
        module: The program.
        kernel: A fusion, or a call or loop that the compiler made one kernel of.
        model: How operations compare.

    Raises:
        UnknownCostError: There is something in it of which nobody can say what it costs, or how often it runs.
    """
    walk = _Walk(module, model)
    if kernel.opcode == "fusion":
        walk.add_fusion(kernel)
    else:
        walk.add_called(kernel, 1.0, 0)
    # Loads and stores run next to the arithmetic: what they cost hardly shows unless they take about as long.
    shown = min(1.0, sum(walk.traffic.values()) / max(sum(walk.costs.values()), 1.0)) ** 2
    for number, cost in walk.traffic.items():
        walk.costs[number] += cost * shown
    return [(module.by_id[number], cost) for number, cost in walk.costs.items() if cost > 0]


def instructions_inside(module: HloModule, kernel: Instruction) -> list[Instruction]:
    """All that a kernel computes: what it calls, and what that calls, but for the functions that reductions apply."""
    found, frontier, seen = [], [kernel], set()
    while frontier:
        for number in frontier.pop().called_ids:
            if number in seen or number not in module.computations:
                continue
            seen.add(number)
            inner = module.computations[number].instructions
            found += inner
            frontier += (each for each in inner if each.opcode in (*_CALLS, "while", "conditional"))
    return found


class _Walk:
    """Adds up costs by instruction."""

    def __init__(self, module: HloModule, model: CostModel):
        self._module = module
        self._model = model
        self._num_left = _MAX_INSTRUCTIONS
        self.costs: defaultdict[int, float] = defaultdict(float)
        """Of arithmetic, by instruction id."""
        self.traffic: defaultdict[int, float] = defaultdict(float)
        """Of what is read from memory and written to it, by instruction id."""

    def add_fusion(self, fusion: Instruction) -> None:
        """A fusion with its traffic: what reads a parameter and what makes a result pay for the bytes."""
        for computation in self._called(fusion):
            reads = self._walk_back(computation, 1.0, 1.0, 0)
            self._add_reads(computation, reads)
            for root in self._roots(computation):
                written = self._written(root)
                num_bytes = self._num_bytes(written)
                self.traffic[self._writer(root).instruction_id] += num_bytes * self._model.num_byte

    def add_called(self, caller: Instruction, times: float, depth: int) -> None:
        """What a call or loop holds, one instruction after the other. It is one kernel if small: in the cache."""
        if depth > _MAX_DEPTH or caller.opcode == "conditional":
            raise UnknownCostError(caller.opcode)
        if caller.opcode == "while":
            times *= self._trip_count(caller, depth)
        for computation in self._called(caller):
            self._count(computation)
            for inner in computation.instructions:
                if inner.opcode == "fusion":
                    for fused in self._called(inner):
                        self._walk_back(fused, 1.0, times, depth + 1)
                elif inner.opcode in ("call", "while", "conditional"):
                    self.add_called(inner, times, depth + 1)
                else:
                    num_elements = self._num_computed(inner)
                    self.costs[inner.instruction_id] += times * cost_of(self._module, inner, num_elements, self._model)

    def _walk_back(self, computation: Computation, share: float, times: float, depth: int) -> dict[int, Readers]:
        """Add what it costs to compute a share of a computation's results; by parameter, who reads how much of it."""
        if depth > _MAX_DEPTH:
            raise UnknownCostError("fusion")
        self._count(computation)
        module = self._module
        needed: defaultdict[int, float] = defaultdict(float)
        readers: defaultdict[int, Readers] = defaultdict(lambda: defaultdict(float))
        roots = self._roots(computation)
        for root in roots:
            needed[root.instruction_id] += extent(module.shape_of(root)) * share
        written_in_place = {self._written_in_place(root) for root in roots}
        reads: dict[int, Readers] = {}
        for inner in reversed(computation.instructions):  # operands come before those that use them
            num_elements = min(needed[inner.instruction_id], float(extent(module.shape_of(inner))))
            if inner.opcode == "parameter":
                number = next(iter(module.numbers_in(inner, _PARAMETER_NUMBER)), 0)
                reads[number] = readers[inner.instruction_id]
            if not num_elements or inner.opcode == "parameter":
                continue
            operands = self._operands(inner)
            if inner.opcode in _CALLS:
                self._enter(inner, operands, num_elements, times, depth, needed, readers)
                continue
            in_place = inner.instruction_id in written_in_place
            computed = self._num_computed(inner) if in_place else num_elements
            self.costs[inner.instruction_id] += times * cost_of(module, inner, computed, self._model)
            wanted = elements_needed(module, inner, num_elements, operands, in_place=in_place)
            for operand, number in zip(operands, wanted, strict=True):
                needed[operand.instruction_id] += number
                # What only looks at a value in another way does not read it: those do that compute with it.
                through = readers[inner.instruction_id] if inner.opcode in FREE else {}
                _share_out(readers[operand.instruction_id], through or {inner.instruction_id: 1.0}, number)
        return reads

    def _enter(self, call: Instruction, operands, num_elements: float, times: float, depth: int, needed, readers):
        """A fusion inside of a fusion: its parameters are the operands."""
        share = num_elements / max(extent(self._module.shape_of(call)), 1)
        for computation in self._called(call):
            for number, inner_readers in self._walk_back(computation, share, times, depth + 1).items():
                if number < len(operands):
                    total = sum(inner_readers.values())
                    needed[operands[number].instruction_id] += total
                    _share_out(readers[operands[number].instruction_id], inner_readers, total)

    def _add_reads(self, computation: Computation, reads: dict[int, Readers]) -> None:
        parameters = (inner for inner in computation.instructions if inner.opcode == "parameter")
        for parameter in parameters:
            readers = reads.get(next(iter(self._module.numbers_in(parameter, _PARAMETER_NUMBER)), 0), {})
            size, num_bytes = extent(self._module.shape_of(parameter)), self._num_bytes(parameter)
            total = sum(readers.values())
            if not size or not total or not num_bytes:
                continue
            # An element that several read comes from memory once.
            each = num_bytes / size * min(1.0, size / total) * self._model.num_byte
            for reader, number in readers.items():
                self.traffic[reader] += number * each

    def _roots(self, computation: Computation) -> list[Instruction]:
        """What a computation results in; of a tuple, its values."""
        root = self._module.by_id.get(computation.root_id)
        if root is None or root.computation_id != computation.computation_id:
            return []
        return self._operands(root) if root.opcode == "tuple" else [root]

    def _written(self, root: Instruction) -> Instruction:
        """What of a result is new: all of it, or the update of an array that is changed in place."""
        writer = self._module.by_id.get(self._written_in_place(root) or 0)
        operands = self._operands(writer) if writer else []
        if writer is None or len(operands) < 2:
            return root
        return operands[1] if writer.opcode == "dynamic-update-slice" else operands[-1]

    def _writer(self, root: Instruction) -> Instruction:
        """What computes a result that only has another name or form."""
        for _ in range(_MAX_DEPTH):
            operands = self._operands(root)
            if root.opcode not in FREE or len(operands) != 1 or operands[0].opcode in ("parameter", "constant"):
                break
            root = operands[0]
        return root

    def _written_in_place(self, root: Instruction) -> int | None:
        """The update in place that is a result, possibly by another name."""
        for _ in range(_MAX_DEPTH):
            if root.opcode in _WRITES:
                return root.instruction_id
            operands = self._operands(root)
            if root.opcode not in _NO_CHANGE or len(operands) != 1:
                return None
            root = operands[0]
        return None

    def _num_computed(self, instruction: Instruction) -> float:
        """How many elements an instruction computes that runs on its own."""
        operands = self._operands(instruction)
        is_update = instruction.opcode == "dynamic-update-slice" and len(operands) > 1
        return float(extent(self._module.shape_of(operands[1] if is_update else instruction)))

    def _num_bytes(self, instruction: Instruction) -> int:
        """The bytes of a result, 0 where they are not known; a damaged program may claim any number."""
        return min(self._module.num_bytes(instruction) or 0, _MAX_BYTES)

    def _count(self, computation: Computation) -> None:
        self._num_left -= len(computation.instructions)
        if self._num_left < 0:
            raise UnknownCostError("call")

    def _trip_count(self, loop: Instruction, depth: int) -> int:
        """How often a loop runs; any number will do if it is all that a kernel holds."""
        told = _TRIP_COUNT.search(self._module.text_in(loop, _BACKEND_CONFIG))
        if told is not None:
            return int(told[1])
        around = self._module.computations[loop.computation_id].instructions
        if depth > 1 or any(inner is not loop and inner.opcode not in FREE for inner in around):
            raise UnknownCostError(loop.opcode)
        return 1

    def _called(self, caller: Instruction) -> Iterable[Computation]:
        found = [self._module.computations.get(number) for number in caller.called_ids]
        if not found or None in found:
            raise UnknownCostError(caller.opcode)
        return [computation for computation in found if computation is not None]

    def _operands(self, instruction: Instruction) -> list[Instruction]:
        by_id = self._module.by_id
        return [by_id[operand] for operand in instruction.operand_ids if operand in by_id]


def _share_out(readers: Readers, of: Mapping[int, float], num_elements: float) -> None:
    """Add readers of a value in the proportion in which they read something else."""
    total = sum(of.values())
    for reader, number in of.items():
        readers[reader] += num_elements * number / total if total else 0.0
