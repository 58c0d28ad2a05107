"""The summary of a run, and `summary.json`, for runs that ended well, died, or recorded little."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.cli.tiny_run import FIRST_CAPTURED, LAST_CAPTURED, NUM_EPOCHS, STEPS_PER_EPOCH, train_run
from trackside.errors import ConfigError
from trackside.events import EventWriter
from trackside.findings import Finding
from trackside.report import RunSummary, summarise_run
from trackside.run_layout import event_file_name
from trackside.runs import Leg, SilentHost, SlowHost, open_run

DOCUMENTATION = Path(__file__).parent.parent.parent / "docs" / "report.md"


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """The figures of a real run."""
    return summarise_run(open_run(train_run(tmp_path_factory.mktemp("report") / "tiny")))


def test_run_is_named_and_placed(summary: RunSummary) -> None:
    """Name, status and progress are those of the training."""
    assert (summary.name, summary.status, summary.is_finished) == ("tiny", "success", True)
    assert (summary.step, summary.epoch) == (NUM_EPOCHS * STEPS_PER_EPOCH, NUM_EPOCHS)
    assert summary.ended_at > summary.started_at
    assert summary.problems == []


def test_ledger_accounts_for_all_time(summary: RunSummary) -> None:
    """The parts of the ledger sum up to the whole."""
    assert summary.ledger is not None
    assert sum(summary.ledger.parts.values()) == pytest.approx(summary.ledger.wall_s)


def test_steps_are_clean_or_left_out(summary: RunSummary) -> None:
    """Each step is counted once: among the clean ones, or with the reason why it is not."""
    times = summary.step_time
    assert times is not None
    assert times.num_steps + times.num_left_out == summary.step
    assert times.num_left_out == sum(times.left_out.values())
    assert times.p50_s <= times.p95_s <= times.p99_s


def test_recompile_names_the_argument(summary: RunSummary) -> None:
    """The last batch has another shape, for which the step compiled again."""
    (recompile,) = summary.compiles.recompiles
    assert recompile.function == "train_step"
    assert recompile.step == STEPS_PER_EPOCH
    assert recompile.changes[0]["path"] == "batch.inputs"
    assert (recompile.changes[0]["old"], recompile.changes[0]["new"]) == ("(8, 4)", "(4, 4)")
    assert summary.compiles.num_compiles > summary.compiles.num_recompiles == 1


def test_scopes_sum_to_the_whole(summary: RunSummary) -> None:
    """The rows of the capture's table hold all of the busy time, and say which steps they are of."""
    scopes = summary.scopes
    assert scopes is not None
    assert (scopes.first_step, scopes.last_step) == (FIRST_CAPTURED, LAST_CAPTURED)
    assert sum(row.share for row in scopes.scopes) == pytest.approx(1)
    assert sum(scopes.phases.values()) == pytest.approx(1)


def test_memory_has_owners(summary: RunSummary) -> None:
    """The memory profiler's samples give the host's peak and the live arrays by owner."""
    assert summary.memory is not None
    assert summary.memory.host_peak_bytes is not None
    assert summary.memory.owners["params"] > 0
    assert "num_arrays" not in summary.memory.owners


def test_best_metric_is_the_lowest_validation_loss(summary: RunSummary) -> None:
    """Without a monitor, the best metric is the lowest validation loss."""
    assert summary.best is not None
    assert summary.best.label == "val_loss"
    assert summary.best.value <= summary.best.last
    assert summary.last_metrics["val"]["loss"] == summary.best.last


def test_summary_becomes_json(summary: RunSummary, tmp_path: Path) -> None:
    """The file is JSON that every parser reads, with each field and the version of its form."""
    plain = json.loads(summary.write(tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert plain["format"] == "trackside.summary/1"
    assert set(plain) == {"format", *(field.name for field in fields(RunSummary))}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_what_is_written_is_read_back(summary: RunSummary, tmp_path: Path) -> None:
    """From `summary.json` comes the summary that was written, of the same types, with everything that it may hold."""
    full = replace(
        summary,
        findings=[Finding("input_bound", "severe", "waits", {"share": 0.5, "num": 3, "name": "x"}, "prefetch")],
        slow_hosts=[SlowHost(7, "node-7", 0.030, 0.010, "data_wait", 0.022, 0.002)],
        silent_hosts=[SilentHost(3, "node-3", 100, 400, 120.0)],
        legs=[Leg(1, 0, None, 0.0, 60.0, "dead", None, None)],
        status="stopped early",
        stop_reason="val_loss did not improve",
    )
    written = full.write(tmp_path / "summary.json").read_text()
    assert RunSummary.from_dict(json.loads(written)) == full


def test_another_format_is_refused(summary: RunSummary) -> None:
    """A summary of another version, or one with a field of the wrong type, is an error that says so."""
    with pytest.raises(ConfigError, match=r"expected 'trackside.summary/1', got 'trackside.summary/9'"):
        RunSummary.from_dict({**summary.to_dict(), "format": "trackside.summary/9"})
    with pytest.raises(ConfigError, match=r"summary: .*step"):
        RunSummary.from_dict({**summary.to_dict(), "step": "many"})


def test_keys_of_slow_hosts_stay(summary: RunSummary) -> None:
    """How many times slower a host is can be read from the file without computing it."""
    slow = SlowHost(7, "node-7", 0.030, 0.010, "data_wait", 0.022, 0.002)
    assert replace(summary, slow_hosts=[slow]).to_dict()["slow_hosts"][0]["factor"] == pytest.approx(3)


def test_every_field_is_documented() -> None:
    """docs/report.md describes each field of summary.json."""
    text = DOCUMENTATION.read_text()
    assert [field.name for field in fields(RunSummary) if f"`{field.name}`" not in text] == []


def test_run_that_says_little_has_a_summary(tmp_path: Path) -> None:
    """A run that ended before its training began has no figures, and none is made up."""
    writer = EventWriter(tmp_path / event_file_name(0))
    writer.write("environment", hostname="somewhere")
    writer.close()
    summary = summarise_run(open_run(tmp_path))
    assert (summary.status, summary.step) == ("not started", 0)
    for name in ("ledger", "step_time", "best", "scopes", "memory", "goodput", "goal", "stop_reason"):
        assert getattr(summary, name) is None
    assert summary.to_dict()["compiles"]["num_compiles"] == 0


def test_value_that_is_not_finite_is_null(tmp_path: Path) -> None:
    """An infinite loss has no place in JSON: it is null there."""
    writer = EventWriter(tmp_path / event_file_name(0))
    writer.write_metrics({"loss": float("inf")}, step=1, epoch=1, mode="val")
    writer.close()
    assert summarise_run(open_run(tmp_path)).to_dict()["last_metrics"] == {"val": {"loss": None}}
