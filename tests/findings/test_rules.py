"""All rules together."""

import logging
import subprocess
import sys

from tests.findings.made_up import capture_row, compile_row, leak_row, run_with, timer
from trackside.findings import RULES, Finding, RunFacts, find


def odd_batch(facts: RunFacts) -> Finding | None:
    """A user's rule."""
    if facts.batch_size is None or facts.batch_size % 8 == 0:
        return None
    return Finding("odd_batch", "info", f"batches of {facts.batch_size}", {}, "use a multiple of 8")


def broken(facts: RunFacts) -> Finding | None:
    raise KeyError("no such thing")


def test_most_severe_first():
    """Findings come by severity, those of one severity in the order of the rules."""
    facts = run_with({"data_wait": 30.0, "validation": 55.0, "callback/A": 10.0}, busy_s=20.0, idle={"data_wait": 10.0})
    found = [(finding.severity, finding.id) for finding in find(facts)]
    assert found == [("severe", "validation_dominates"), ("warning", "input_bound"), ("warning", "callback_dominates")]


def test_nothing_measured_nothing_found():
    """A run of which nothing is known has no findings."""
    assert find(RunFacts()) == []


def test_rules_of_users():
    """A rule is added by passing it with the others, or alone."""
    facts = RunFacts(batch_size=30)
    assert find(facts) == []
    assert [finding.id for finding in find(facts, rules=(*RULES, odd_batch))] == ["odd_batch"]
    assert [finding.id for finding in find(facts, rules=[odd_batch])] == ["odd_batch"]


def test_rule_that_raises_is_left_out(caplog):
    """A rule that raises is named in the log, and the others are heard."""
    with caplog.at_level(logging.WARNING):
        found = find(RunFacts(batch_size=30), rules=[broken, odd_batch])
    assert [finding.id for finding in found] == ["odd_batch"]
    assert "the rule broken failed" in caplog.text


def test_no_rule_raises_on_whatever_is_missing(caplog):
    """Every rule copes with facts of which any one kind is all there is."""
    facts = [
        run_with({}),
        run_with({}, wall_s=0.0, num_steps=0),
        RunFacts(compiles=[compile_row(), compile_row(num_recompiles=1)]),
        RunFacts(captures=[capture_row({}), capture_row({"other": 1.0}, num_steps=None)]),
        RunFacts(leaks=[leak_row()]),
        RunFacts(timers={"mine": timer(1.0)}),
    ]
    with caplog.at_level(logging.WARNING):
        for one in facts:
            find(one)
    assert not caplog.records


def test_it_works_without_jax():
    """Findings are made on machines without jax: importing and using the package does not load it."""
    code = "import sys; from trackside.findings import RunFacts, find; find(RunFacts()); print('jax' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
