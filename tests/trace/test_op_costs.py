"""What single operations cost."""

import pytest

from tests.trace.synthetic import (
    F32,
    computation,
    dot_fields,
    hlo_proto,
    instruction,
    message,
    parameter,
    shape,
    varint,
)
from trackside.trace.hlo import HloModule
from trackside.trace.op_costs import ACCELERATOR, CPU, UnknownCostError, cost_of, elements_needed

F64 = 12


def module_of(*instructions: bytes) -> HloModule:
    adds = computation(9, instruction(91, "add.91", "add", operands=[]), root=91)
    return HloModule("m", hlo_proto("m", computation(1, *instructions), adds))


def cost(*instructions: bytes, num_elements: float = 1.0, model=CPU) -> float:
    """The cost of the last of some instructions."""
    module = module_of(*instructions)
    return cost_of(module, list(module.by_id.values())[-2], num_elements, model)


def window(*sizes: int) -> list:
    return [(15, message(*((1, message((1, size))) for size in sizes)))]


LHS, RHS = parameter(1, 0, shape(8, 16)), parameter(2, 1, shape(16, 4))
DOT = instruction(3, "dot.3", "dot", operands=[1, 2], result=shape(8, 4), fields=dot_fields(1))


def test_matrix_product_counts_multiplications_and_additions():
    """Each element of a product takes as many multiplications and additions as the contracted dimension has."""
    assert cost(LHS, RHS, DOT, num_elements=8 * 4) == 2 * 8 * 4 * 16 * CPU.matrix_op
    assert cost(LHS, RHS, DOT, num_elements=4, model=ACCELERATOR) == 2 * 4 * 16 * ACCELERATOR.matrix_op


def test_convolution_counts_its_window_and_input_features():
    """Of the kernel, all but the output's features take part in one element; the window's padding counts."""
    numbers = [(16, message((3, 2), (4, 3), (6, varint(0) + varint(1))))]
    image, kernel = parameter(1, 0, shape(2, 8, 8, 5)), parameter(2, 1, shape(3, 3, 5, 7))
    convolution = instruction(3, "c.3", "convolution", operands=[1, 2], result=shape(2, 8, 8, 7), fields=numbers)
    assert cost(image, kernel, convolution, num_elements=10) == 2 * 10 * 3 * 3 * 5


@pytest.mark.parametrize(
    ("opcode", "operand", "result", "fields", "expected"),
    [
        ("reduce", shape(8, 16), shape(8), [], 8 * 16),
        ("reduce-window", shape(16), shape(8), window(3), 8 * 3),
        ("sort", shape(16), shape(16), [], 16 * 4),
    ],
)
def test_function_that_is_applied_to_elements(opcode, operand, result, fields, expected):
    """A reduction and a sort cost what the function costs that they apply, as often as they apply it."""
    applied = instruction(3, "x.3", opcode, operands=[1], called=[9], result=result, fields=fields)
    assert cost(parameter(1, 0, operand), applied, num_elements=8 if opcode != "sort" else 16) == expected


def test_functions_cost_more_than_arithmetic_and_wide_numbers_twice():
    """A function such as tanh is many operations; half as many wide numbers fit into a register."""
    add = cost(instruction(1, "add.1", "add", result=shape(4)), num_elements=4)
    tanh = cost(instruction(1, "tanh.1", "tanh", result=shape(4)), num_elements=4)
    wide = cost(instruction(1, "add.1", "add", result=shape(4, element_type=F64)), num_elements=4)
    assert (add, wide) == (4, 8)
    assert tanh > 10 * add


def test_what_moves_nothing_costs_nothing():
    """A broadcast or a reshape is part of how its user reads."""
    assert cost(instruction(1, "broadcast.1", "broadcast", result=shape(4)), num_elements=4) == 0


@pytest.mark.parametrize("opcode", ["custom-call", "fft", "rng-bit-generator", "what-comes-next"])
def test_no_cost_is_made_up(opcode):
    """Of a library's routine, and of what is not known yet, there is no estimate."""
    with pytest.raises(UnknownCostError):
        cost(instruction(1, "x.1", opcode, result=shape(4)))


def test_a_function_of_unknown_cost_is_not_applied_for_nothing():
    """A reduction whose function is not known has no estimate either."""
    odd = computation(9, instruction(91, "x.91", "custom-call"), root=91)
    reduction = instruction(3, "reduce.3", "reduce", operands=[1], called=[9], result=shape(8))
    module = HloModule("m", hlo_proto("m", computation(1, parameter(1, 0, shape(8, 2)), reduction), odd))
    with pytest.raises(UnknownCostError):
        cost_of(module, module.instructions["reduce.3"], 8, CPU)


@pytest.mark.parametrize(
    ("opcode", "sizes", "in_place", "expected"),
    [
        ("dynamic-slice", [100], False, [8]),
        ("dynamic-update-slice", [8, 2], True, [0, 2]),
        ("dynamic-update-slice", [8, 2], False, [8, 2]),
        ("reduce", [80], False, [80]),
        ("gather", [100, 8], False, [8, 8]),
        ("scatter", [8, 3, 5], True, [0, 3, 5]),
        ("add", [8, 1], False, [8, 1]),
    ],
)
def test_only_what_is_needed_is_read(opcode, sizes, in_place, expected):
    """A slice reads a slice, an update in place nothing of what it updates, a reduction all of its operand."""
    operands = [parameter(10 + at, at, shape(size, element_type=F32)) for at, size in enumerate(sizes)]
    numbers = range(10, 10 + len(sizes))
    module = module_of(*operands, instruction(1, "x.1", opcode, operands=numbers, called=[9], result=shape(8)))
    inputs = [module.by_id[number] for number in numbers]
    assert elements_needed(module, module.by_id[1], 8, inputs, in_place=in_place) == expected
