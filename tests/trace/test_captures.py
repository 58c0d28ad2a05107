"""Traces that JAX takes on this machine: two devices, a loop, rematerialisation, layers' names."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.profiler import ProfileData, ProfileOptions, StepTraceAnnotation, TraceAnnotation
from jax.sharding import NamedSharding, PartitionSpec

from trackside.trace import TraceReport, analyse_trace
from trackside.trace.trace_files import find_trace_files
from trackside.trace.xspace import read_xspace

pytestmark = pytest.mark.usefixtures("no_compile_cache")

NUM_STEPS = 5
WIDTH = 64


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(WIDTH, name="first")(x))
        return nn.Dense(4, name="last")(x)


def linen_loss(params, x):
    with jax.named_scope("loss"):
        return (Net().apply(params, x) ** 2).mean()


def scanned_loss(params, x):
    @jax.checkpoint
    def layer(hidden, weight):
        with jax.named_scope("layer"):
            return jnp.tanh(hidden @ weight) + hidden, None

    with jax.named_scope("loss"):
        hidden, _ = jax.lax.scan(layer, x, params)
        return (hidden**2).mean()


def capture(loss, params, x, folder) -> None:
    """Take a trace of a few training steps, dispatched without waiting."""
    optimizer = optax.adam(1e-3)

    @jax.jit
    def train_step(params, state, x):
        gradients = jax.grad(loss)(params, x)
        with jax.named_scope("update"):
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

    with jax.numpy_dtype_promotion("standard"):
        state = optimizer.init(params)
        carry = jax.block_until_ready(train_step(params, state, x))
        options = ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(str(folder), profiler_options=options):
            for step in range(10, 10 + NUM_STEPS):
                with StepTraceAnnotation("train", step_num=step):
                    carry = train_step(*carry, x)
            jax.block_until_ready(carry)
            with TraceAnnotation("afterwards"):
                jax.block_until_ready(x * 2)


@pytest.fixture(scope="module")
def linen_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linen")
    x = jnp.ones((128, WIDTH))
    capture(linen_loss, Net().init(jax.random.key(0), x), x, folder)
    return folder


@pytest.fixture(scope="module")
def linen_report(linen_folder) -> TraceReport:
    return analyse_trace(linen_folder, program="jit_train_step")


@pytest.fixture(scope="module")
def sharded_report(tmp_path_factory) -> TraceReport:
    folder = tmp_path_factory.mktemp("scan")
    mesh = jax.make_mesh((2,), ("dp",), devices=jax.devices()[:2])
    x = jax.device_put(jnp.ones((128, WIDTH)), NamedSharding(mesh, PartitionSpec("dp")))
    weights = jax.device_put(jnp.ones((3, WIDTH, WIDTH)) * 0.01, NamedSharding(mesh, PartitionSpec()))
    capture(scanned_loss, weights, x, folder)
    return analyse_trace(folder, program="jit_train_step")


def test_events_are_those_that_jax_reads(linen_folder):
    """Names, times and stats of all events are what JAX's own reader gives."""
    (file,) = find_trace_files(linen_folder)
    space, expected = read_xspace(file.read_bytes()), ProfileData.from_file(str(file))
    for plane, reference in zip(space.planes, expected.planes, strict=True):
        events = [event for line in reference.lines for event in line.events]
        assert plane.name == reference.name
        assert [plane.metadata(each).name for each in plane.events.metadata_id.tolist()] == [e.name for e in events]
        durations = (plane.events.end_ps - plane.events.start_ps) / 1e3
        np.testing.assert_allclose(durations, [event.duration_ns for event in events], atol=1.0)
        starts = np.array([event.start_ns for event in events])
        np.testing.assert_allclose(np.diff(plane.events.start_ps / 1e3), np.diff(starts), atol=1.0)
        ops = [dict(event.stats).get("hlo_op", "") for event in events]
        assert [plane.text(each) for each in plane.events.stat("hlo_op").tolist()] == ops


@pytest.mark.parametrize("name", ["linen_report", "sharded_report"])
def test_reports_are_read_back_as_they_were(name, request):
    """The report of a real trace, written as JSON and read again, is the same report."""
    report = request.getfixturevalue(name)
    again = TraceReport.from_dict(json.loads(json.dumps(report.to_dict())))
    assert again == report
    assert again.to_dict() == report.to_dict()


