"""Whole reports from files with known contents."""

import json

import pytest

from tests.trace.synthetic import (
    STEP_PROGRAM,
    PlaneWriter,
    computation,
    cpu_op,
    frames,
    fused_chain,
    hlo_proto,
    instruction,
    metadata_plane,
    parameter,
    shape,
    space,
)
from trackside.trace import TraceError, TraceReport, analyse_trace

NS = 1e-9
PROGRAMS = metadata_plane({7: ("jit_step", STEP_PROGRAM)})


def cpu_space(num_runs: int = 2, period_ns: int = 200, **stats) -> bytes:
    """Two threads; per run: 40 ns of a forward product, 60 of a backward one, 20 of both at once, 10 of an update."""
    plane = PlaneWriter("/host:CPU")
    for run in range(num_runs):
        start = 1_000 + run * period_ns
        plane.event("python", "train", 10 * run, 5, step_num=30 + run)
        cpu_op(plane, "tf_XLAEigen/1", "dot.1", start, 60, run_id=run, **stats)
        cpu_op(plane, "tf_XLAEigen/2", "dot.2", start + 40, 80, run_id=run, **stats)
        cpu_op(plane, "tf_XLAEigen/1", "add.3", start + 130, 10, run_id=run, **stats)
    return space(PROGRAMS, plane)


def busy_by(report: TraceReport, table: str, *names: str) -> dict:
    return {
        tuple(getattr(row, name) for name in names): pytest.approx(row.busy_s, rel=1e-9)
        for row in getattr(report, table)
    }


@pytest.fixture(scope="module")
def cpu_report() -> TraceReport:
    return analyse_trace(cpu_space())


def test_cpu_time_by_scope_and_phase(cpu_report):
    """Overlapping operations share the wall: 40 + 20 / 2 forward, 60 + 20 / 2 backward, 10 for the update, per run."""
    assert busy_by(cpu_report, "scopes", "scope", "phase") == {
        ("loss/Net/Dense_0", "forward"): 2 * 50 * NS,
        ("loss/Net/Dense_0", "backward"): 2 * 70 * NS,
        ("update", "optimizer"): 2 * 10 * NS,
    }


def test_cpu_time_by_kind_and_source(cpu_report):
    """Kinds and source lines hold the same time; what has no line of the user's is not in the table by line."""
    assert busy_by(cpu_report, "categories", "category") == {
        ("matmul",): 2 * 120 * NS,
        ("elementwise",): 2 * 10 * NS,
    }
    assert busy_by(cpu_report, "sources", "file", "line") == {("/home/me/model.py", 12): 2 * 120 * NS}


def test_cpu_runs(cpu_report):
    """Each execution has its step, its busy and its idle time."""
    runs = cpu_report.runs
    assert runs.step.tolist() == [30, 31]
    assert runs.program == ("jit_step", "jit_step")
    assert runs.busy_s.tolist() == pytest.approx([130 * NS] * 2)
    assert runs.idle_s.tolist() == pytest.approx([10 * NS] * 2)
    assert (runs.end_s - runs.start_s).tolist() == pytest.approx([140 * NS] * 2)


def test_cpu_busy_share_and_step_time(cpu_report):
    """The window goes from the first start to the last end; step time from start to start."""
    (device,) = cpu_report.devices
    assert (device.name, device.window_s, device.busy_s) == ("CPU:0", pytest.approx(340 * NS), pytest.approx(260 * NS))
    assert cpu_report.device_busy == pytest.approx(260 / 340)
    assert cpu_report.step_time.mean_s == pytest.approx(200 * NS)
    assert cpu_report.num_steps == 2


def test_every_table_states_its_coverage(cpu_report):
    """Each table says how much of the busy time is accounted for."""
    tables = ("runs", "scopes", "ops", "categories", "sources", "collectives", "gaps")
    for table in tables:
        coverage = getattr(cpu_report, table).coverage
        assert coverage.busy_s == pytest.approx(260 * NS)
        assert (coverage.resolved_share, coverage.scoped_share) == pytest.approx((1.0, 1.0))


