"""The rules, and what they find in a run.

A rule is a pure function of the facts. One that lacks evidence finds nothing.
"""

import logging
from collections.abc import Callable, Iterable

from trackside.findings.capture_rules import low_coverage, optimizer_share_high, recompute_share
from trackside.findings.compile_rules import ragged_last_batch, recompiling, slow_compile
from trackside.findings.facts import RunFacts
from trackside.findings.finding import SEVERITIES, Finding
from trackside.findings.loop_rules import dispatch_bound, garbage_collection, idle_after_epoch, input_bound
from trackside.findings.memory_rules import memory_growth, memory_not_reused
from trackside.findings.own_loop_rules import own_code_dominates, part_dominates, step_not_compiled, waits_between_steps
from trackside.findings.pause_rules import (
    callback_dominates,
    callback_stalls,
    checkpointing_dominates,
    logging_too_often,
    slow_logging_tool,
    validation_dominates,
)
from trackside.findings.silencing import split_silenced
from trackside.findings.timer_rules import high_data_batch_production, high_loss_fn_computation, high_make_step_total

LOGGER = logging.getLogger(__name__)

Rule = Callable[[RunFacts], Finding | Iterable[Finding] | None]
"""What a rule is: from the facts to what it finds."""

RULES: tuple[Rule, ...] = (
    input_bound,
    dispatch_bound,
    step_not_compiled,
    recompiling,
    slow_compile,
    callback_dominates,
    callback_stalls,
    checkpointing_dominates,
    validation_dominates,
    logging_too_often,
    slow_logging_tool,
    waits_between_steps,
    part_dominates,
    own_code_dominates,
    idle_after_epoch,
    garbage_collection,
    memory_growth,
    memory_not_reused,
    ragged_last_batch,
    optimizer_share_high,
    recompute_share,
    high_data_batch_production,
    high_make_step_total,
    high_loss_fn_computation,
    low_coverage,
)
"""The rules, in the order in which findings of the same severity are reported."""


def find(facts: RunFacts, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """What the rules find in a run, the most severe first, without what the run's config silences.

    A rule that raises is reported in the log and skipped: no verdict is worth ending a training.

    Args:
        facts: The measurements.
        rules: The rules; `(*RULES, my_rule)` adds one.
    """
    return split_silenced(find_all(facts, rules), facts.silenced)[0]


def find_all(facts: RunFacts, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """The same, with those that the run's config silences."""
    findings = [finding for rule in rules for finding in _apply(rule, facts)]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _apply(rule: Rule, facts: RunFacts) -> list[Finding]:
    try:
        found = rule(facts)
        if found is None:
            return []
        return [found] if isinstance(found, Finding) else list(found)
    except Exception:
        LOGGER.warning("the rule %s failed and was skipped", getattr(rule, "__name__", rule), exc_info=True)
        return []
