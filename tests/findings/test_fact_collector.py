"""Facts from event rows."""

from typing import Any

import pytest

from tests.findings.made_up import capture_row, compile_row, leak_row, make_ledger, timer
from trackside.events import EventWriter, read_events
from trackside.findings import EpochFacts, FactCollector, RunFacts, ToolFacts, facts_from_events, find
from trackside.findings.fact_collector import MAX_COMPILES, MAX_EPOCHS


def ledger_row(step: int, parts: dict[str, float], **totals: Any) -> dict[str, Any]:
    return {"kind": "ledger", "t": 0.0, "step": step, **make_ledger(parts, **totals).to_dict()}


def pause_row(epoch: int, parts: dict[str, float]) -> dict[str, Any]:
    """What came between an epoch and the next."""
    return {"kind": "between_epochs", "epoch": epoch, "step": 100 * epoch, "parts": parts}


def leg_row(step: int = 0) -> dict[str, Any]:
    return {"kind": "leg", "leg": 1, "step": step, "epoch": 0, "train_time_s": 0.0}


def epoch_row(epoch: int, step: int, time_s: float = 10.0) -> dict[str, Any]:
    values = {"loss_mean": 1.0, "epoch_time": time_s}
    return {"kind": "metrics", "step": step, "epoch": epoch, "mode": "train_epoch", "values": values}


def metrics_row(step: int, mode: str = "train", **values: float) -> dict[str, Any]:
    return {"kind": "metrics", "step": step, "epoch": 1, "mode": mode, "values": values}


def test_no_rows_no_facts():
    """Without rows nothing is known."""
    assert facts_from_events([]) == RunFacts()


def test_other_rows_are_passed_over():
    """Rows that tell nothing of the run's time change nothing."""
    rows = [
        {"kind": "format", "version": 1},
        {"kind": "stop", "reason": "enough", "step": 3},
        {"kind": "status", "status": "success"},
    ]
    assert facts_from_events(rows) == RunFacts()


def test_facts_of_an_event_file(tmp_path):
    """What a writer puts into a file comes out as facts."""
    path = tmp_path / "events-00000.jsonl"
    writer = EventWriter(path)
    totals = make_ledger({"data_wait": 60.0}, busy_s=30.0, idle={"data_wait": 55.0}, gc_s=1.0)
    writer.write("environment", devices=["cpu:0", "cpu:1"], backend="cpu")
    writer.write("config", config={"trainer": {"logger": {"log_every_n_steps": 50}}})
    writer.write("config", config={"model": {}})
    writer.write("leg", leg=1, step=0, epoch=0, train_time_s=0.0)
    writer.write(**compile_row())
    writer.write(**compile_row("add", is_operation=True))
    for step, step_time in ((50, 0.1), (100, 0.3), (150, 0.2)):
        writer.write_metrics({"loss_mean": 1.0, "step_time": step_time}, step, 1, "train")
    writer.write_metrics({"epoch_time": 9.0}, 150, 1, "train_epoch")
    writer.write(**capture_row({"forward": 1.0}))
    writer.write(**leak_row())
    writer.write("profiling", step=150, operations={"make_step_total": timer(0.1)}, not_sampled=[])
    writer.write("ledger", step=150, **totals.to_dict())
    writer.close()
    facts = facts_from_events(read_events(path))
    assert facts.ledger == totals
    assert facts.step_time_s == 0.2
    assert facts.log_every_n_steps == 50
    assert facts.epochs == [EpochFacts(1, 150, 9.0)]
    assert [row["function"] for row in facts.compiles] == ["train_step"]
    assert facts.captures[0]["report"]["phases"] == {"forward": 1.0}
    assert facts.leaks[0]["name"] == "other live arrays"
    assert facts.timers["make_step_total"]["avg_time"] == 0.1
    assert (facts.num_devices, facts.platform) == (2, "cpu")


def test_the_last_ledger_of_a_leg_counts():
    """Rows of the ledger are totals: a later one replaces the one before."""
    rows = [leg_row(), ledger_row(10, {}, wall_s=5.0, num_steps=10), ledger_row(20, {}, wall_s=9.0, num_steps=20)]
    ledger = facts_from_events(rows).ledger
    assert ledger is not None
    assert (ledger.wall_s, ledger.num_steps) == (9.0, 20)


