"""The rules on captures."""

from dataclasses import replace

import pytest

from tests.findings.made_up import capture_row
from trackside.findings import RunFacts
from trackside.findings.capture_rules import low_coverage, optimizer_share_high, recompute_share

HEALTHY = {"forward": 30.0, "backward": 60.0, "optimizer": 6.0, "other": 4.0}


def captured(*rows: dict, platform: str | None = None) -> RunFacts:
    return RunFacts(captures=list(rows), platform=platform)


def phases(**seconds: float) -> dict[str, float]:
    """A hundred seconds, with what is left in the forward pass."""
    return {**seconds, "forward": 100.0 - sum(seconds.values())}


@pytest.mark.parametrize(
    ("rule", "phase", "edges"),
    [
        (optimizer_share_high, "optimizer", {24.9: None, 25.0: "warning", 49.9: "warning", 50.0: "severe"}),
        (recompute_share, "recompute", {9.9: None, 10.0: "info", 29.9: "info", 30.0: "warning"}),
    ],
)
def test_edges_of_phases(rule, phase, edges):
    """A phase is a finding from its threshold on, and weighs more from the second."""
    findings = [rule(captured(capture_row(phases(**{phase: busy_s})))) for busy_s in edges]
    assert [finding and finding.severity for finding in findings] == list(edges.values())


def test_optimizer_share_has_its_cost():
    """The evidence has the optimizer's time per step."""
    finding = optimizer_share_high(captured(capture_row(phases(optimizer=40.0), num_steps=10)))
    assert finding is not None
    assert finding.title == "the optimizer takes 40 % of device time"
    assert finding.evidence["optimizer_per_step_s"] == pytest.approx(4.0)


@pytest.mark.parametrize("rule", [optimizer_share_high, recompute_share, low_coverage])
@pytest.mark.parametrize("rows", [[], [capture_row(HEALTHY)]], ids=["no captures", "a healthy step"])
def test_silent_on_what_is_usual(rule, rows):
    """Neither the absence of captures nor a usual step is a finding."""
    assert rule(captured(*rows)) is None


@pytest.mark.parametrize(("rule", "phase"), [(optimizer_share_high, "optimizer"), (recompute_share, "recompute")])
@pytest.mark.parametrize("num_steps", [None, 4])
def test_too_few_steps_are_no_evidence(rule, phase, num_steps):
    """The shares of a few steps, or of an unknown number, are no verdict."""
    assert rule(captured(capture_row(phases(**{phase: 60.0}), num_steps=num_steps))) is None


def test_captures_are_pooled():
    """Short captures count together, by their time."""
    rows = [capture_row(phases(optimizer=share), num_steps=3) for share in (20.0, 40.0)]
    finding = optimizer_share_high(captured(*rows))
    assert finding is not None
    assert finding.evidence["optimizer_share"] == pytest.approx(0.3)
    assert finding.evidence["num_captured_steps"] == 6


@pytest.mark.parametrize("rule", [optimizer_share_high, recompute_share, low_coverage])
def test_captures_without_tables_do_not_count(rule):
    """A capture that failed, or whose tables cannot be read, is skipped."""
    bad = capture_row({"optimizer": 50.0, "recompute": 50.0}, resolved=0.1)
    failed, damaged = {**bad, "report": None, "error": "the disk is full"}, {**bad, "report": {"scopes": 3}}
    assert rule(captured(failed, damaged)) is None


@pytest.mark.parametrize(("resolved", "is_found"), [(0.81, False), (0.8, False), (0.79, True)])
def test_edges_of_low_coverage(resolved, is_found):
    """More than a fifth that could not be attributed is told, for information."""
    finding = low_coverage(captured(capture_row(HEALTHY, resolved=resolved)))
    assert (finding is not None and finding.severity == "info") == is_found


def test_low_coverage_tells_of_command_buffers_on_gpus_only():
    """What hides operations on GPUs is no advice elsewhere."""
    facts = captured(capture_row(HEALTHY, resolved=0.5), platform="cpu")
    on_cpu, on_gpu = low_coverage(facts), low_coverage(replace(facts, platform="gpu"))
    assert on_cpu is not None
    assert on_gpu is not None
    assert "command buffers" not in on_cpu.advice
    assert "command buffers" in on_gpu.advice