def test_nothing_is_missing_in_a_full_trace(cpu_report):
    """A trace with programs, runs and markers lacks nothing."""
    assert cpu_report.missing == []
    assert cpu_report.warnings == []


def test_tables_sum_to_the_busy_time(cpu_report):
    """Scopes, operations and kinds each sum to the busy time."""
    for table in ("scopes", "ops", "categories"):
        assert sum(row.busy_s for row in getattr(cpu_report, table)) == pytest.approx(260 * NS)
        assert sum(row.share for row in getattr(cpu_report, table)) == pytest.approx(1.0)


def test_markers_are_listed(cpu_report):
    """The step markers come with their numbers."""
    assert [(marker.name, marker.step) for marker in cpu_report.markers] == [("train", 30), ("train", 31)]


def test_control_flow_does_not_count():
    """A loop's time is that of the operations in it, on whatever thread they run."""
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "tf_XLAEigen/1", "while.5", 0, 100)
    cpu_op(plane, "tf_XLAEigen/1", "exp.7", 10, 30)
    cpu_op(plane, "tf_XLAEigen/2", "exp.7", 50, 20)
    report = analyse_trace(space(PROGRAMS, plane))
    assert busy_by(report, "ops", "op") == {("exp.7",): 50 * NS}


def test_time_in_a_thread_pool_counts():
    """An operation that goes on after its event has ended is busy until its mark."""
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "tf_XLAEigen/1", "dot.1", 0, 10, _p=5)
    plane.event("tf_XLAEigen/2", "end: dot.1", 90, 1, _c=5)
    assert analyse_trace(space(PROGRAMS, plane)).coverage.busy_s == pytest.approx(90 * NS)


COSTS = {"a": 1, "b": 2, "c": 4, "d": 8}


def fused_space(program: bytes, op: str = "fusion.2", duration_ns: int = 1500) -> bytes:
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "tf_XLAEigen/1", op, 0, duration_ns)
    return space(metadata_plane({7: ("jit_step", program)}), plane)


def test_time_of_a_fused_kernel_is_split_by_what_its_scopes_cost():
    """One kernel over four scopes that cost 1:2:4:8, named after the last: each has its share, marked as estimated."""
    report = analyse_trace(fused_space(fused_chain(COSTS, frame_of=lambda at: at + 1)))
    total = sum(COSTS.values())
    for row in report.scopes:
        assert row.share == pytest.approx(COSTS[row.scope] / total, rel=0.05)
        assert row.estimated_s == row.busy_s
        assert row.num_ops == 1
    assert {row.scope for row in report.scopes} == set(COSTS)
    assert sum(row.busy_s for row in report.scopes) == pytest.approx(1500 * NS)
    lines = {row.file: row.share for row in report.sources}
    assert lines == {f"/home/me/{row.scope}.py": pytest.approx(row.share) for row in report.scopes}
    for table in (report.scopes, report.sources):
        assert table.coverage.estimated_share == pytest.approx(1.0)
    (op,) = report.ops
    assert (op.scope, op.num_scopes, op.busy_s) == ("d", 4, pytest.approx(1500 * NS))


def test_phases_share_a_kernel():
    """One scope's forward and backward operations in one kernel: each phase has its share, and so have scalars."""
    phases = {"jvp(a)": 3, "transpose(jvp(a))/rematted_computation": 3, "transpose(jvp(a))": 6}
    report = analyse_trace(fused_space(fused_chain(phases)))
    expected = {"forward": 0.25, "recompute": 0.25, "backward": 0.5}
    assert report.phases == {phase: pytest.approx(1500 * NS * share, rel=0.05) for phase, share in expected.items()}
    assert {row.scope for row in report.scopes} == {"a"}
    assert report.coverage.estimated_share == pytest.approx(1.0)
    assert report.ops.rows[0].num_scopes == 1


