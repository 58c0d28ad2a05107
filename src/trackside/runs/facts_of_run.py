"""What the rules of the findings judge, from a run that was read."""

import statistics
from collections.abc import Mapping
from dataclasses import replace

from trackside.findings import FactCollector, RunFacts
from trackside.findings.facts import MAX_STEP_TIMES
from trackside.runs.logged_step_times import StepTimes
from trackside.runs.metric_table import MetricTable
from trackside.runs.row_collector import RowCollector


def collect_facts(rows: RowCollector) -> RunFacts:
    """What the rows tell, but for those of metrics. A row that lacks a field tells nothing."""
    return _collect(FactCollector(), rows)


def facts_for_rules(rows: RowCollector, metrics: Mapping[str, MetricTable], step_times: StepTimes) -> RunFacts:
    """All that the rules judge.

    Args:
        rows: The rows of the run.
        metrics: Its metrics by mode.
        step_times: Its step times.
    """
    collector = FactCollector()
    if (epochs := metrics.get("train_epoch")) is not None:  # before the rows on what came after each epoch
        has_time = "epoch_time" in epochs
        for index in range(len(epochs)):
            collector.add(
                {
                    "kind": "metrics",
                    "mode": "train_epoch",
                    "epoch": int(epochs.epoch[index]),
                    "step": int(epochs.step[index]),
                    "values": {"epoch_time": float(epochs["epoch_time"][index])} if has_time else {},
                }
            )
    clean_s = step_times.seconds[step_times.clean][-MAX_STEP_TIMES:]
    return replace(_collect(collector, rows), step_time_s=statistics.median(clean_s.tolist()) if len(clean_s) else None)


def _collect(collector: FactCollector, rows: RowCollector) -> RunFacts:
    for row in rows.rows:
        try:
            collector.add(row)
        except (AttributeError, KeyError, TypeError, ValueError):  # of an older format
            continue
    return collector.facts()
