"""Traces that JAX takes on this machine of programs whose scopes the compiler puts into one kernel.

Shares inside of a kernel come from the program, not from the clock, so that they are the same in each capture.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.profiler import ProfileOptions

from trackside.trace import TraceReport, analyse_trace

pytestmark = pytest.mark.usefixtures("no_compile_cache")

COSTS = {"a": 1, "b": 2, "c": 4, "d": 8}


def doubling(x):
    with jax.named_scope("a"):
        x = jnp.tanh(x)
    with jax.named_scope("b"):
        x = jnp.tanh(jnp.tanh(x))
    with jax.named_scope("c"):
        for _ in range(4):
            x = jnp.tanh(x)
    with jax.named_scope("d"):
        for _ in range(8):
            x = jnp.tanh(x)
    return x


def small_loop(x):
    def body(x, _):
        with jax.named_scope("a"):
            x = jnp.exp(-x)
        with jax.named_scope("b"):
            x = jnp.exp(-jnp.exp(-jnp.exp(-x)))
        return x, None

    return jax.lax.scan(body, x, None, length=20)[0]


def attention(x):
    with jax.named_scope("scores"):
        scores = jnp.einsum("qd,kd->qk", x, x)
    with jax.named_scope("softmax"):
        weights = jax.nn.softmax(scores)
    with jax.named_scope("values"):
        return weights @ x


def branches(x):
    def heavy(x):
        with jax.named_scope("heavy"):
            x = jnp.tanh(jnp.tanh(jnp.tanh(x)))
        with jax.named_scope("light"):
            return jnp.tanh(x)

    return jax.lax.cond(x.sum() > 0, heavy, lambda x: x, x)


PROGRAMS = {doubling: (64, 128), small_loop: (8,), attention: (64, 32), branches: (64, 128)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One trace of all programs."""
    folder = tmp_path_factory.mktemp("fused")
    calls = [(jax.jit(function), jnp.full(size, 0.3)) for function, size in PROGRAMS.items()]
    jax.block_until_ready([call(x) for call, x in calls])
    options = ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        for _ in range(3):
            jax.block_until_ready([call(x) for call, x in calls])
    return folder


def shares_of(report: TraceReport) -> dict[str, float]:
    shares: dict[str, float] = {}
    for row in report.scopes:
        name = row.scope.split("/")[0]
        shares[name] = shares.get(name, 0.0) + row.share
    return shares


def test_four_scopes_in_one_kernel_have_their_shares(folder):
    """Scopes that cost 1:2:4:8 are shown as that, by scope and by line, and it is said that this is estimated."""
    report = analyse_trace(folder, program="jit_doubling")
    total = sum(COSTS.values())
    assert shares_of(report) == pytest.approx({name: cost / total for name, cost in COSTS.items()}, abs=0.03)
    by_line = [row.share for row in sorted(report.sources, key=lambda row: row.line) if row.file == __file__]
    assert by_line == pytest.approx([cost / total for cost in COSTS.values()], abs=0.03)
    assert report.coverage.estimated_share == pytest.approx(1.0)
    assert report.coverage.unsplit_s == 0


def test_a_small_loop_that_is_one_kernel_is_not_lost(folder):
    """The time of a loop is that of its body's scopes, 1:3, whether its operations have events or not."""
    shares = shares_of(analyse_trace(folder, program="jit_small_loop"))
    assert shares["b"] / shares["a"] == pytest.approx(3.0, rel=0.2)


def test_a_product_and_what_is_fused_to_it_are_told_apart(folder):
    """Of attention each scope has some time, though the scores and their maximum may be one kernel."""
    report = analyse_trace(folder, program="jit_attention")
    shares = shares_of(report)
    assert {"scores", "softmax", "values"} <= shares.keys()
    assert min(shares["scores"], shares["softmax"], shares["values"]) > 0.01


def test_the_branch_that_was_taken_has_its_scopes(folder):
    """Inside of a conditional, a kernel's time is split, too."""
    shares = shares_of(analyse_trace(folder, program="jit_branches"))
    assert shares["heavy"] / shares["light"] == pytest.approx(3.0, rel=0.2)


def test_a_report_is_read_back_with_its_estimates(folder):
    """What was split is kept through plain values."""
    report = analyse_trace(folder, program="jit_doubling")
    assert TraceReport.from_dict(report.to_dict()) == report
