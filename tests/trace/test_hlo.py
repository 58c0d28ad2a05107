"""Programs that a trace carries."""

from pathlib import Path

import pytest

import trackside
from tests.trace.synthetic import (
    S32,
    STEP_PROGRAM,
    computation,
    dot_fields,
    hlo_proto,
    instruction,
    message,
    metadata_plane,
    shape,
    space,
)
from trackside.trace.hlo import Frame, HloModule, read_modules, split_program_name
from trackside.trace.wire import WireError
from trackside.trace.xspace import read_xspace


@pytest.fixture(scope="module")
def module() -> HloModule:
    return HloModule("jit_step", STEP_PROGRAM)


def test_instructions_by_name(module):
    """An instruction has its opcode, metadata and place."""
    psum = module.instructions["psum.6"]
    assert (psum.opcode, psum.op_name) == ("all-reduce", "jit(step)/gradient_sync/psum")
    assert psum.operand_ids == (9,)
    assert module.instructions["while.5"].called_ids == (2,)


def test_caller_of_a_computation(module):
    """What lies in a loop's body can be traced to the loop."""
    body = module.instructions["exp.7"].computation_id
    assert module.callers[body].name == "while.5"


def test_frames_are_innermost_first(module):
    """A stack is followed from where an operation was traced to where the program began."""
    stack = module.frames(module.instructions["dot.1"])
    assert [(frame.line, frame.function) for frame in stack] == [
        (20, "Dense.__call__"),
        (12, "Net.__call__"),
        (90, "main"),
    ]


def test_instruction_without_a_frame_has_no_stack(module):
    """What the compiler made comes from no line."""
    assert module.frames(module.instructions["copy.4"]) == []


@pytest.mark.parametrize(
    ("file", "is_users"),
    [
        ("/home/me/model.py", True),
        ("/venv/lib/python3.11/site-packages/flax/linen/linear.py", False),
        ("/usr/lib/python3.11/contextlib.py", False),
        (trackside.__file__, False),
        (str(Path(trackside.__file__).with_name("demo.py")), True),
        ("<string>", False),
    ],
)
def test_whose_line_it_is(file, is_users):
    """Installed packages, Python's library and trackside are not the user's; the demo stands for a user's program."""
    assert Frame(file, 1, "f").is_users == is_users


def test_frames_from_a_file_and_line():
    """Older metadata names file and line in place of a stack."""
    metadata = message((2, "jit(f)/add"), (3, "/home/me/a.py"), (4, 33))
    add = message((1, "add.1"), (2, "add"), (7, metadata), (35, 1))
    module = HloModule("f", hlo_proto("f", computation(1, add)))
    assert module.frames(module.instructions["add.1"]) == [Frame("/home/me/a.py", 33, "")]


@pytest.mark.parametrize(
    ("result", "num_bytes"),
    [
        (shape(4, 8), 128),
        (shape(), 4),
        (shape(3, element_type=S32), 12),
        (message((4, shape(4)), (4, shape(2))), 24),
        (shape(2, element_type=17), None),
    ],
    ids=["array", "scalar", "integers", "tuple", "no array"],
)
def test_bytes_of_a_result(result, num_bytes):
    """A shape's bytes are counted; a kind that has none is not called zero."""
    module = HloModule("f", hlo_proto("f", computation(1, instruction(1, "a", "add", result=result))))
    assert module.num_bytes(module.instructions["a"]) == num_bytes


def test_programs_of_a_trace():
    """Programs are found by their id, with their bytes."""
    modules = read_modules(read_xspace(space(metadata_plane({7: ("jit_step", STEP_PROGRAM), 9: ("jit_f", b"")}))))
    assert modules[7].name == "jit_step"
    assert modules[7].proto == STEP_PROGRAM
    assert modules[9].instructions == {}


def test_name_and_number_of_a_program():
    """The number in brackets is the program's id."""
    assert split_program_name("jit_step(12)") == ("jit_step", 12)
    assert split_program_name("jit_step") == ("jit_step", None)


def test_shape_and_fields_of_an_instruction():
    """A shape has its dimensions and a tuple's parts; other fields are read by their numbers, nested or not."""
    pair = message((2, 13), (4, shape(2, 3)), (4, shape(4, element_type=S32)))
    proto = hlo_proto(
        "m",
        computation(
            1,
            instruction(1, "while.1", "while", result=pair, fields=[(43, '{"a":1}'), (9, 3)]),
            instruction(2, "dot.2", "dot", result=shape(5), fields=dot_fields(1, 2)),
        ),
    )
    module = HloModule("m", proto)
    loop, dot = module.instructions["while.1"], module.instructions["dot.2"]
    assert [part.dimensions for part in module.shape_of(loop).parts] == [(2, 3), (4,)]
    assert (module.shape_of(loop).num_elements, module.num_bytes(loop)) == (10, 40)
    assert (module.text_in(loop, 43), module.text_in(dot, 43)) == ('{"a":1}', "")
    assert module.numbers_in(loop, 9) == [3]
    assert (module.numbers_in(dot, 30, 1), module.numbers_in(loop, 30, 1)) == ([1, 2], [])


def test_shape_without_an_end_is_damage():
    """A tuple of a tuple of a tuple, beyond what any program has, is refused and not followed."""
    deep = shape(1)
    for _ in range(2_000):
        deep = message((2, 13), (4, deep))
    module = HloModule("m", hlo_proto("m", computation(1, instruction(1, "x.1", "add", result=deep))))
    with pytest.raises(WireError, match="tuples"):
        module.num_bytes(module.instructions["x.1"])