def test_legs_add_up():
    """The totals of legs add up part by part, whatever parts each has."""
    rows = [
        leg_row(),
        ledger_row(10, {"data_wait": 1.0}, wall_s=5.0, num_steps=10, busy_s=2.0, idle={"data_wait": 1.0}, gc_s=0.1),
        leg_row(10),
        ledger_row(30, {"logging": 2.0}, wall_s=7.0, num_steps=20, busy_s=4.0, idle={"logging": 2.0}, gc_s=0.2),
    ]
    ledger = facts_from_events(rows).ledger
    assert ledger is not None
    assert (ledger.wall_s, ledger.num_steps, ledger.device_busy_s, ledger.device_idle_s) == (12.0, 30, 6.0, 3.0)
    assert (ledger.parts["data_wait"], ledger.parts["logging"]) == (1.0, 2.0)
    assert ledger.idle_by_reason == {"data_wait": 1.0, "logging": 2.0}
    assert ledger.gc_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"num_steps": 20, "at_peak_s": 30.0}, 0.2),
        ({"num_steps": 20, "at_peak_s": None}, None),
        ({"num_steps": 0, "at_peak_s": None, "parts": {}}, 0.1),
    ],
)
def test_utilisation_is_that_of_all_legs(second: dict[str, Any], expected: float | None):
    """It is known where each leg that made steps knows it: a training that is done, run again, takes nothing away."""
    first = {"kind": "ledger", "wall_s": 100.0, "parts": {"device_wait": 100.0}, "num_steps": 10, "at_peak_s": 10.0}
    ledger = facts_from_events([leg_row(), first, leg_row(10), {**first, **second}]).ledger
    assert ledger is not None
    assert ledger.mfu == expected
    assert ledger.mfu_range is None


def test_the_range_of_a_utilisation_is_that_of_all_legs():
    """A leg whose peak comes from a data sheet adds no spread."""
    first = {"kind": "ledger", "wall_s": 100.0, "parts": {"device_wait": 100.0}, "num_steps": 10, "at_peak_s": 10.0}
    measured = {**first, "at_peak_range_s": [8.0, 14.0]}
    both = facts_from_events([leg_row(), measured, leg_row(10), measured]).ledger
    one = facts_from_events([leg_row(), first, leg_row(10), measured]).ledger
    assert both is not None
    assert one is not None
    assert both.mfu_range == pytest.approx((0.08, 0.14))
    assert one.mfu_range == pytest.approx((0.09, 0.12))


def test_a_leg_without_ledger_keeps_the_others():
    """A leg that was killed before its first row of the ledger takes nothing away."""
    ledger = facts_from_events([leg_row(), ledger_row(10, {}, wall_s=5.0), leg_row(10)]).ledger
    assert ledger is not None
    assert ledger.wall_s == 5.0


@pytest.mark.parametrize(("parts", "expected"), [({"setup": 1.0}, ["initial state"]), ({}, [])])
def test_compiles_of_the_set_up_are_those_of_the_ledger(parts, expected):
    """What is compiled before the first leg counts if the ledger has set-up; earlier versions began it after that."""
    rows = [compile_row("initial state"), leg_row(), compile_row("train_step"), ledger_row(10, parts)]
    compiles = facts_from_events([*rows, leg_row(10), compile_row("train_step")]).compiles
    assert [row["function"] for row in compiles] == [*expected, "train_step", "train_step"]


def test_ledger_of_a_process_that_was_overtaken_does_not_count():
    """A process that evaluates what another one trains again takes nothing away from the other's leg."""
    legs = [{**leg_row(), "leg": 1}, {**leg_row(10), "leg": 2}]
    first, second = ({**ledger_row(10, {}, wall_s=wall_s), "leg": leg} for leg, wall_s in ((1, 5.0), (2, 7.0)))
    ledger = facts_from_events([legs[0], first, legs[1], second, {**first, "wall_s": 6.0}]).ledger
    assert ledger is not None
    assert ledger.wall_s == 12.0


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"device_idle_s": 2.0, "device_idle_low_s": 1.0, "device_idle_high_s": 3.0}, (1.5, 5.0)),
        ({"device_idle_s": 2.0}, (None, None)),
        ({}, (0.5, 2.0)),
    ],
)
def test_limits_of_idle_time_are_those_of_all_legs(second: dict[str, float], expected: tuple):
    """They add up over legs that observed the device; one of an earlier version, which wrote none, leaves them open."""
    limits = {"device_idle_low_s": 0.5, "device_idle_high_s": 2.0}
    first = {**ledger_row(10, {}, busy_s=3.0, idle={"other": 1.0}), **limits}
    ledger = facts_from_events([leg_row(), first, leg_row(10), {**ledger_row(20, {}), **second}]).ledger
    assert ledger is not None
    assert (ledger.device_idle_low_s, ledger.device_idle_high_s) == expected


