"""The rules on what the loop does instead of steps: what provokes each, and what must not."""

from dataclasses import replace

import pytest

from tests.findings.made_up import compile_row, epochs_with, first, run_with
from trackside.findings import RunFacts, ToolFacts
from trackside.findings.pause_rules import (
    callback_dominates,
    callback_stalls,
    checkpointing_dominates,
    logging_too_often,
    slow_logging_tool,
    validation_dominates,
)

LOGGING = run_with({"logging": 10.0}, log_every_n_steps=5)


@pytest.mark.parametrize(
    ("rule", "part", "least_s", "severe_s"),
    [
        (logging_too_often, "logging", 5.0, 25.0),
        (validation_dominates, "validation", 30.0, 50.0),
        (checkpointing_dominates, "checkpointing", 10.0, 40.0),
        (callback_dominates, "callback/X", 10.0, 40.0),
    ],
)
def test_edges_of_parts(rule, part, least_s, severe_s):
    """A part of the wall is a warning from its threshold on, severe from the second, and nothing below."""
    seconds = (least_s - 0.1, least_s, severe_s - 0.1, severe_s)
    findings = [first(rule(run_with({part: part_s}))) for part_s in seconds]
    assert [finding and finding.severity for finding in findings] == [None, "warning", "warning", "severe"]


@pytest.mark.parametrize(("every", "logging_s", "expected"), [(5, 10.0, "50"), (1, 30.0, "50"), (20, 6.0, "200")])
def test_logging_advice_has_a_cadence(every, logging_s, expected):
    """The advised cadence brings logging down to about a hundredth, as a round number."""
    finding = logging_too_often(run_with({"logging": logging_s}, log_every_n_steps=every))
    assert finding is not None
    assert f"log_every_n_steps from {every} to {expected}," in finding.advice


def test_cost_of_a_log_row():
    """The evidence says what a row costs: much tells of a slow tool, little of too many rows."""
    finding = logging_too_often(LOGGING)
    assert finding is not None
    assert finding.evidence["logging_per_row_s"] == pytest.approx(10.0 / 200)


def test_logging_without_a_known_cadence():
    """Logging is found where the cadence is not known, with advice that names no number."""
    finding = logging_too_often(run_with({"logging": 10.0}))
    assert finding is not None
    assert "raise log_every_n_steps," in finding.advice


@pytest.mark.parametrize(("number", "is_found"), [(0, True), (1, False), (2, False), (3, True)])
def test_one_checkpoint_is_no_habit(number, is_found):
    """The first sets things up, and says nothing about the next; where none was counted, the ledger alone counts."""
    facts = replace(run_with({"checkpointing": 30.0}), num_checkpoints=number)
    assert (checkpointing_dominates(facts) is not None) == is_found


def test_saving_that_takes_no_time_worth_speaking_of_is_a_note() -> None:
    """A short training that saves after each epoch, as by default, gets a note on saving less, and no warning."""
    facts = replace(run_with({"checkpointing": 2.0}, wall_s=4.0), num_checkpoints=20)
    finding = checkpointing_dominates(facts)
    assert finding is not None
    assert finding.severity == "info"
    assert finding.title == "saving checkpoints takes 50 % of the time, 2 s in all"
    assert "CheckpointConfig(every_n_epochs=10)" in finding.advice
    assert finding.evidence["checkpointing_per_save_s"] == pytest.approx(0.1)


def test_checkpoints_that_follow_validations_are_told_so() -> None:
    """Where each of many validations saves, fewer epochs with a checkpoint would change nothing."""
    facts = replace(run_with({"checkpointing": 50.0}), num_checkpoints=150, check_val_every_n_steps=2)
    finding = checkpointing_dominates(facts)
    assert finding is not None
    assert finding.advice == "checkpoints follow validations: validate less often (check_val_every_n_steps=2)"


def test_advice_on_logging_fits_a_loop_of_your_own() -> None:
    """There, `run.log` says how often."""
    finding = logging_too_often(replace(run_with({"logging": 20.0}), is_own_loop=True))
    assert finding is not None
    assert finding.advice == "log less often, as with run.log(..., every=20)"


