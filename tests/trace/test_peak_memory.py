import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trackside.errors import TraceError
from trackside.trace.hlo import read_modules
from trackside.trace.peak_memory import LiveRow, peak_memory
from trackside.trace.xspace import read_xspace

pytestmark = pytest.mark.usefixtures("no_compile_cache")

# A real program, captured.

NUM_BLOCKS = 4
ACTIVATION_BYTES = 256 * 64 * 4


def captured_step(w, x):
    def loss(w):
        y = x
        with jax.named_scope("loss"):
            for index in range(NUM_BLOCKS):
                with jax.named_scope(f"block{index}"):
                    y = jnp.tanh(y @ w)
            return (y**2).mean()

    value, grads = jax.value_and_grad(loss)(w)
    with jax.named_scope("update"):
        return w - 0.1 * grads, value


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The compiled step, and its HLO as a capture holds it."""
    folder = tmp_path_factory.mktemp("capture")
    step = jax.jit(captured_step, donate_argnums=0)
    arguments = np.full((64, 64), 0.1, np.float32), np.ones((256, 64), np.float32)
    compiled = step.lower(*arguments).compile()
    with jax.profiler.trace(folder):
        jax.block_until_ready(step(*arguments))
    [file] = folder.rglob("*.xplane.pb")
    # A capture carries all programs of the process, those of other tests as well.
    modules = read_modules(read_xspace(file.read_bytes()))
    [proto] = [module.proto for module in modules.values() if module.name == "jit_captured_step"]
    return compiled, proto


def test_the_peak_is_what_the_compiler_allocates(program):
    """Played back, the allocations of a real program need what the compiler says, within a few per cent."""
    compiled, proto = program
    memory = peak_memory(proto)
    allocated = compiled.memory_analysis().temp_size_in_bytes
    assert memory is not None
    assert memory.temporary_bytes == pytest.approx(allocated, rel=0.05)
    assert memory.peak_temporary_bytes == pytest.approx(allocated, rel=0.05)


def test_arguments_and_outputs_have_the_sizes_that_the_compiler_says(program):
    """Arguments, and those of them that the outputs take over."""
    compiled, proto = program
    memory, analysis = peak_memory(proto), compiled.memory_analysis()
    assert memory is not None
    assert memory.parameter_bytes == analysis.argument_size_in_bytes
    assert memory.donated_bytes == analysis.alias_size_in_bytes
    assert memory.output_bytes == pytest.approx(analysis.output_size_in_bytes - analysis.alias_size_in_bytes, abs=64)


def test_the_peak_is_told_by_scope_and_phase(program):
    """When the backward pass begins, the activation of each block is there, made by its forward pass."""
    memory = peak_memory(program[1])
    assert memory is not None
    saved = {row.scope: row.num_bytes for row in memory.rows if row.phase == "forward"}
    for index in range(NUM_BLOCKS - 1):
        assert saved["loss", f"block{index}"] >= ACTIVATION_BYTES


def test_rows_add_up_to_the_peak(program):
    """Nothing that is live at the peak is left out."""
    memory = peak_memory(program[1])
    assert memory is not None
    assert sum(row.num_bytes for row in memory.rows) == memory.peak_temporary_bytes


def test_the_moment_of_the_peak_is_named(program):
    """The instruction at the peak is one of the program's, with its scope."""
    memory = peak_memory(program[1])
    assert memory is not None
    assert memory.peak_instruction in program[0].as_text()
    assert memory.peak_scope[0] == "loss"


@pytest.mark.parametrize("cut", [10, 1_000])
def test_a_truncated_program_is_refused(program, cut):
    """The error says what is wrong."""
    with pytest.raises(TraceError, match="HloProto"):
        peak_memory(program[1][:-cut])


# Programs written by hand, with known totals.


def message(**fields):
    """A protobuf message: `_3=...` is the field of number 3; lists are repeated fields."""
    encoded = b""
    for name, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            number = int(name[1:])
            if isinstance(value, int):
                encoded += varint(number << 3) + varint(value)
            else:
                body = value.encode() if isinstance(value, str) else value
                encoded += varint(number << 3 | 2) + varint(len(body)) + body
    return encoded