def test_device_that_only_one_leg_observed():
    """Where one of two legs observed the device, what it saw counts."""
    rows = [leg_row(), ledger_row(10, {}, busy_s=3.0, idle={"other": 1.0}), leg_row(10), ledger_row(20, {})]
    ledger = facts_from_events(rows).ledger
    assert ledger is not None
    assert (ledger.device_busy_s, ledger.device_idle_s) == (3.0, 1.0)


def test_batch_size_is_that_of_the_ledger():
    """The mean number of examples per step is the batch size."""
    row = {**ledger_row(10, {}, num_steps=10), "num_samples": 318}
    assert facts_from_events([row]).batch_size == 32


def test_step_time_is_that_of_training():
    """Rows of validation, and rows without a step time, do not count."""
    rows = [metrics_row(1, step_time=0.1), metrics_row(2), metrics_row(3, "val", step_time=9.0)]
    assert facts_from_events(rows).step_time_s == 0.1


def test_the_ledger_knows_the_step_time_better():
    """A row of the ledger with the time of an undisturbed step goes before logged times; the newest that has it."""
    rows = [metrics_row(1, step_time=0.1), {**ledger_row(10, {}), "step_time_s": 0.2}, ledger_row(20, {})]
    assert facts_from_events(rows).step_time_s == 0.2
    assert facts_from_events([*rows, {**ledger_row(30, {}), "step_time_s": 0.3}]).step_time_s == 0.3


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "ledger", "wall_s": "long", "parts": {}},
        {"kind": "ledger", "wall_s": 1.0, "parts": [1]},
        {"kind": "leg", "step": "first"},
        {"kind": "compile", "function": 3},
        {"kind": "compile", "function": "f", "changes": [{"path": "x"}], "num_recompiles": 1},
        {"kind": "memory_leak", "name": "host"},
        {"kind": "profiling", "operations": {"a": {"count": 1}}},
        {"kind": "metrics", "mode": "train_epoch", "epoch": [1], "step": 2, "values": {}},
        {"kind": "between_epochs", "epoch": 1, "parts": 3},
        {"kind": "config", "config": [1]},
        {"kind": "environment", "devices": 3},
        {"kind": "environment", "loaders": {"train": 5, "val": {"kind": 3}}},
        {"kind": "logging_tool", "tool": "WandBLogger", "num_waiting": "many"},
        {"kind": "silence", "findings": None},
        {"kind": ["ledger"]},
    ],
)
def test_odd_rows_say_nothing(row: dict[str, Any]):
    """A row that lacks a field, or has something else in it, is skipped, and the rules judge the others."""
    facts = facts_from_events([leg_row(), row])
    assert facts == RunFacts()
    assert find(facts) == []


def test_rows_of_older_versions_have_defaults():
    """A compile that only names its function is one compile, and no rule fails on it."""
    (row,) = facts_from_events([{"kind": "compile", "function": "f"}]).compiles
    assert (row["step"], row["changes"], row["suggestion"], row["num_recompiles"]) == (None, [], "", 0)


def test_config_without_a_logger():
    """A trainer without a logger has no cadence."""
    assert facts_from_events([{"kind": "config", "config": {"trainer": {"logger": None}}}]).log_every_n_steps is None


def test_epoch_that_was_trained_again_counts_once():
    """After a resume, the last row of an epoch counts."""
    rows = [epoch_row(1, 100), epoch_row(2, 200, 5.0), epoch_row(2, 200, 7.0)]
    assert [(epoch.epoch, epoch.time_s) for epoch in facts_from_events(rows).epochs] == [(1, 10.0), (2, 7.0)]