def test_advice_on_saving_fits_a_loop_of_your_own() -> None:
    """There, no callback saves."""
    finding = checkpointing_dominates(replace(run_with({"checkpointing": 50.0}), is_own_loop=True))
    assert finding is not None
    assert finding.severity == "severe"
    assert "CheckpointConfig" not in finding.advice


def test_advice_on_validation_fits_a_loop_of_your_own() -> None:
    """There, the trainer's options do not exist."""
    finding = validation_dominates(replace(run_with({"validation": 60.0}), is_own_loop=True))
    assert finding is not None
    assert finding.advice == "validate less often, or on fewer or larger batches"


def test_callbacks_are_named():
    """Each callback that takes long is a finding of its own, by name; others are not told."""
    findings = list(callback_dominates(run_with({"callback/A": 15.0, "callback/B": 45.0, "callback/C": 1.0})))
    assert [(finding.subject, finding.severity) for finding in findings] == [("A", "warning"), ("B", "severe")]
    assert findings[1].title == "the callback B takes 45 % of the time"


def test_compiling_the_evaluation_is_not_held_against_validation():
    """A validation that is mostly the compile of its step is none; one that takes long without it still is."""
    rows = [compile_row("train_step"), compile_row("eval_step", compile_s=50.0)]
    mostly_compile = replace(run_with({"validation": 59.0, "compile": 1.0}), compiles=rows)
    assert validation_dominates(mostly_compile) is None
    finding = validation_dominates(replace(run_with({"validation": 85.0, "compile": 1.0}), compiles=rows))
    assert finding is not None
    assert finding.severity == "severe"
    assert finding.title == "validation takes 71 % of the time, compiling aside"
    assert finding.evidence["compile_in_validation_s"] == pytest.approx(50.3)


def test_compiling_does_not_hide_a_validation_at_each_step():
    """A quarter of the run, but most of what is not compiling: it is found."""
    finding = validation_dominates(run_with({"validation": 2.6, "compile": 6.7}, wall_s=10.0, num_steps=60))
    assert finding is not None
    assert finding.severity == "severe"
    assert finding.evidence["validation_share"] == pytest.approx(2.6 / 3.3)


@pytest.mark.parametrize("part", ["setup", "initial_state", "restoring", "drain/WandBLogger"])
def test_what_happens_once_does_not_dilute(part):
    """So it is with everything else that comes with the process, and not with its steps."""
    assert validation_dominates(run_with({"validation": 20.0, part: 60.0})) is not None


def test_validation_advice_has_the_cadence():
    """It has the number of steps that the config has; without one, both settings."""
    finding = validation_dominates(replace(run_with({"validation": 60.0}), check_val_every_n_steps=1))
    assert finding is not None
    assert "after every step" in finding.advice
    finding = validation_dominates(replace(run_with({"validation": 60.0}), check_val_every_n_steps=-1))
    assert finding is not None
    assert "check_val_every_n_epoch" in finding.advice


def test_compiling_inside_a_callback_is_not_held_against_it():
    """A callback that compiles a function, or many single operations, is not one that takes long."""
    calling = run_with({"callback/Sampler": 15.0, "compile": 1.0})
    assert first(callback_dominates(calling)) is not None
    rows = [compile_row("train_step"), compile_row("sample", compile_s=10.0)]
    assert first(callback_dominates(replace(calling, compiles=rows))) is None
    assert first(callback_dominates(replace(calling, operation_compile_s=10.0))) is None


def test_compiles_of_other_threads_excuse_nobody():
    """What another thread compiles takes no time from the loop's callbacks."""
    rows = [compile_row("train_step"), compile_row("sample", compile_s=10.0, thread="Thread-1")]
    facts = replace(run_with({"callback/Sampler": 15.0, "compile": 1.0}), compiles=rows)
    assert first(callback_dominates(facts)) is not None


def test_a_ledger_that_counts_the_compile_elsewhere_takes_nothing_from_validation():
    """Where the ledger has all compiles under compiling, validation is what it shows."""
    rows = [compile_row("train_step"), compile_row("eval_step", compile_s=30.0)]
    finding = validation_dominates(replace(run_with({"validation": 35.0, "compile": 31.3}), compiles=rows))
    assert finding is not None
    assert "compile_in_validation_s" not in finding.evidence


