"""What an operation of a compiled program costs, by estimate.

The unit is one addition in a vectorized loop. Only ratios matter: they split the time of a kernel that holds several
operations. On a CPU the weights are measured (`python -m benchmarks.op_weights`); for accelerators they follow from
the ratios of published peaks: vector arithmetic, matrix units, memory.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trackside.trace.hlo import HloModule, Instruction, Shape

_MAX_ELEMENTS = 2**60


class CostModel(NamedTuple):
    """How the parts of a kernel compare on one kind of device."""

    matrix_op: float
    """A multiplication or an addition of a matrix product or convolution."""
    num_byte: float
    """A byte that a kernel reads from or writes to memory."""
    function: float
    """By how much the weights of functions such as `exp` are multiplied."""


CPU = CostModel(matrix_op=1.0, num_byte=4.0, function=1.0)
ACCELERATOR = CostModel(matrix_op=0.125, num_byte=13.0, function=0.5)


class UnknownCostError(Exception):
    """An operation of which nobody can say what it costs: a custom call, a library's routine."""


_FUNCTIONS = {
    "sqrt": 4.0,
    "rsqrt": 23.0,
    "exponential": 40.0,
    "exponential-minus-one": 70.0,
    "log": 50.0,
    "log-plus-one": 70.0,
    "tanh": 40.0,
    "logistic": 45.0,
    "erf": 38.0,
    "sine": 105.0,
    "cosine": 105.0,
    "tan": 240.0,
    "power": 195.0,
    "remainder": 130.0,
    "atan2": 220.0,
    "cbrt": 975.0,
    **dict.fromkeys(("acosh", "asinh", "atanh", "cosh", "sinh"), 110.0),
    **dict.fromkeys(("acos", "asin"), 310.0),
}
_ARITHMETIC = {
    **dict.fromkeys(
        (
            *("abs", "add", "and", "complex", "imag", "is-finite", "multiply", "negate", "not", "or", "real"),
            *("subtract", "xor", "shift-left", "shift-right-arithmetic", "shift-right-logical"),
        ),
        1.0,
    ),
    **dict.fromkeys(
        (
            *("clamp", "compare", "convert", "maximum", "minimum", "reduce-precision", "select", "stochastic-convert"),
            *("ceil", "floor", "round-nearest-afz", "round-nearest-even", "popcnt", "count-leading-zeros"),
        ),
        2.0,
    ),
    "divide": 3.0,
    "sign": 7.0,
    # What moves values inside of a kernel costs the computation of where they are.
    **dict.fromkeys(("concatenate", "copy", "dynamic-update-slice", "pad", "reverse", "transpose"), 1.0),
    "gather": 4.0,
}
FREE = frozenset(
    {
        *("add-dependency", "after-all", "bitcast", "bitcast-convert", "broadcast", "constant", "domain"),
        *("dynamic-slice", "get-tuple-element", "iota", "opt-barrier", "parameter", "partition-id", "replica-id"),
        *("reshape", "slice", "tuple"),
    }
)
"""What no time is spent on inside of a kernel."""
_DOT_NUMBERS, _LHS_CONTRACTED = 30, 1
_CONVOLUTION_NUMBERS, _KERNEL_OUTPUT_FEATURES = 16, 4
_WINDOW, _WINDOW_DIMENSIONS, _WINDOW_SIZE = 15, 1, 1
_NARROW_BYTES = 4


def extent(shape: Shape) -> int:
    """The elements of an array, or of the largest of a tuple."""
    parts = [extent(part) for part in shape.parts]
    return min(max(parts, default=0) if parts else shape.num_elements, _MAX_ELEMENTS)