def test_kernel_of_an_accelerator_is_split():
    """On a GPU the same program is split by the same structure; reading memory counts more there than on a CPU."""
    plane = PlaneWriter("/device:GPU:0")
    plane.event("Stream #1(Compute)", "loop_fusion", 0, 1500, hlo_op="fusion.2", hlo_module="jit_step", program_id=7)
    report = analyse_trace(space(metadata_plane({7: ("jit_step", fused_chain(COSTS))}), plane))
    shares = {row.scope: row.share for row in report.scopes}
    assert sorted(shares, key=shares.__getitem__) == list(COSTS)
    assert shares["c"] / shares["b"] == pytest.approx(2.0)
    assert shares["a"] > 1.2 / sum(COSTS.values())
    assert report.coverage.estimated_share == pytest.approx(1.0)


def test_lines_of_one_scope_are_estimated_where_the_scope_is_not():
    """A kernel over two lines of one scope: by scope nothing is estimated, by line all of it."""
    inner = [
        instruction(11, "tanh.11", "tanh", "jit(step)/a/tanh", operands=[10], result=shape(64), frame=1),
        instruction(12, "tanh.12", "tanh", "jit(step)/a/tanh", operands=[11], result=shape(64), frame=2),
    ]
    program = hlo_proto(
        "jit_step",
        computation(1, instruction(2, "fusion.2", "fusion", called=[2], result=shape(64)), root=2),
        computation(2, parameter(10, 0, shape(64)), *inner, root=12),
        stack=frames(("/home/me/a.py", 1, "f"), ("/home/me/b.py", 2, "g")),
    )
    report = analyse_trace(fused_space(program))
    assert (report.coverage.estimated_s, report.sources.coverage.estimated_share) == (0, pytest.approx(1.0))
    assert [row.share for row in report.sources] == pytest.approx([0.5, 0.5], rel=0.05)


def test_kernel_that_cannot_be_split_is_said_to_be_one():
    """A kernel with a custom call inside is one over two scopes: none of them is named, and it is not resolved."""
    inner = [
        instruction(11, "call.11", "custom-call", "jit(step)/net/a/f", operands=[10], result=shape(64), target="f"),
        instruction(12, "tanh.12", "tanh", "jit(step)/net/b/tanh", operands=[11], result=shape(64)),
    ]
    program = hlo_proto(
        "jit_step",
        computation(
            1, instruction(2, "fusion.2", "fusion", "jit(step)/net/b/tanh", called=[2], result=shape(64)), root=2
        ),
        computation(2, parameter(10, 0, shape(64)), *inner, root=12),
    )
    report = analyse_trace(fused_space(program))
    (row,) = report.scopes
    assert row.scope == "net/(one kernel over 2 scopes)"
    assert report.ops.rows[0].scope == row.scope
    coverage = report.coverage
    assert (coverage.resolved_s, coverage.unsplit_share, coverage.unattributed_s) == (0, pytest.approx(1.0), 0)


