"""What the instructions inside of a kernel cost, in programs whose costs are known by arithmetic."""

import pytest

from tests.trace.synthetic import computation, dot_fields, fused_chain, hlo_proto, instruction, parameter, shape
from trackside.trace.hlo import HloModule
from trackside.trace.kernel_costs import instructions_inside, kernel_costs
from trackside.trace.op_costs import CPU, UnknownCostError

BYTE = CPU.num_byte


def costs(*computations: bytes, kernel: str = "fusion.1") -> dict[str, float]:
    module = HloModule("m", hlo_proto("m", *computations))
    found = kernel_costs(module, module.instructions[kernel], CPU)
    return {inner.name: pytest.approx(cost) for inner, cost in found}


def fusion(*operands: int, result: bytes = b"", called: int = 2) -> bytes:
    return instruction(1, "fusion.1", "fusion", operands=operands, called=[called], result=result or shape(100))


def entry(kernel: bytes) -> bytes:
    return computation(1, kernel, root=1)


def test_traffic_counts_as_far_as_arithmetic_does_not_hide_it():
    """Of two additions, the first pays for reading, the second for writing; next to heavy functions, hardly."""
    first = instruction(11, "add.11", "add", operands=[10, 10], result=shape(100))
    second = instruction(12, "add.12", "add", operands=[11, 11], result=shape(100))
    found = costs(entry(fusion()), computation(2, parameter(10, 0, shape(100)), first, second, root=12))
    assert found == {"add.11": 100 + 400 * BYTE, "add.12": 100 + 400 * BYTE}
    module = HloModule("m", fused_chain({"a": 50, "b": 50}))
    by_name = {inner.name: cost for inner, cost in kernel_costs(module, module.instructions["fusion.2"], CPU)}
    assert by_name["tanh.101"] == pytest.approx(by_name["tanh.150"], rel=0.01)


def test_a_slice_of_a_parameter_is_read_not_all_of_it():
    """A layer's weights out of those of all layers: one layer's bytes are read, by what computes with them."""
    cut = instruction(11, "slice.11", "dynamic-slice", operands=[10], result=shape(1, 100))
    add = instruction(12, "add.12", "add", operands=[11, 11], result=shape(100))
    found = costs(entry(fusion()), computation(2, parameter(10, 0, shape(50, 100)), cut, add, root=12))
    assert found == {"add.12": 100 + 800 * BYTE}


def test_an_update_in_place_writes_what_is_new():
    """A result that is put into its place of a large array costs its own bytes, also by another name."""
    tanh = instruction(12, "tanh.12", "tanh", operands=[11], result=shape(1, 100))
    put = instruction(13, "put.13", "dynamic-update-slice", operands=[10, 12], result=shape(50, 100))
    renamed = instruction(14, "bitcast.14", "bitcast", operands=[13], result=shape(5000))
    inputs = parameter(10, 0, shape(50, 100)), parameter(11, 1, shape(1, 100))
    found = costs(entry(fusion(result=shape(5000))), computation(2, *inputs, tanh, put, renamed, root=14))
    shown = (800 * BYTE / (4000 + 100)) ** 2
    assert found == {
        "tanh.12": 4000 + 400 * BYTE * shown,
        "put.13": 100 + 400 * BYTE * shown,
    }


def test_results_of_a_tuple_are_each_computed():
    """A fusion with two results pays for both, and for what they share once."""
    shared = instruction(11, "tanh.11", "tanh", operands=[10], result=shape(100))
    ends = [
        instruction(12, "exp.12", "exponential", operands=[11], result=shape(100)),
        instruction(13, "log.13", "log", operands=[11], result=shape(100)),
        instruction(14, "tuple.14", "tuple", operands=[12, 13]),
    ]
    found = costs(entry(fusion()), computation(2, parameter(10, 0, shape(100)), shared, *ends, root=14))
    shown = (1200 * BYTE / (4000 + 4000 + 5000)) ** 2
    assert found == {
        "tanh.11": 4000 + 400 * BYTE * shown,
        "exp.12": 4000 + 400 * BYTE * shown,
        "log.13": 5000 + 400 * BYTE * shown,
    }