def varint(value):
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def hlo_proto(events, allocations=(), traces=True):
    """A program with three buffers of 100, 40 and 7 bytes, made by three instructions with a scope each."""
    scopes = {1: "jvp(a)", 2: "transpose(jvp(a))", 3: "update"}
    instructions = [
        message(_1=f"op.{number}", _2="add", _7=message(_2=f"jit(f)/{scope}/add"), _35=number)
        for number, scope in scopes.items()
    ]
    buffers = [
        message(_1=number, _2=size, _3=message(_4=number)) for number, size in zip((1, 2, 3), (100, 40, 7), strict=True)
    ]
    heap = [message(_1=[message(_1=kind, _2=buffer, _4=at, _5=shared) for kind, buffer, at, shared in events])]
    assignment = message(_1=buffers, _3=[message(**fields) for fields in allocations], _4=heap if traces else [])
    return message(_1=message(_1="f", _3=message(_2=instructions, _5=1)), _3=assignment)


ALLOCATE, FREE, SHARE = 0, 1, 2


def test_freed_buffers_are_not_in_the_peak():
    """Of three buffers, two are live together; their sum is the peak."""
    events = [
        (ALLOCATE, 2, "op.2", 0),
        (ALLOCATE, 3, "op.3", 0),
        (FREE, 2, "op.3", 0),
        (ALLOCATE, 1, "op.1", 0),
        (FREE, 1, "op.1", 0),
    ]
    memory = peak_memory(hlo_proto(events))
    assert memory is not None
    assert (memory.peak_temporary_bytes, memory.peak_instruction) == (107, "op.1")
    assert (memory.peak_scope, memory.peak_phase) == (("a",), "forward")
    assert memory.rows == (LiveRow(("a",), "forward", 100, 1), LiveRow(("update",), "optimizer", 7, 1))


def test_buffers_that_share_memory_count_once():
    """Shared memory is taken once, and given back when the last of its users is done."""
    events = [
        (ALLOCATE, 1, "op.1", 0),
        (SHARE, 2, "op.2", 1),
        (FREE, 1, "op.2", 0),
        (ALLOCATE, 3, "op.3", 0),
        (FREE, 2, "op.3", 0),
        (ALLOCATE, 2, "op.2", 0),
    ]
    memory = peak_memory(hlo_proto(events))
    assert memory is not None
    assert memory.peak_temporary_bytes == 107


def test_allocations_are_told_apart():
    """By what they are for; what lies on a thread's stack is none of the device's memory."""
    allocations = [
        {"_2": 1, "_5": 1},
        {"_2": 20, "_5": 1, "_7": 1},
        {"_2": 300, "_7": 1},
        {"_2": 4_000, "_12": 1},
        {"_2": 50_000},
        {"_2": 600_000, "_3": 1},
    ]
    memory = peak_memory(hlo_proto([], allocations))
    assert memory is not None
    assert (memory.parameter_bytes, memory.donated_bytes) == (21, 20)
    assert (memory.output_bytes, memory.constant_bytes, memory.temporary_bytes) == (300, 4_000, 50_000)
    assert memory.total_bytes == 54_321


def test_a_peak_that_is_not_told_is_missing():
    """Without the order of allocations there is no peak, which is something else than a peak of 0."""
    memory = peak_memory(hlo_proto([], [{"_2": 50_000}], traces=False))
    assert memory is not None
    assert memory.peak_temporary_bytes is None
    assert memory.missing


def test_a_program_without_temporaries_has_a_peak_of_zero():
    """Where nothing is allocated, nothing is missing either."""
    memory = peak_memory(hlo_proto([], [{"_2": 50_000, "_5": 1}], traces=False))
    assert memory is not None
    assert (memory.peak_temporary_bytes, memory.rows, memory.missing) == (0, (), ())


def test_a_program_without_buffer_assignment_has_no_memory_table():
    """Nothing is known, so nothing is told."""
    assert peak_memory(message(_1=message(_1="f"))) is None