STALLING = replace(run_with({"callback/Uploader": 6.0}), step_time_s=0.01, longest_s={"callback/Uploader": 2.1})


def test_a_callback_that_stalls_now_and_then_is_named():
    """It takes little in all, but much at once."""
    finding = first(callback_stalls(STALLING))
    assert finding is not None
    assert finding.subject == "Uploader"
    assert (
        finding.title == "the callback Uploader stops the training for up to 2.1 s at a time, 6.0 % of the time in all"
    )


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(replace(STALLING, longest_s={"callback/Uploader": 0.4}), id="short calls"),
        pytest.param(replace(STALLING, step_time_s=0.2), id="steps that take as long"),
        pytest.param(replace(STALLING, longest_s={}), id="a run of an earlier version"),
        pytest.param(replace(STALLING, ledger=run_with({"callback/Uploader": 4.9}).ledger), id="little in all"),
        pytest.param(replace(STALLING, ledger=run_with({"callback/Uploader": 11.0}).ledger), id="it dominates anyway"),
    ],
)
def test_not_every_callback_stalls(facts):
    """It takes a long call, many steps' worth, and a share of the time; one that dominates is reported as that."""
    assert first(callback_stalls(facts)) is None


def test_a_callback_that_dominates_says_how_long_it_stalls():
    """The evidence has its longest call."""
    facts = replace(run_with({"callback/A": 30.0}), longest_s={"callback/A": 3.0})
    assert first(callback_dominates(facts)).evidence["longest_stall_s"] == 3.0


def behind(**tool) -> RunFacts:
    """A run of 100 seconds that logs every 10 of 1000 steps to a tool."""
    tools = {"WandBLogger": ToolFacts(**tool)}
    return replace(run_with({}, log_every_n_steps=10), tools=tools)


def test_a_tool_that_the_end_waits_for_is_named():
    """With how long that took, and a cadence at which it would have kept up."""
    finding = first(slow_logging_tool(behind(num_waiting=60, closing_s=50.0)))
    assert finding is not None
    assert finding.subject == "WandBLogger"
    assert finding.severity == "severe"
    assert "waited 50 s for it at the end" in finding.title
    assert "raise log_every_n_steps from 10 to 50" in finding.advice


def test_rows_that_a_tool_never_got_are_reported():
    """Also where it closed in no time."""
    finding = first(slow_logging_tool(behind(num_dropped=3)))
    assert finding is not None
    assert finding.severity == "warning"
    assert finding.title == "WandBLogger cannot keep up with the log: 3 rows never reached it"


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param({"num_waiting": 2, "closing_s": 20.0}, id="slow to close, but not behind"),
        pytest.param({"num_waiting": 500, "closing_s": 0.9}, id="behind, but fast"),
        pytest.param({"num_waiting": 500, "closing_s": 3.0}, id="nothing in a run of its length"),
    ],
)
def test_a_tool_that_closes_is_not_slow(tool):
    """Every tool takes a moment to close."""
    assert first(slow_logging_tool(behind(**tool))) is None


def test_the_share_of_a_tool_is_of_a_run_that_includes_it():
    """Whether the ledger has the wait for it or not, as in earlier versions."""
    without = behind(num_waiting=60, closing_s=25.0)
    parts = {"drain/WandBLogger": 25.0}
    has_it = replace(without, ledger=run_with(parts, wall_s=125.0).ledger)
    shares = [first(slow_logging_tool(facts)).evidence["closing_share"] for facts in (without, has_it)]
    assert shares == pytest.approx([0.2, 0.2])


def test_rows_of_short_epochs_are_not_those_of_steps():
    """Where most rows are those of epochs, another cadence of steps would not help."""
    facts = replace(run_with({"logging": 10.0}, log_every_n_steps=100), epochs=epochs_with(0.0, 200).epochs)
    finding = logging_too_often(facts)
    assert finding is not None
    assert "steps_per_epoch" in finding.advice
