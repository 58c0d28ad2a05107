import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.compare.pairs import capture_step, train
from tests.compare.written_runs import STEP_S, write_run
from trackside.compare import Cause, Comparison, Difference, compare_runs
from trackside.compare.comparison import parse_share
from trackside.errors import ConfigError
from trackside.run_layout import event_file_name
from trackside.runs import RunError, open_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two runs of the same speed, and one that is a tenth slower."""
    folder = tmp_path_factory.mktemp("written")
    return (
        write_run(folder / "first", STEP_S, seed=1),
        write_run(folder / "second", STEP_S, seed=2),
        write_run(folder / "slowed", 1.1 * STEP_S, seed=3),
    )


def text_of(comparison: Comparison, width: int = 80) -> str:
    console = Console(width=200, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(comparison.render(width))
    return captured.get()


def test_a_slower_run_is_a_regression(runs: tuple[Path, Path, Path]) -> None:
    """A tenth slower is beyond 5 %, and not beyond 15 %."""
    first, _, slowed = runs
    comparison = compare_runs(first, slowed, max_slowdown="5%")
    assert comparison.is_regression
    assert comparison.headline == "slowed takes 9.9 % more time per step than first"
    assert not compare_runs(first, slowed, max_slowdown=0.15).is_regression


def test_without_a_limit_nothing_is_a_regression(runs: tuple[Path, Path, Path]) -> None:
    """Who asks for no limit gets the difference and no alarm."""
    comparison = compare_runs(runs[0], runs[2])
    assert comparison.step_time.verdict == "slower"
    assert not comparison.is_regression


def test_runs_alike_do_not_differ(runs: tuple[Path, Path, Path]) -> None:
    """Two runs of the same speed are said to be that."""
    comparison = compare_runs(runs[0], runs[1], max_slowdown="5%")
    assert comparison.step_time.verdict == "no difference"
    assert not comparison.is_regression
    assert comparison.main_part is None


def test_the_part_of_the_ledger_that_grew_is_named(runs: tuple[Path, Path, Path]) -> None:
    """Most of the slowdown lies in waiting for the device, with an interval; the loader is as before."""
    comparison = compare_runs(runs[0], runs[2])
    assert comparison.main_part is not None
    assert comparison.main_part.name == "device_wait"
    assert comparison.main_part.change == pytest.approx(0.1 * STEP_S, rel=0.1)
    parts = {one.name: one for one in comparison.parts}
    assert not parts["data_wait"].is_significant
    assert parts["compile"].low is None


def test_opened_runs_and_event_files_are_taken_too(runs: tuple[Path, Path, Path]) -> None:
    """A run may be given open, or by its event file."""
    comparison = compare_runs(open_run(runs[0]), runs[2] / event_file_name(0))
    assert (comparison.before.name, comparison.after.name) == ("first", "slowed")


def test_short_runs_cannot_tell(plain_run: Path) -> None:
    """A training of a few steps gives no alarm, and says what is needed."""
    comparison = compare_runs(plain_run, plain_run, max_slowdown=0.0)
    assert comparison.step_time.verdict == "cannot tell"
    assert not comparison.is_regression
    assert "train longer" in comparison.headline


def test_a_run_of_no_time_cannot_tell(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Where a clock told no time for any step, nothing is said of the speed, and the rest is shown all the same."""
    comparison = compare_runs(runs[0], write_run(tmp_path / "timeless", 0.0))
    assert comparison.step_time.verdict == "cannot tell"
    assert "timeless has 0 clean intervals" in text_of(comparison)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Text, plain values and notes call two runs of one name by the folders that they lie in."""
    before, after = write_run(tmp_path / "main" / "run", STEP_S), write_run(tmp_path / "branch" / "run", 1.2 * STEP_S)
    with (after / event_file_name(0)).open("a") as file:
        file.write("{torn\n")
    comparison = compare_runs(before, after)
    assert text_of(comparison).startswith("branch/run takes 20.0 % more time per step than main/run")
    plain = comparison.to_dict()
    assert (plain["before"]["name"], plain["after"]["name"]) == ("main/run", "branch/run")
    assert [note for note in comparison.notes if note.startswith("branch/run: ")]


def test_captures_and_memory_are_compared(measured_run: Path, tmp_path: Path) -> None:
    """Scopes, operations, memory and compiles of a real run are there; against itself nothing changed."""
    comparison = compare_runs(measured_run, measured_run)
    assert any(one.name.startswith("loss") and one.phase == "backward" for one in comparison.scopes)
    assert all(one.low is not None for one in comparison.scopes)
    assert {"live: params", "program: temporaries"} <= {one.name for one in comparison.memory}
    assert {one.name for one in comparison.compiles} >= {"train_step"}
    everything = (*comparison.scopes, *comparison.ops, *comparison.memory, *comparison.compiles)
    assert not any(one.is_significant for one in everything)


def test_a_run_whose_trace_is_gone_is_compared_by_its_tables(measured_run: Path, tmp_path: Path) -> None:
    """Without the trace the scopes are there, without intervals, and that is said."""
    moved = tmp_path / "moved"
    shutil.copytree(measured_run, moved)
    lines = (moved / event_file_name(0)).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    rows = [{**row, "path": str(tmp_path / "gone")} if row["kind"] == "capture" else row for row in rows]
    (moved / event_file_name(0)).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    comparison = compare_runs(moved, moved)
    assert comparison.scopes
    assert all(one.low is None for one in comparison.scopes)
    assert any("only the tables" in note for note in comparison.notes)


def test_traces_are_compared(step_capture: Path, tmp_path: Path) -> None:
    """Two captured windows are aligned by scope and phase; what only one has is there with no counterpart."""
    comparison = compare_runs(step_capture, capture_step(tmp_path / "after", has_extra_scope=True))
    extra = [one for one in comparison.scopes if one.name == "extra"]
    assert extra
    assert all(one.before is None and one.is_significant for one in extra)
    assert comparison.step_time.verdict == "cannot tell"  # a window of a few steps


def test_a_run_and_a_trace_cannot_be_compared(plain_run: Path, step_capture: Path) -> None:
    """The error names both."""
    with pytest.raises(ConfigError, match=r"is a run and .* a trace"):
        compare_runs(plain_run, step_capture)


def test_a_missing_run_is_named(tmp_path: Path, plain_run: Path) -> None:
    """A path with nothing at it is an error that names it."""
    with pytest.raises(RunError, match="nowhere"):
        compare_runs(plain_run, tmp_path / "nowhere")


def test_plain_values_are_json(runs: tuple[Path, Path, Path], measured_run: Path) -> None:
    """The plain form goes through JSON, names its format, and has the series for a chart."""
    plain = json.loads(json.dumps(compare_runs(runs[0], runs[2], max_slowdown="5%").to_dict(), allow_nan=False))
    assert plain["format"] == "trackside.compare/1"
    assert plain["is_regression"] is True
    assert plain["main_part"]["text"] == "waiting for the device"
    assert 0 < len(plain["step_times"]["before"]["seconds"]) <= 2000
    assert json.dumps(compare_runs(measured_run, measured_run).to_dict(), allow_nan=False)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_fits_the_width(runs: tuple[Path, Path, Path], measured_run: Path, width: int) -> None:
    """No line is longer than asked for."""
    for pair in (runs[:2], (measured_run, measured_run), (runs[0], runs[2])):
        lines = text_of(compare_runs(*pair, max_slowdown="5%"), width).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width


def test_text_has_the_verdict_first(runs: tuple[Path, Path, Path]) -> None:
    """The first line is the verdict; the limit and what became of it are said."""
    text = text_of(compare_runs(runs[0], runs[2], max_slowdown="5%"))
    assert text.splitlines()[0] == "slowed takes 9.9 % more time per step than first"
    assert "REGRESSION" in text
    assert "waiting for the device" in text


def test_text_shows_what_changed(plain_run: Path, tmp_path: Path) -> None:
    """Causes are listed with their label."""
    text = text_of(compare_runs(plain_run, train(tmp_path / "other", lr=0.05)))
    assert "config-changed: the configuration changed: optimizer.scheduler.lr 0.1 -> 0.05" in text


def test_text_shows_names_as_they_are(runs: tuple[Path, Path, Path]) -> None:
    """Brackets of a name are no markup, wherever it stands."""
    name = "[/x]"
    change = Difference(name, 1e-3, 2e-3, "s", 5e-4, 2e-3, phase="forward", scope=name)
    cause = Cause("config_changed", f"the configuration: {name}")
    shown = replace(compare_runs(runs[0], runs[2]), scopes=(change,), ops=(change,), causes=(cause,), notes=(name,))
    text = text_of(shown)
    assert text.count("[/x]: [/x] ") == 2
    assert "the configuration: [/x]\n" in text
    assert "Note: [/x]\n" in text


def test_text_has_no_control_characters(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A run, a scope or a value that is called like a command to the terminal gives it none."""
    name = "a\x1b[2Jb"
    change = Difference(name, 1e-3, 2e-3, "s", 5e-4, 2e-3, phase="forward")
    cause = Cause("config_changed", f"the configuration: {name}")
    compared = compare_runs(runs[0], write_run(tmp_path / name, 1.1 * STEP_S))
    text = text_of(replace(compared, scopes=(change,), causes=(cause,), notes=(name,)))
    assert not [character for character in text if ord(character) < 0x20 and character != "\n"]
    assert text.startswith("a\ufffd[2Jb takes ")


@pytest.mark.parametrize(("given", "share"), [(0.05, 0.05), ("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), (0, 0.0)])
def test_shares_are_read(given: float | str, share: float) -> None:
    """A share is a number or a percentage."""
    assert parse_share(given, "max_slowdown") == pytest.approx(share)


@pytest.mark.parametrize("given", ["five", "", "-5%", -0.1, float("nan"), float("inf"), "%"])
def test_bad_shares_are_refused(given: float | str) -> None:
    """What is no share is refused by name, with an example."""
    with pytest.raises(ConfigError, match=r"max_slowdown: expected a share .* '5%'; got"):
        compare_runs("a", "b", max_slowdown=given)
