"""What the rules of the findings judge, from a run that was read."""

import statistics
from dataclasses import replace

from trackside.findings import RunFacts, facts_from_events
from trackside.findings.fact_collector import MAX_STEP_TIMES
from trackside.runs.logged_step_times import StepTimes
from trackside.runs.row_collector import RowCollector


def facts_of_rows(rows: RowCollector) -> RunFacts:
    """The facts of all rows that were kept, in the order in which they were written, over all legs.

    Rows of `train` are columns here, so the step time is known only if the rows `ledger` have it.
    """
    return facts_from_events(rows.rows)


def with_step_time(facts: RunFacts, step_times: StepTimes) -> RunFacts:
    """The facts, with the median of the clean step times for a run whose rows `ledger` do not have it yet.

    Args:
        facts: The facts of a run.
        step_times: Its step times.
    """
    if facts.step_time_s is not None:
        return facts
    clean_s = step_times.seconds[step_times.clean][-MAX_STEP_TIMES:]
    return replace(facts, step_time_s=statistics.median(clean_s.tolist()) if len(clean_s) else None)