def test_small_loop_that_is_one_kernel_counts():
    """A call of which the trace has an event, and nothing of what it holds, is a kernel; its loop runs seven times."""
    body = [
        instruction(31, "tanh.31", "tanh", "jit(step)/a/while/body/tanh", operands=[30], result=shape(8)),
        instruction(32, "exp.32", "exponential", "jit(step)/b/exp", operands=[31], result=shape(8)),
    ]
    trips = [(43, '{"known_trip_count":{"n":"7"},"dynamic_variables":[]}')]
    program = hlo_proto(
        "jit_step",
        computation(1, instruction(2, "call.2", "call", "jit(step)/while", called=[2]), root=2),
        computation(
            2,
            instruction(20, "while.20", "while", "jit(step)/while", called=[3], fields=trips),
            instruction(21, "tanh.21", "tanh", "jit(step)/a/tanh", operands=[20], result=shape(8)),
            root=21,
        ),
        computation(3, parameter(30, 0, shape(8)), *body, root=32),
    )
    report = analyse_trace(fused_space(program, "call.2"))
    tanh, exp = 40 * 8, 40 * 7
    assert {row.scope: row.share for row in report.scopes} == {
        "a": pytest.approx(tanh / (tanh + exp)),
        "b": pytest.approx(exp / (tanh + exp)),
    }
    assert report.ops.rows[0].category == "elementwise"
    # Where what it holds has events of its own, their time is counted, not the call's.
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "tf_XLAEigen/1", "call.2", 0, 100)
    cpu_op(plane, "tf_XLAEigen/1", "tanh.31", 10, 30)
    report = analyse_trace(space(metadata_plane({7: ("jit_step", program)}), plane))
    assert busy_by(report, "ops", "op") == {("tanh.31",): 30 * NS}


def test_collective_by_opcode():
    """A collective named by its function is found, with time, bytes and scope."""
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "tf_XLAEigen/1", "dot.1", 0, 30)
    cpu_op(plane, "tf_XLAEigen/2", "psum.6", 10, 40)
    (row,) = analyse_trace(space(PROGRAMS, plane)).collectives
    assert (row.op, row.opcode, row.scope, row.num_bytes) == ("psum.6", "all-reduce", "gradient_sync", 128)
    assert (row.busy_s, row.span_s) == pytest.approx((30 * NS, 40 * NS))


def test_unattributed_time_is_stated():
    """What resolves to nothing is in the tables, and stated as such."""
    program = hlo_proto("jit_step", computation(1, instruction(1, "copy.1", "copy")))
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "tf_XLAEigen/1", "copy.1", 0, 30)
    report = analyse_trace(space(metadata_plane({7: ("jit_step", program)}), plane))
    assert report.coverage.unattributed_s == pytest.approx(30 * NS)
    assert busy_by(report, "scopes", "scope", "phase") == {("(no scope)", "other"): 30 * NS}


def two_programs() -> bytes:
    plane = PlaneWriter("/host:CPU")
    for run in range(3):
        cpu_op(plane, "tf_XLAEigen/1", "dot.1", 100 * run, 20, run_id=run)
        plane.event("python", "train", 100 * run - 5 if run else 0, 1, step_num=run)
    cpu_op(plane, "tf_XLAEigen/1", "big.1", 130, 60, run_id=9, program_id=8, hlo_module="jit_eval")
    return space(PROGRAMS, plane)


def test_one_program_only():
    """With a program given, the tables hold it alone; the others are listed by name and time."""
    report = analyse_trace(two_programs(), program="jit_step")
    assert report.coverage.busy_s == pytest.approx(60 * NS)
    assert [(row.name, row.is_selected) for row in report.programs] == [("jit_step", True), ("jit_eval", False)]
    assert {row.op for row in report.ops} == {"dot.1"}
    assert set(report.runs.program) == {"jit_step"}


def test_all_programs():
    """Without one, all are in the tables, and the step program is the one with as many runs as markers."""
    report = analyse_trace(two_programs())
    assert {row.op for row in report.ops} == {"dot.1", "big.1"}
    assert report.step_program == "jit_step"
    assert report.num_steps == 3


def test_unknown_program_lists_those_there_are():
    """A misspelt program is an error that names the others."""
    with pytest.raises(TraceError, match=r"program='jit_stp'.*jit_eval, jit_step"):
        analyse_trace(two_programs(), program="jit_stp")


