"""What is known about an operation."""

import pytest

from tests.trace.synthetic import STEP_PROGRAM, computation, hlo_proto, instruction
from trackside.trace.device_events import OpKey, Program
from trackside.trace.hlo import Frame, HloModule
from trackside.trace.ops import OpInfo, describe_ops, find_module
from trackside.trace.xspace import EventMetadata

FORWARD = "jit(step)/jvp(loss)/Net/Dense_0/dot_general"


def describe(proto: bytes, *names: str) -> list[OpInfo]:
    keys = [OpKey(0, name, "", EventMetadata(name, "", {}), 0) for name in names]
    return describe_ops(keys, [Program(0, 7, "jit_step")], [{7: HloModule("jit_step", proto)}])


def describe_without_hlo(name: str, framework_name: str = "", **stats: str) -> OpInfo:
    return describe_ops([OpKey(-1, name, framework_name, EventMetadata(name, "", dict(stats)), 0)], [], [{}])[0]


def test_own_metadata():
    """Scope, phase, kind and the user's source line come from the instruction's own metadata."""
    (info,) = describe(STEP_PROGRAM, "dot.2")
    assert (info.scope, info.phase, info.category) == (("loss", "Net", "Dense_0"), "backward", "matmul")
    assert info.source == Frame("/home/me/model.py", 12, "Net.__call__")
    assert not info.is_inferred


def test_fusion_without_metadata_is_what_it_fuses():
    """A fusion that the compiler gave no name takes that of its matrix product."""
    proto = hlo_proto(
        "jit_step",
        computation(1, instruction(1, "fusion.1", "fusion", called=[2])),
        computation(
            2, instruction(2, "add.2", "add", "jit(step)/update/add"), instruction(3, "dot.3", "dot", FORWARD), root=2
        ),
    )
    (info,) = describe(proto, "fusion.1")
    assert (info.op_name, info.category, info.is_inferred) == (FORWARD, "matmul", False)


def test_fusion_whose_own_metadata_has_no_scope():
    """A name without a scope is less telling than those of what is fused."""
    proto = hlo_proto(
        "jit_step",
        computation(1, instruction(1, "fusion.1", "fusion", "jit(step)/broadcast", called=[2])),
        computation(2, instruction(2, "add.2", "add", "jit(step)/update/add"), root=2),
    )
    assert describe(proto, "fusion.1")[0].phase == "optimizer"


def test_copy_belongs_to_what_it_moves():
    """An operation that the compiler made is counted to the one next to it, and marked."""
    (info,) = describe(STEP_PROGRAM, "copy.4")
    assert (info.scope, info.is_inferred) == (("update",), True)


def test_matrix_product_without_metadata_belongs_to_a_layer():
    """One that the compiler wrote in another way is not counted to what reads its batch, nor to the optimizer."""
    proto = hlo_proto(
        "jit_step",
        computation(
            1,
            instruction(1, "slice.1", "dynamic-slice", "jit(step)/batch/dynamic_slice"),
            instruction(2, "dot.2", "dot", operands=[1]),
            instruction(3, "add.3", "add", FORWARD, operands=[2]),
            instruction(4, "mul.4", "multiply", "jit(step)/transpose(jvp(loss))/mul", operands=[3]),
            instruction(5, "dot.5", "dot", operands=[1, 4]),
            instruction(6, "sub.6", "subtract", "jit(step)/update/adam/sub", operands=[5]),
        ),
    )
    forward, backward = describe(proto, "dot.2", "dot.5")
    assert (forward.scope, forward.phase, forward.is_inferred) == (("loss", "Net", "Dense_0"), "forward", True)
    assert (backward.scope, backward.phase, backward.is_inferred) == (("loss",), "backward", True)


def test_operation_of_a_loop_belongs_to_the_loop():
    """What has no named neighbour in a loop's body is the loop's."""
    (info,) = describe(STEP_PROGRAM, "copy.8")
    assert (info.op_name, info.is_inferred) == ("jit(step)/jvp(loss)/while", True)


def test_nothing_is_made_up():
    """An operation that leads nowhere is unresolved."""
    proto = hlo_proto("jit_step", computation(1, instruction(1, "copy.1", "copy")))
    (info,) = describe(proto, "copy.1")
    assert (info.op_name, info.scope, info.phase, info.source) == ("", (), "other", None)