def test_a_fusion_inside_of_a_fusion():
    """What a nested fusion computes counts, and what it reads of the outer one's parameters is read by it."""
    inner = instruction(21, "tanh.21", "tanh", operands=[20], result=shape(100))
    nested = instruction(11, "fusion.11", "fusion", operands=[10], called=[3], result=shape(100))
    add = instruction(12, "add.12", "add", operands=[11, 11], result=shape(100))
    found = costs(
        entry(fusion()),
        computation(2, parameter(10, 0, shape(100)), nested, add, root=12),
        computation(3, parameter(20, 0, shape(100)), inner, root=21),
    )
    shown = (800 * BYTE / 4100) ** 2
    assert found == {"tanh.21": 4000 + 400 * BYTE * shown, "add.12": 100 + 400 * BYTE * shown}


def test_a_product_and_what_follows_it():
    """In a fusion of a matrix product with its activation, each has its own cost."""
    dot = instruction(12, "dot.12", "dot", operands=[10, 11], result=shape(8, 4), fields=dot_fields(1))
    tanh = instruction(13, "tanh.13", "tanh", operands=[12], result=shape(8, 4))
    inputs = parameter(10, 0, shape(8, 1000)), parameter(11, 1, shape(1000, 4))
    found = costs(entry(fusion(result=shape(8, 4))), computation(2, *inputs, dot, tanh, root=13))
    arithmetic = 2 * 8 * 4 * 1000, 40 * 8 * 4
    shown = min(1.0, (8 * 1000 + 1000 * 4 + 8 * 4) * 4 * BYTE / sum(arithmetic)) ** 2
    assert found == {
        "dot.12": arithmetic[0] + (8 * 1000 + 1000 * 4) * 4 * BYTE * shown,
        "tanh.13": arithmetic[1] + 8 * 4 * 4 * BYTE * shown,
    }


def called(*inner: bytes) -> dict[str, float]:
    """The costs of a call that holds some instructions; computation 3 is a tanh of eight elements."""
    return costs(
        entry(instruction(1, "call.1", "call", called=[2])),
        computation(2, *inner, root=11),
        computation(3, instruction(21, "tanh.21", "tanh", result=shape(8)), root=21),
        kernel="call.1",
    )


LOOP = instruction(11, "while.11", "while", called=[3])


@pytest.mark.parametrize(
    "inner",
    [
        [LOOP, instruction(12, "exp.12", "exponential", result=shape(8))],
        [instruction(11, "conditional.11", "conditional", called=[3])],
    ],
    ids=["a loop of unknown length next to something", "a branch"],
)
def test_how_often_something_runs_is_not_guessed(inner):
    """What runs an unknown number of times cannot be held against what runs once."""
    with pytest.raises(UnknownCostError):
        called(*inner)


def test_a_loop_alone_may_have_any_length():
    """If a loop is all that a kernel holds, the proportions of its body are those of the kernel."""
    assert called(LOOP, instruction(12, "tuple.12", "tuple", operands=[11])) == {"tanh.21": 40 * 8}


def test_a_program_that_calls_itself_ends():
    """A damaged program has no estimate, and is not walked forever."""
    again = [instruction(number, f"fusion.{number}", "fusion", called=[2], result=shape(8)) for number in range(10, 20)]
    broken = entry(fusion()), computation(2, *again, instruction(20, "t.20", "tuple", operands=range(10, 20)), root=20)
    with pytest.raises(UnknownCostError):
        costs(*broken)
    module = HloModule("m", hlo_proto("m", *broken))
    assert len(instructions_inside(module, module.instructions["fusion.1"])) == 11


def test_what_a_fusion_calls_may_be_missing():
    """A program without the computation of a fusion has no estimate for it."""
    with pytest.raises(UnknownCostError):
        costs(entry(fusion(called=7)))