def gpu_space(*, with_hlo: bool = True) -> bytes:
    plane = PlaneWriter("/device:GPU:0")
    for run in range(3):
        start, stats = 1_000 * run, {"hlo_module": "jit_step", "program_id": 7}
        plane.event("Stream #13(Compute)", "gemm", start, 400, hlo_op="dot.1", **stats)
        plane.event("Stream #13(Compute)", "gemm", start + 400, 200, hlo_op="dot.2", **stats)
        plane.event("Stream #15(Compute)", "nccl", start + 500, 200, hlo_op="psum.6", **stats)
        plane.event("Stream #16(MemcpyH2D)", "MemcpyH2D", start + 100, 50)
        plane.event("XLA Modules", "jit_step(7)", start, 700)
        plane.event("XLA Ops", "dot.1", start, 400, hlo_op="dot.1", **stats)
        plane.event("Steps", str(run), start, 700)
    host = PlaneWriter("/host:CPU")
    for run in range(3):
        host.event("python", "train", 10 * run, 5, step_num=run)
    return space(*([PROGRAMS] if with_hlo else []), host, plane)


def test_gpu_totals():
    """On a GPU the streams share the wall, and a copy by the driver is no part of it."""
    report = analyse_trace(gpu_space())
    assert busy_by(report, "ops", "op") == {
        ("dot.1",): 3 * 400 * NS,
        ("dot.2",): 3 * 150 * NS,
        ("psum.6",): 3 * 150 * NS,
    }
    assert report.devices[0].busy_s == pytest.approx(2_100 * NS)
    assert [(row.name, row.num_ops) for row in report.transfers] == [("MemcpyH2D", 3)]
    assert report.runs.step.tolist() == [0, 1, 2]
    assert report.step_time.mean_s == pytest.approx(1_000 * NS)


def test_gpu_without_hlo_says_what_is_missing():
    """Without programs, operations are known by name, and nothing is called zero."""
    report = analyse_trace(gpu_space(with_hlo=False))
    assert any("HLO" in what for what in report.missing)
    assert report.coverage.busy_s == pytest.approx(2_100 * NS)
    assert report.coverage.resolved_s == 0
    assert "forward_ms" not in report.scalars()
    assert report.step_program == "jit_step"


def tpu_space(*, with_hlo: bool) -> bytes:
    plane = PlaneWriter("/device:TPU:0")
    plane.describe("%while.5 = ...", "while.5", hlo_category="while")
    plane.describe("%dot.1 = ...", "dot.1", tf_op="jit(step)/jvp(loss)/Net/Dense_0/dot_general", hlo_category="fusion")
    for run in range(2):
        start = 1_000 * run
        plane.event("XLA Modules", "jit_step(7)", start, 600, run_id=run)
        plane.event("XLA Ops", "%while.5 = ...", start, 500)
        plane.event("XLA Ops", "%dot.1 = ...", start + 100, 300)
        plane.event("XLA Ops", "%add.3 = ...", start + 500, 100)
        plane.event("Async XLA Ops", "%all-gather-start.1 = ...", start + 50, 400)
        plane.event("Steps", str(run), start, 600)
    return space(*([PROGRAMS] if with_hlo else []), plane)


@pytest.mark.parametrize("with_hlo", [True, False])
def test_tpu_totals(with_hlo):
    """On a TPU a loop's time is that of what it holds, and what is in flight beside it lies apart."""
    report = analyse_trace(tpu_space(with_hlo=with_hlo))
    assert busy_by(report, "ops", "op") == {("dot.1",): 2 * 300 * NS, ("add.3",): 2 * 100 * NS}
    assert report.runs.idle_s.tolist() == pytest.approx([100 * NS] * 2)
    assert [(row.name, row.num_ops) for row in report.transfers] == [("all-gather-start.1", 2)]


def test_tpu_without_hlo_uses_what_the_events_tell():
    """The names that a TPU's events carry give scopes without programs; that of a fusion is one of several."""
    report = analyse_trace(tpu_space(with_hlo=False))
    assert busy_by(report, "scopes", "scope", "phase")["loss/Net/Dense_0", "forward"] == 2 * 300 * NS
    coverage = report.coverage
    assert (coverage.resolved_s, coverage.unsplit_share) == (0, pytest.approx(0.75))
    assert coverage.unattributed_s == pytest.approx(2 * 100 * NS)


