"""The report for the terminal: what it says, in which order, and that it fits."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.cli.tiny_run import FIRST_CAPTURED, LAST_CAPTURED, train_run
from tests.report.made_up import write_run
from trackside.findings import Finding
from trackside.report import RunSummary, render_summary, summarise_run
from trackside.report.compile_summary import CompileSummary, Recompile
from trackside.report.terminal import progress_text
from trackside.runs import Leg, SlowHost, open_run
from trackside.runs.hosts import SilentHost

FINDING = Finding("input_bound", "severe", "63 % of wall is data wait", {"data_wait_share": 0.63}, "raise workers")


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """The figures of a real run."""
    return summarise_run(open_run(train_run(tmp_path_factory.mktemp("terminal") / "tiny")))


def shown(summary: RunSummary, width: int = 80) -> str:
    return render_summary(summary, width).plain


@pytest.mark.parametrize("width", [50, 80, 120])
def test_report_fits_its_width(summary: RunSummary, width: int) -> None:
    """No line is wider than asked for, whatever the width."""
    full = replace(summary, findings=[FINDING], problems=["a sentence " * 20], name="n" * 200)
    assert max(map(cell_len, shown(full, width).splitlines())) <= width


def test_verdicts_come_first(summary: RunSummary) -> None:
    """After the header comes what is wrong, with its evidence and what to do; then the figures, problems at the end."""
    text = shown(replace(summary, findings=[FINDING], problems=["events-00003.jsonl is missing"]))
    places = ["success", "input-bound: 63 %", "data wait share 63 %", "-> raise workers", "where the time went"]
    places += [
        "step time",
        f"device time in steps {FIRST_CAPTURED} to {LAST_CAPTURED}",
        "compiles",
        "memory",
        "goodput",
        "problems with the run",
    ]
    assert [text.find(place) for place in places] == sorted(text.find(place) for place in places)
    assert -1 not in [text.find(place) for place in places]


def test_what_was_split_by_estimate_is_marked(tmp_path: Path) -> None:
    """Scopes whose time is partly estimated have a mark, and a line says how much of the time that is."""
    text = shown(summarise_run(open_run(write_run(tmp_path / "run", "net"))))
    assert "~100.0 %" in text
    assert "~ 50 % is in kernels over several scopes, split by estimate; 25 % is in" in " ".join(text.split())


def test_recompiles_are_told_with_the_argument(summary: RunSummary) -> None:
    """The argument that changed is named, from what to what, and what to do."""
    text = shown(summary)
    assert "train_step recompiled at step 31" in text
    assert "batch.inputs: shape (8, 4) -> (4, 4)" in text


def test_recompiles_for_one_reason_are_told_once(summary: RunSummary) -> None:
    """Twenty recompiles of one function for one reason take as many lines as one."""
    change = [{"path": "batch.inputs", "kind": "shape", "old": "(8, 4)", "new": "(4, 4)"}]
    recompiles = [Recompile("train_step", step, 0.5, change, 1, "pad it") for step in range(1, 21)]
    text = shown(replace(summary, findings=[], compiles=CompileSummary(21, 20, 11.0, [], recompiles)))
    assert "train_step recompiled at step 1, 2, 3, 4 and 16 more, 10 s" in text
    assert text.count("batch.inputs") == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("dead", "dead: no final status"),
        ("nan", "the loss or the gradient norm was not finite"),
        ("interrupted", "a signal"),
    ],
)
def test_bad_ends_are_explained(status: str, said: str, summary: RunSummary) -> None:
    """How a run ended is said in words, where one word does not say it."""
    assert said in shown(replace(summary, status=status))


def test_early_stop_is_shown_with_its_reason(summary: RunSummary) -> None:
    """A run that a callback ended before its goal says so, and why."""
    text = shown(replace(summary, status="stopped early", stop_reason="val_loss did not improve", goal=1000))
    assert "stopped early at step 93: val_loss did not improve\n93 of 1,000 steps" in text


def test_what_was_not_measured_says_how_to_get_it(summary: RunSummary) -> None:
    """Without captures and memory samples, the report says which callbacks take them."""
    text = shown(replace(summary, scopes=None, memory=None, step_time=None, ledger=None))
    assert "add JaxProfilerConfig to `callbacks`" in text
    assert "add MemoryProfileConfig to `callbacks`" in text


def test_timers_are_told_where_there_are_some(summary: RunSummary) -> None:
    """A loop with timers and without a ledger shows what they measured, the longest first."""
    timers = {
        "data_batch_production": {"avg_time": 0.001, "total_time": 0.1, "count": 100},
        "training_step": {"avg_time": 0.02, "total_time": 2.0, "count": 100},
    }
    lines = shown(replace(summary, ledger=None, timers=timers)).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("timers"))
    assert lines[at + 1].split() == ["training_step", "20", "ms", "2", "s", "100"]
    assert lines[at + 2].split() == ["data_batch_production", "1", "ms", "100", "ms", "100"]


def test_legs_are_listed_where_there_are_several(summary: RunSummary) -> None:
    """A resumed training shows each leg; a training with a single leg shows none."""
    legs = [Leg(1, 0, 50, 0.0, 60.0, "dead", None, None), Leg(2, 40, 93, 90.0, 150.0, "success", 120.0, 0.5)]
    assert "1: steps 0 to 50, dead, 1 min" in shown(replace(summary, legs=legs))
    assert "\nlegs" not in shown(summary)


def test_slow_and_silent_hosts_are_named(summary: RunSummary) -> None:
    """A process that the others wait for is named with its figures, and so is one that stopped writing."""
    slow = SlowHost(7, "node-7", 0.030, 0.010, "data_wait", 0.022, 0.002)
    silent = SilentHost(3, "node-3", 100, 400, 120.0)
    text = " ".join(shown(replace(summary, slow_hosts=[slow], silent_hosts=[silent])).split())
    assert (
        "process 7 (node-7): 30 ms per step without waiting for the device, 3.0 times the others' median of 10 ms"
        in text
    )
    assert "mostly waiting for data, 22 ms against 2 ms" in text
    assert "process 3 (node-3): last row at step 100, 2 min before the last row of the others" in text


def test_hostile_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Whatever a run is called by, no control character and no markup reaches the terminal."""
    run = write_run(tmp_path / "run", "\x1b[2J\x9b1m\r[red]x\u202e")
    text = render_summary(summarise_run(open_run(run)))
    assert not any(character < " " or "\x7f" <= character < "\xa0" for character in text.plain.replace("\n", ""))
    assert "\u202e" not in text.plain
    assert "[red]x" in text.plain


def test_progress_is_told_with_its_goal() -> None:
    """A run that has not reached its goal says how far it is."""
    assert progress_text(50, 100, 1) == "50 of 100 steps, 1 epoch"
    assert progress_text(1000, 1000, 2) == "1,000 steps, 2 epochs"


def test_header_says_what_the_batches_came_from(summary: RunSummary) -> None:
    """The loaders by their use; nothing for a run of an earlier version."""
    assert "train loader: list of 31 batches of 8; val loader: list of 1 batch of 8" in shown(summary)
    without = {name: value for name, value in summary.environment.items() if name != "loaders"}
    assert "train loader" not in shown(replace(summary, environment=without, findings=[]))


def test_silenced_findings_are_counted(summary: RunSummary) -> None:
    """They are not shown, but that there are some."""
    text = shown(replace(summary, findings=[], silenced=[FINDING]))
    assert "No findings\n1 finding silenced (input-bound)" in text
    assert "raise workers" not in text
