from pathlib import Path

import numpy as np
import pytest

from tests.compare.written_runs import STEP_S, write_run
from trackside.compare.disturbance import StepSeries
from trackside.compare.sections import MIN_TIME_ROWS, compile_differences, ledger_differences, memory_differences
from trackside.compare.sides import Side, read_side
from trackside.compare.traced_steps import TracedSteps
from trackside.profiling.ledger_totals import LedgerTotals

NO_STEPS = StepSeries("made up", np.zeros(0), np.zeros(0, np.int64))


def made_up(**fields: object) -> Side:
    return Side(**{"name": "made up", "path": "made up", "kind": "run", "steps": NO_STEPS, **fields})  # pyright: ignore[reportArgumentType]


def compiled(*functions: str) -> list[dict[str, object]]:
    return [{"function": function, "trace_s": 0.5, "lower_s": 0.0, "compile_s": 1.5} for function in functions]


def test_parts_of_long_runs_have_intervals(tmp_path: Path):
    """With rows enough, a part that grew is significant by about as much as it grew; compiling has no interval."""
    sides = [read_side(write_run(tmp_path / str(factor), factor * STEP_S)) for factor in (1.0, 1.5)]
    found = {one.name: one for one in ledger_differences(sides[0], sides[1], np.random.default_rng(0))}
    assert found["device_wait"].is_significant
    assert found["device_wait"].change == pytest.approx(0.5 * STEP_S, rel=0.05)
    assert not found["data_wait"].is_significant
    assert found["compile"].low is None


def test_parts_of_short_runs_have_none(tmp_path: Path):
    """With few rows the totals stand for themselves."""
    side = read_side(write_run(tmp_path / "short", STEP_S, num_steps=100 * (MIN_TIME_ROWS - 1)))
    found = ledger_differences(side, side, np.random.default_rng(0))
    assert found
    assert all(one.low is None for one in found)


def test_what_comes_once_is_no_part_of_a_step():
    """Set-up and closing tools are not compared per step; nor is compiling, if one ledger is of an earlier version."""
    earlier = LedgerTotals(3.0, {"dispatch": 1.0, "compile": 2.0}, num_steps=1)
    now = LedgerTotals(63.0, {"dispatch": 1.0, "compile": 30.0, "setup": 31.0, "drain/Tool": 1.0}, num_steps=1)

    def parts(*ledgers: LedgerTotals) -> set[str]:
        before, after = (made_up(ledger=ledger) for ledger in ledgers)
        return {one.name for one in ledger_differences(before, after, np.random.default_rng(0))}

    assert parts(now, now) == parts(earlier, earlier) == {"dispatch", "compile"}
    assert parts(earlier, now) == {"dispatch"}


def test_runs_without_a_ledger_have_no_parts():
    """Nothing is made up."""
    assert ledger_differences(made_up(), made_up(), np.random.default_rng(0)) == ()


def test_compiles_are_counted_and_timed_by_function():
    """A function that compiled once more is an exact difference; its seconds have no interval."""
    before, after = made_up(compiles=compiled("step")), made_up(compiles=compiled("step", "step", "other"))
    found = {(one.name, one.unit): one for one in compile_differences(before, after)}
    assert (found["step", "count"].before, found["step", "count"].after) == (1, 2)
    assert found["step", "count"].is_significant
    assert found["step", "s"].change == pytest.approx(2.0)
    assert found["other", "count"].before == 0


def test_memory_is_compared_by_peak_and_owner():
    """The most of all samples counts, for what both runs have."""
    samples = [
        {"memory": {"gpu:0": {"peak_bytes_in_use": peak}}, "host": {}, "live": {"params": params, "num_arrays": 3}}
        for peak, params in ((10, 4), (20, 4))
    ]
    trace = TracedSteps("made up", None, None, {}, {}, peak_bytes={"temporaries": 7})
    before, after = made_up(memory=samples[:1], trace=trace), made_up(memory=samples, trace=trace)
    found = {one.name: one for one in memory_differences(before, after)}
    assert found["peak on gpu:0"].change == 10
    assert found["live: params"].change == 0
    assert found["program: temporaries"].after == 7
    assert "live: num_arrays" not in found