def test_several_hosts_are_read_together(tmp_path):
    """The files of one session are one report: devices of all hosts, operations added up."""
    for host in ("a", "b"):
        (tmp_path / f"{host}.xplane.pb").write_bytes(cpu_space())
    report = analyse_trace(tmp_path)
    assert [device.name for device in report.devices] == ["host0/CPU:0", "host1/CPU:0"]
    assert report.coverage.busy_s == pytest.approx(2 * 260 * NS)
    assert report.num_steps == 2
    assert report.runs.step.tolist() == [30, 31, 30, 31]
    assert report.per_step(report.coverage.busy_s) == pytest.approx(130 * NS)
    assert len(report.files) == 2


def test_file_and_bytes_give_the_same(tmp_path, cpu_report):
    """Where the bytes come from makes no difference but for the file's name."""
    file = tmp_path / "h.xplane.pb"
    file.write_bytes(cpu_space())
    report = analyse_trace(str(file))
    assert report.files == (str(file),)
    assert {**report.to_dict(), "files": []} == cpu_report.to_dict()


def test_trace_without_operations():
    """A window in which nothing ran is a report that says so."""
    plane = PlaneWriter("/host:CPU")
    plane.event("python", "train", 0, 5, step_num=1)
    report = analyse_trace(space(plane))
    assert any("operations of a device" in what for what in report.missing)
    assert report.device_busy is None
    assert report.step_time is None
    assert report.scalars() == {}
    json.dumps(report.to_dict())


@pytest.mark.parametrize(
    "data",
    [b"", b"not a trace at all, but text", b"\x1f\x8b\x08\x00" + bytes(40), b"{}", bytes(64), b"\x0a\x00"],
    ids=["empty", "text", "gzip", "json", "zeros", "empty plane"],
)
def test_file_of_another_kind(tmp_path, data):
    """A file that is no trace is an error that names it."""
    file = tmp_path / "odd.xplane.pb"
    file.write_bytes(data)
    with pytest.raises(TraceError, match=r"odd\.xplane\.pb: "):
        analyse_trace(file)


def test_truncated_file():
    """A file that was cut anywhere is an error, unless it was cut exactly behind a part."""
    whole = cpu_space()
    planes_end = {len(space(PROGRAMS)) - len(space())}
    for length in range(1, len(whole)):
        try:
            analyse_trace(whole[:length])
        except TraceError as error:
            assert "take the trace again" in str(error)  # noqa: PT017
        else:
            planes_end.add(length)
    assert len(planes_end) <= 3


def test_damaged_file_never_fails_otherwise():
    """Whichever byte is damaged, the outcome is a report or a TraceError."""
    whole = cpu_space(num_runs=1)
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        try:
            analyse_trace(bytes(damaged))
        except TraceError:
            continue


def marked_space(num_runs: int, num_markers: int) -> bytes:
    """A trace whose tracer was stopped some executions after the last marker."""
    plane = PlaneWriter("/host:CPU")
    for run in range(num_runs):
        if run < num_markers:
            plane.event("python", "train", 10 * run, 5, step_num=30 + run)
        cpu_op(plane, "tf_XLAEigen/1", "dot.1", 1_000 + 200 * run, 60, run_id=run)
    return space(PROGRAMS, plane)


@pytest.mark.parametrize("num_runs", [3, 4, 6])
def test_marked_only_leaves_out_what_came_later(num_runs):
    """Executions behind the last marker are in no table, also where there are twice as many as markers."""
    report = analyse_trace(marked_space(num_runs, 3), program="jit_step", marked_only=True)
    assert report.runs.step.tolist() == [30, 31, 32]
    assert report.num_steps == 3
    assert sum(row.busy_s for row in report.scopes) == pytest.approx(3 * 60 * NS)
    assert [row.num_ops for row in report.ops] == [3]
    assert report.warnings == []