def test_collective_by_opcode_with_its_bytes():
    """A collective is known by its opcode, whatever its name, and carries what a device puts in."""
    (info,) = describe(STEP_PROGRAM, "psum.6")
    assert (info.collective, info.num_bytes) == ("all-reduce", 4 * 8 * 4)


def test_merged_operations_are_one_over_several_scopes():
    """A collective that the compiler merged from several is none of them: what they share is named."""
    merged = "jit(step)/(transpose(jvp(loss))/Net/head/dot_general:jvp(loss)/reduce_sum)"
    proto = hlo_proto("jit_step", computation(1, instruction(1, "all-reduce.1", "all-reduce", merged)))
    (info,) = describe(proto, "all-reduce.1")
    assert (info.scope, info.phase) == (("loss", "(one kernel over 2 scopes)"), "other")
    assert info.is_unsplit


def test_control_flow_is_marked():
    """A loop only holds other operations."""
    loop, dot = describe(STEP_PROGRAM, "while.5", "dot.1")
    assert loop.is_control_flow
    assert not dot.is_control_flow


def test_operation_that_the_program_does_not_have():
    """A name that is not in the program is described by its event."""
    (info,) = describe(STEP_PROGRAM, "memset.1")
    assert (info.program, info.opcode, info.op_name) == ("jit_step", "", "")


def test_what_an_event_tells_without_hlo():
    """Where the trace holds no program, the event's own stats give name, kind and source."""
    info = describe_without_hlo(
        "fusion.3", "jit(f)/jvp(loss)/Net/add", hlo_category="convolution fusion", source="/home/me/a.py:41"
    )
    assert (info.scope, info.phase, info.category) == (("loss", "Net"), "forward", "matmul/convolution")
    assert info.source == Frame("/home/me/a.py", 41, "")
    assert info.opcode == ""


def test_joined_names_without_hlo_are_one_kernel_over_several():
    """Names that an event joins give the number of scopes; one that lost its beginning is no further scope."""
    info = describe_without_hlo("loop_fusion", "jit(f)/net/a/mul;jit(f)/net/b/tanh;b/exp")
    assert (info.scope, info.is_unsplit) == (("net", "(one kernel over 2 scopes)"), True)
    shortened = describe_without_hlo("multiply.2", "jit(f)/steps/net/a/mul;a/broadcast")
    assert (shortened.scope, shortened.is_unsplit) == (("steps", "net", "a"), False)


def test_collective_without_hlo_has_no_bytes():
    """Bytes that are not known are not zero."""
    info = describe_without_hlo("all-gather-start.2")
    assert (info.collective, info.num_bytes) == ("all-gather", None)


def test_program_is_found_by_name_where_its_id_is_not_told():
    """A name that only one program has will do."""
    keys = [OpKey(0, "dot.1", "", EventMetadata("dot.1", "", {}), 0)]
    modules = {7: HloModule("jit_step", STEP_PROGRAM), 8: HloModule("jit_other", b"")}
    assert describe_ops(keys, [Program(0, None, "jit_step")], [modules])[0].opcode == "dot"


STEP, OTHER = HloModule("jit_step", STEP_PROGRAM), HloModule("jit_other", hlo_proto("jit_other", computation(1)))
SMALL_STEP = HloModule("jit_step", hlo_proto("jit_step", computation(1, instruction(1, "add.1", "add"))))


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({7: STEP, 8: SMALL_STEP}, STEP),
        ({5: OTHER, 6: STEP}, STEP),
        ({5: STEP, 6: HloModule("jit_step", STEP_PROGRAM)}, STEP),
        ({7: OTHER, 8: STEP}, STEP),
        ({5: STEP, 6: SMALL_STEP}, None),
    ],
    ids=["by its id", "by its name", "any of those alike", "not what has taken its id", "none where they differ"],
)
def test_which_program_an_event_is_of(modules, found):
    """What JAX loads from its cache bears an id of another process, which tells nothing here."""
    assert find_module(Program(0, 7, "jit_step"), modules) is found
