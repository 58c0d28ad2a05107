"""Operations of a device in the layouts of CPU, GPU and TPU."""

import numpy as np

from tests.trace.synthetic import PlaneWriter, cpu_op, space
from trackside.trace.device_events import DeviceEvents, Program, read_device_events
from trackside.trace.event_columns import MISSING
from trackside.trace.xspace import read_xspace


def read(*spaces: bytes) -> DeviceEvents:
    return read_device_events([read_xspace(each) for each in spaces])


def names(events: DeviceEvents) -> list[str]:
    return [events.ops.keys[key].name for key in events.ops.key.tolist()]


def test_cpu_operations_lie_on_threads():
    """On a CPU every event with an `hlo_op` is an operation, on whatever thread; its stats name device and run."""
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "tf_XLAEigen/1", "dot.1", 0, 5)
    cpu_op(plane, "tf_XLAPjRtCpuClient/2", "dot.1", 2, 5, device_ordinal=3)
    cpu_op(plane, "python", "add.3", 9, 1)
    plane.event("python", "PjitFunction(step)", 0, 20)
    events = read(space(plane))
    assert sorted(names(events)) == ["add.3", "dot.1", "dot.1"]
    assert [events.ops.devices[index].name for index in events.ops.device] == ["CPU:0", "CPU:3", "CPU:0"]
    assert set(events.ops.run.tolist()) == {-5}
    assert events.ops.programs == [Program(0, 7, "jit_step")]


def test_cpu_operation_ends_where_its_mark_lies():
    """An operation that goes on in a thread pool is complete at the event that carries its number."""
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "a", "dot.1", 0, 5, _p=77)
    cpu_op(plane, "a", "add.3", 6, 2, _p=78)
    plane.event("b", "end: dot.1", 30, 1, _c=77)
    plane.event("a", "end: add.3", 7, 0.5, _c=78)
    plane.event("b", "something else", 90, 1, _c=78)
    ops = read(space(plane)).ops
    assert ops.end_ps.tolist() == [5_000, 8_000]
    assert ops.done_ps.tolist() == [30_000, 8_000]


def gpu_plane(*, with_modules: bool = True) -> PlaneWriter:
    plane = PlaneWriter("/device:GPU:1")
    for run in range(2):
        start = 100 * run
        stats = {"hlo_module": "jit_step", "program_id": 7}
        plane.event("Stream #13(Compute)", "gemm_kernel", start, 40, hlo_op="dot.1", **stats)
        plane.event("Stream #13(Compute)", "add_kernel", start + 40, 10, hlo_op="add.3", **stats)
        plane.event("Stream #14(MemcpyH2D)", "MemcpyH2D", start + 5, 20)
        plane.event("XLA Ops", "dot.1", start, 40, hlo_op="dot.1", **stats)
        if with_modules:
            plane.event("XLA Modules", "jit_step(7)", start, 50)
    return plane


def test_gpu_operations_lie_on_streams():
    """Streams count; the line that is derived from them does not count again, and the driver's copies lie apart."""
    events = read(space(gpu_plane()))
    assert sorted(names(events)) == ["add.3", "add.3", "dot.1", "dot.1"]
    assert len(events.transfers) == 2
    assert events.ops.devices[0].name == "GPU:1"


def test_gpu_runs_are_the_executions_of_modules():
    """An operation belongs to the execution in which it began."""
    events = read(space(gpu_plane()))
    assert events.ops.run.tolist() == [0, 0, 1, 1]
    assert events.missing == []


def test_gpu_without_executions_says_so():
    """Without the line of executions, the program is known from the operations, and the runs are missing."""
    events = read(space(gpu_plane(with_modules=False)))
    assert (events.ops.run == MISSING).all()
    assert events.ops.programs == [Program(0, 7, "jit_step")]
    assert any("XLA Modules" in what for what in events.missing)


def test_host_operations_are_no_device_s_where_there_are_devices():
    """Beside an accelerator, small programs that ran on the host are left out."""
    host = PlaneWriter("/host:CPU")
    cpu_op(host, "python", "dot.9", 0, 5)
    assert "dot.9" not in names(read(space(host, gpu_plane())))


def test_tpu_operations_lie_on_xla_ops():
    """On a TPU the short name of an operation is the one it has in its program, and copies in flight lie apart."""
    plane = PlaneWriter("/device:TPU:0")
    plane.describe("%dot.1 = f32[4]{0} dot(...)", "dot.1", tf_op="jit(step)/Net/dot_general", program_id=7)
    plane.event("XLA Modules", "jit_step(7)", 0, 50, run_id=3)
    plane.event("XLA Ops", "%dot.1 = f32[4]{0} dot(...)", 0, 30)
    plane.event("XLA Ops", "%add.3 = f32[] add(...)", 30, 10)
    plane.event("Async XLA Ops", "%copy-start.2 = ...", 5, 30)
    events = read(space(plane))
    assert names(events) == ["dot.1", "add.3"]
    assert events.ops.keys[0].framework_name == "jit(step)/Net/dot_general"
    assert len(events.transfers) == 1


def test_kernels_of_another_framework():
    """Kernels without HLO keep their names, and what TensorFlow noted becomes a path."""
    plane = PlaneWriter("/device:GPU:0")
    plane.event("Stream #1(Compute)", "void kernel()", 0, 4, annotation="bert/layer_1:MatMul#shape=(float[4])#")
    plane.event("Steps", "0", 0, 4)
    events = read(space(plane))
    key = events.ops.keys[events.ops.key[0]]
    assert (key.program, key.name, key.framework_name) == (-1, "void kernel()", "bert/layer_1/MatMul")
    assert any("Steps" in warning for warning in events.warnings)


def test_devices_of_several_hosts():
    """Each host's devices are its own, and so are its programs."""
    events = read(space(gpu_plane()), space(gpu_plane()))
    assert [(device.name, device.host) for device in events.ops.devices] == [("host0/GPU:1", 0), ("host1/GPU:1", 1)]
    assert events.ops.programs == [Program(0, 7, "jit_step"), Program(1, 7, "jit_step")]


def test_lines_of_several_planes_are_told_apart():
    """Operations of two planes never share a line, on which they could nest."""
    other = gpu_plane()
    other.name = "/device:GPU:2"
    ops = read(space(gpu_plane(), other)).ops
    assert not set(np.unique(ops.line[ops.device == 0])) & set(np.unique(ops.line[ops.device == 1]))


def test_unknown_kinds_of_devices_are_named():
    """A device that cannot be read is mentioned."""
    plane = PlaneWriter("/device:CUSTOM:ring")
    plane.event("Ops", "op", 0, 1)
    assert any("/device:CUSTOM:ring" in warning for warning in read(space(plane)).warnings)
