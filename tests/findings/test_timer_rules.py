"""The rules on timers: the guide's performance analysis."""

import pytest

from tests.findings.made_up import timer
from trackside.clock import ManualClock
from trackside.findings import RunFacts
from trackside.findings.timer_rules import high_data_batch_production, high_loss_fn_computation, high_make_step_total
from trackside.profiling import TrainingProfiler

RULES = [high_data_batch_production, high_loss_fn_computation, high_make_step_total]


def timed(data_s: float, step_s: float, loss_s: float | None = None, step: str = "make_step_total") -> RunFacts:
    timers = {"data_batch_production": timer(data_s), step: timer(step_s)}
    if loss_s is not None:
        timers["loss_fn_computation"] = timer(loss_s, count=2)
    return RunFacts(timers=timers)


@pytest.mark.parametrize(
    ("rule", "facts", "severity", "advice"),
    [
        (high_data_batch_production, timed(0.7, 0.3), "severe", ["num_workers", "pin_memory=True", "offline"]),
        (high_loss_fn_computation, timed(0.1, 0.9, 0.8), "info", ["complexity", "mixed precision", "compilation"]),
        (high_make_step_total, timed(0.1, 0.9, 0.3), "warning", ["components", "batch size", "unnecessary"]),
    ],
)
def test_the_guides_three(rule, facts, severity, advice):
    """Each of the guide's three is found, under its own name, with the guide's advice."""
    finding = rule(facts)
    assert (finding.id, finding.severity) == (rule.__name__, severity)
    assert all(words in finding.advice for words in advice)


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        (high_data_batch_production, timed(0.1, 0.9, 0.8)),
        (high_loss_fn_computation, timed(0.7, 0.3, 0.2)),
        (high_loss_fn_computation, timed(0.1, 0.9)),
        (high_make_step_total, timed(0.1, 0.9, 0.8)),
        (high_make_step_total, timed(0.5, 0.5, 0.1)),
    ],
)
def test_silent_where_it_is_not_high(rule, facts):
    """What takes its usual share, or was not sampled yet, is no finding."""
    assert rule(facts) is None


@pytest.mark.parametrize(("data_s", "expected"), [(0.299, None), (0.3, "warning"), (0.599, "warning"), (0.6, "severe")])
def test_edges_of_data(data_s, expected):
    """Batches are a finding from three tenths of an iteration on, severe from six."""
    finding = high_data_batch_production(timed(data_s, 1 - data_s))
    assert (finding and finding.severity) == expected


@pytest.mark.parametrize(("loss_s", "is_found"), [(0.599, False), (0.6, True)])
def test_edge_of_loss(loss_s, is_found):
    """The loss is told from six tenths of an iteration on."""
    assert (high_loss_fn_computation(timed(0.1, 0.9, loss_s)) is not None) == is_found


@pytest.mark.parametrize(
    ("step_s", "loss_s", "expected"),
    [(0.8, 0.55, "warning"), (0.8, 0.57, None), (0.79, 0.3, None), (0.8, None, "info")],
)
def test_edges_of_the_step(step_s, loss_s, expected):
    """A step is a warning where the loss is less than seven tenths of it, information where that was not sampled."""
    finding = high_make_step_total(timed(1 - step_s, step_s, loss_s))
    assert (finding and finding.severity) == expected


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "timers",
    [
        pytest.param({}, id="nothing timed"),
        pytest.param({"data_batch_production": timer(1.0), "loss_fn_computation": timer(1.0)}, id="no steps"),
        pytest.param({"make_step_total": timer(1.0), "loss_fn_computation": timer(0.1)}, id="no batches"),
        pytest.param({"data_batch_production": timer(1.0, 19), "make_step_total": timer(1.0)}, id="few batches"),
        pytest.param({"data_batch_production": timer(1.0), "make_step_total": timer(1.0, 19)}, id="few steps"),
        pytest.param({"data_batch_production": timer(0.0), "make_step_total": timer(0.0)}, id="no time"),
    ],
)
def test_silent_without_evidence(rule, timers):
    """Without twenty batches and steps there is no iteration to judge."""
    assert rule(RunFacts(timers=timers)) is None


def test_pytorch_steps_count():
    """Where a step is timed as `training_step`, that is the step."""
    finding = high_data_batch_production(timed(0.5, 0.5, step="training_step"))
    assert finding is not None
    assert "training_step_s" in finding.evidence


def test_summary_of_a_profiler_is_understood():
    """What `TrainingProfiler.get_summary` gives can be judged as it is."""
    clock = ManualClock()
    profiler = TrainingProfiler(log_to_wandb=False, clock=clock)
    for _ in range(20):
        for operation, seconds in (("data_batch_production", 0.03), ("make_step_total", 0.01)):
            with profiler.time(operation):
                clock.advance(seconds)
    finding = high_data_batch_production(RunFacts(timers=profiler.get_summary()))
    assert finding is not None
    assert finding.evidence["data_share"] == pytest.approx(0.75)