def test_idleness_after_an_epoch():
    """What lies between an epoch and the next is the epoch's idleness, and the longest part its reason."""
    rows = [epoch_row(1, 100), pause_row(1, {"data_wait": 2.0, "other": 0.5, "callback/A": 0.5})]
    assert facts_from_events(rows).epochs == [EpochFacts(1, 100, 10.0, 3.0, "data_wait", 2.0)]


def test_end_of_training_is_not_followed_by_idleness():
    """Nothing follows the last epoch, so its idleness is not known."""
    rows = [epoch_row(1, 100), pause_row(1, {"data_wait": 2.0}), epoch_row(2, 200)]
    assert [epoch.idle_after_s for epoch in facts_from_events(rows).epochs] == [2.0, None]


def test_what_comes_between_epochs_by_design_is_no_idleness():
    """Validation, checkpoints and compilation are judged by rules of their own."""
    parts = {"validation": 5.0, "checkpointing": 3.0, "compile": 2.0, "other": 0.25}
    assert [epoch.idle_after_s for epoch in facts_from_events([epoch_row(1, 100), pause_row(1, parts)]).epochs] == [
        0.25
    ]


def test_pause_after_an_unknown_epoch_is_passed_over():
    """A pause without its epoch, as in a file that begins in between, tells nothing."""
    assert facts_from_events([pause_row(3, {"data_wait": 2.0})]) == RunFacts()


def test_memory_does_not_grow_with_the_run():
    """Of very many rows only so many are kept: the last, and of epochs the first too."""
    collector = FactCollector()
    for index in range(1, MAX_COMPILES + MAX_EPOCHS + 10):
        collector.add(compile_row(step=index))
        collector.add(epoch_row(index, 10 * index))
    facts = collector.facts()
    assert len(facts.compiles) == MAX_COMPILES
    assert len(facts.epochs) == MAX_EPOCHS
    assert (facts.epochs[0].epoch, facts.epochs[-1].epoch) == (1, MAX_COMPILES + MAX_EPOCHS + 9)


def test_facts_can_be_asked_for_at_any_time():
    """What was gathered so far stays as it is when more comes."""
    collector = FactCollector()
    collector.add(ledger_row(10, {}, wall_s=5.0))
    early = collector.facts()
    collector.add(ledger_row(20, {}, wall_s=9.0))
    collector.add(leak_row())
    assert early.ledger is not None
    assert (early.ledger.wall_s, early.leaks) == (5.0, [])


def test_what_tools_left_behind_adds_up_over_legs():
    """Each leg closes its tools; what each found is summed by tool."""
    row = {"kind": "logging_tool", "tool": "A", "num_waiting": 30, "num_dropped": 1, "closing_s": 2.0}
    assert facts_from_events([row, {**row, "tool": "B"}, row]).tools == {
        "A": ToolFacts(60, 2, 4.0),
        "B": ToolFacts(30, 1, 2.0),
    }


def test_the_longest_stall_is_that_of_all_legs():
    """Each leg knows its own; the longest counts."""
    rows = [{**ledger_row(10, {}), "longest_s": {"callback/A": 2.0}}, {"kind": "leg", "step": 10}]
    rows += [{**ledger_row(10, {}), "longest_s": {"callback/A": 1.0, "validation": 3.0}}]
    assert facts_from_events(rows).longest_s == {"callback/A": 2.0, "validation": 3.0}


def test_the_last_training_says_what_is_silenced():
    """A later leg may want to hear of what an earlier one did not."""
    rows = [{"kind": "silence", "findings": ["input_bound"]}]
    assert facts_from_events(rows).silenced == ("input_bound",)
    assert facts_from_events([*rows, {"kind": "silence", "findings": []}]).silenced == ()


def test_the_first_batch_of_each_leg_is_known():
    """What the way to the first step has of waiting for data; other parts of it are in the ledger anyway."""
    row = {"kind": "first_step", "step": 1, "wall_s": 9.0, "parts": {"data_wait": 2.0, "compile": 6.0}}
    assert facts_from_events([row, {"kind": "leg", "step": 5}, {**row, "parts": {}}, row]).first_batch_s == 4.0
    assert facts_from_events([{**row, "parts": 3}]) == RunFacts()