def test_steps_of_the_window(linen_report):
    """The steps are those that were marked, each one execution."""
    assert linen_report.runs.step.tolist() == list(range(10, 10 + NUM_STEPS))
    assert linen_report.num_steps == NUM_STEPS
    assert linen_report.step_time.num_intervals == NUM_STEPS - 1


def test_other_programs_are_listed_only(linen_report):
    """What ran beside the steps is listed, and in no table."""
    others = [row.name for row in linen_report.programs if not row.is_selected]
    assert others
    assert {row.program for row in linen_report.ops} == {"jit_train_step"}


def test_layers_names_come_through(linen_report):
    """Each layer has forward and backward time, and the optimizer has its own phase."""
    found = {(row.scope, row.phase) for row in linen_report.scopes if row.busy_s > 0}
    assert {("loss/Net/first", "forward"), ("loss/Net/first", "backward"), ("update", "optimizer")} <= found


def test_operations_resolve_to_their_metadata(linen_report):
    """Nearly all busy time has metadata, and lies under a scope."""
    assert linen_report.coverage.resolved_share > 0.97
    assert linen_report.coverage.scoped_share > 0.9


def test_source_lines_are_the_user_s(linen_report):
    """Lines of this file, none of a library."""
    assert linen_report.sources.rows
    assert {row.file for row in linen_report.sources} == {__file__}


def test_report_is_json(linen_report):
    """The report can be written as JSON and carries its version."""
    assert json.loads(json.dumps(linen_report.to_dict()))["format"] == "trackside.trace/1"
    assert linen_report.scalars()["step_time_ms"] > 0


def test_programs_bytes_are_at_hand(linen_report):
    """The program's serialised form is there for those who look deeper."""
    module = linen_report.modules["jit_train_step"]
    assert len(module.proto) > 1000
    assert {row.op for row in linen_report.ops} <= set(module.instructions)


def test_devices_are_told_apart(sharded_report):
    """Each device has its own executions of each step."""
    assert {device.name for device in sharded_report.devices} == {"CPU:0", "CPU:1"}
    assert sorted(sharded_report.runs.step.tolist()) == sorted([*range(10, 10 + NUM_STEPS)] * 2)


def test_loop_and_recomputation(sharded_report):
    """A layer in a rematerialised scan has forward, backward and recomputed time; the loop itself counts nothing."""
    phases = {row.phase for row in sharded_report.scopes if row.scope == "loss/layer" and row.busy_s > 0}
    assert phases >= {"forward", "backward"}
    assert "recompute" in sharded_report.phases
    assert "control flow" not in {row.category for row in sharded_report.categories}


def test_collectives_of_real_devices(sharded_report):
    """The gradients' reduction is found by its opcode, with its bytes."""
    assert {row.opcode for row in sharded_report.collectives} == {"all-reduce"}
    assert all(row.num_bytes for row in sharded_report.collectives)


def test_reduction_of_gradients_has_its_own_scope(sharded_report):
    """What the devices spend on adding up gradients is no time of the layer whose gradients they are."""
    collectives = {row.scope for row in sharded_report.ops if row.category == "collective"}
    assert "gradient_sync" in collectives
    assert not any(row.phase == "backward" for row in sharded_report.scopes if row.scope == "gradient_sync")


def test_shares_sum_to_the_busy_time(sharded_report):
    """Scopes and executions sum to what the devices were busy with the program."""
    busy = sharded_report.coverage.busy_s
    assert sum(row.busy_s for row in sharded_report.scopes) == pytest.approx(busy)
    assert sharded_report.runs.busy_s.sum() == pytest.approx(busy)


def test_heavier_scope_has_a_larger_share(tmp_path):
    """Work that is done eight times as often in one scope than in another shows.

    Each takes milliseconds, so that a core which another program has for a while changes little.
    """

    def loss(weights, x):
        with jax.named_scope("light"):
            x = jnp.tanh(x @ weights[0])
        with jax.named_scope("heavy"):
            for index in range(8):
                x = jnp.tanh(x @ weights[1] + jnp.float32(index))
        return x.sum()

    capture(loss, jnp.ones((2, 512, 512)) * 0.01, jnp.ones((512, 512)), tmp_path)
    shares = {"light": 0.0, "heavy": 0.0}
    for row in analyse_trace(tmp_path).scopes:
        if row.scope in shares:
            shares[row.scope] += row.share
    assert shares["heavy"] > 2 * shares["light"] > 0