def cost_of(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    """What it costs to compute some elements of an instruction's result, with operands at hand.

    Args:
        module: The program.
        instruction: One of its instructions, but for those that only call others: a fusion, a loop.
        num_elements: How many elements are computed.
        model: How operations compare.

    Raises:
        UnknownCostError: There is no estimate for it.
    """
    if instruction.opcode in FREE:
        return 0.0
    plain = _weight(instruction.opcode, model)
    if plain is not None:
        return plain * num_elements * _width(module.shape_of(instruction))
    count = _SPECIAL.get(instruction.opcode)
    if count is None:
        raise UnknownCostError(instruction.opcode)
    return count(module, instruction, num_elements, model) * _width(module.shape_of(instruction))


def elements_needed(
    module: HloModule, instruction: Instruction, num_elements: float, operands: Sequence[Instruction], *, in_place: bool
) -> list[float]:
    """How many elements of each operand it takes to compute some elements of a result.

    Args:
        module: The program.
        instruction: One of its instructions.
        num_elements: How many elements of its result are computed.
        operands: The instructions whose results it takes.
        in_place: Whether it writes into the memory of its first operand: that is then not read.
    """
    sizes = [float(extent(module.shape_of(operand))) for operand in operands]
    share = num_elements / max(extent(module.shape_of(instruction)), 1)
    match instruction.opcode:
        case "reduce" | "dot" | "convolution" | "concatenate":
            return [size * share for size in sizes]
        case "reduce-window":
            return [min(size, num_elements * _window_size(module, instruction)) for size in sizes]
        case "dynamic-update-slice":
            return [0.0 if in_place else num_elements, *sizes[1:]]
        case "scatter":
            # The arrays that are written into come first, then the indices, then as many updates.
            num_written = len(sizes) // 2
            return [0.0 if in_place else size for size in sizes[:num_written]] + sizes[num_written:]
        case "gather":
            return [min(size, num_elements) for size in sizes[:1]] + [size * share for size in sizes[1:]]
        case "sort" | "select-and-scatter":
            return sizes
    return [min(size, num_elements) for size in sizes]


def _weight(opcode: str, model: CostModel) -> float | None:
    if opcode in _FUNCTIONS:
        return _FUNCTIONS[opcode] * model.function
    return _ARITHMETIC.get(opcode)


def _width(shape: Shape) -> float:
    """How much longer an operation takes on wide numbers: half of them fit into a register."""
    while shape.parts:
        shape = shape.parts[0]
    num_bytes, num_elements = shape.num_bytes, shape.num_elements
    return max(num_bytes / num_elements / _NARROW_BYTES, 1.0) if num_bytes and num_elements else 1.0


def _operands(module: HloModule, instruction: Instruction) -> list[Instruction]:
    return [module.by_id[operand] for operand in instruction.operand_ids if operand in module.by_id]


def _operand_extent(module: HloModule, instruction: Instruction, index: int = 0) -> int:
    operands = _operands(module, instruction)
    return extent(module.shape_of(operands[index])) if index < len(operands) else 0


def _applied(module: HloModule, instruction: Instruction, model: CostModel) -> float:
    """What the function costs that a reduction or a sort applies to single elements."""
    computations = [module.computations[each] for each in instruction.called_ids if each in module.computations]
    inner = [each for computation in computations for each in computation.instructions if each.opcode not in FREE]
    weights = [_weight(each.opcode, model) for each in inner]
    if None in weights:
        raise UnknownCostError(instruction.opcode)
    return sum(weight for weight in weights if weight is not None) or 1.0


def _dot(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    contracted = module.numbers_in(instruction, _DOT_NUMBERS, _LHS_CONTRACTED)
    operands = _operands(module, instruction)
    lhs = module.shape_of(operands[0]).dimensions if operands else ()
    num_products = math.prod(lhs[axis] for axis in contracted if axis < len(lhs))
    return 2.0 * num_elements * min(num_products, _MAX_ELEMENTS) * model.matrix_op


def _convolution(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    operands = _operands(module, instruction)
    kernel = module.shape_of(operands[1]).dimensions if len(operands) > 1 else ()
    told = module.numbers_in(instruction, _CONVOLUTION_NUMBERS, _KERNEL_OUTPUT_FEATURES)
    feature_axis = told[0] if told else 0
    num_products = math.prod(size for axis, size in enumerate(kernel) if axis != feature_axis)
    return 2.0 * num_elements * min(num_products, _MAX_ELEMENTS) * model.matrix_op


def _reduce(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    share = num_elements / max(extent(module.shape_of(instruction)), 1)
    return share * _operand_extent(module, instruction) * _applied(module, instruction, model)


def _reduce_window(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    return num_elements * _window_size(module, instruction) * _applied(module, instruction, model)


def _select_and_scatter(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    num_windows = _operand_extent(module, instruction, 1)
    return num_windows * _window_size(module, instruction) * _applied(module, instruction, model)


def _scatter(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    num_updates = _operand_extent(module, instruction, len(instruction.operand_ids) - 1)
    return num_updates * (_ARITHMETIC["gather"] + _applied(module, instruction, model))


def _sort(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    size = _operand_extent(module, instruction)
    return size * math.log2(max(size, 2)) * _applied(module, instruction, model)


def _map(module: HloModule, instruction: Instruction, num_elements: float, model: CostModel) -> float:
    return num_elements * _applied(module, instruction, model)


def _window_size(module: HloModule, instruction: Instruction) -> int:
    sizes = module.numbers_in(instruction, _WINDOW, _WINDOW_DIMENSIONS, _WINDOW_SIZE)
    return min(math.prod(sizes), _MAX_ELEMENTS)


_SPECIAL: dict[str, Callable[[HloModule, Instruction, float, CostModel], float]] = {
    "dot": _dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "scatter": _scatter,
    "sort": _sort,
    "map": _map,
}
