"""Event files of all kinds of damage: read around and reported, or refused by a documented error."""

import base64
import contextlib
import logging
import random
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.findings.made_up import capture_row, change, compile_row, leak_row, make_ledger, timer
from tests.fuzzing import mutated_bytes, mutated_row, nested, odd_value, random_sources
from tests.runs.written import finished_run
from trackside.compare import compare_runs
from trackside.errors import ConfigError, TracksideError
from trackside.events import read_events
from trackside.findings import facts_from_events, find
from trackside.runs import Run, find_runs, open_run

NUM_INPUTS = 250
PACKED = base64.b64encode(struct.pack("<2d", 0.5, 1.0)).decode()

ROWS: list[dict[str, Any]] = [
    {"kind": "format", "t": 1.0, "version": 1},
    {
        "kind": "environment",
        "t": 1.0,
        "hostname": "a",
        "backend": "cpu",
        "devices": ["cpu:0"],
        "versions": {"jax": "1"},
    },
    {"kind": "config", "t": 1.0, "config": {"trainer": {"logger": {"log_every_n_steps": 10}}}},
    {"kind": "leg", "t": 2.0, "leg": 1, "step": 0, "epoch": 0, "goal": 100},
    {"t": 3.0, **compile_row(num_recompiles=1, changes=[change("(8, 4)", "(3, 4)")])},
    {"kind": "metrics", "t": 3.0, "step": 5, "epoch": 1, "mode": "train", "values": {"loss": 1.0, "step_time": 0.1}},
    {"kind": "metrics", "t": 4.0, "step": 6, "epoch": 1, "mode": "val", "values": {"loss": "nan"}},
    {"kind": "metrics", "t": 5.0, "step": 9, "epoch": 1, "mode": "train_epoch", "values": {"epoch_time": 3.0}},
    {"kind": "metrics", "t": 5.0, "step": 9, "epoch": 1, "mode": "time", "values": {"compile_ms": 3.0}},
    {"kind": "metric_names", "t": 5.0, "id": "ab", "names": ["loss", "epoch"], "integers": ["epoch"]},
    *(
        {"kind": "packed_metrics", "t": 5.0, "step": step, "epoch": 1, "mode": mode, "names": "ab", "data": PACKED}
        for step, mode in ((7, "train"), (8, "train"), (8, "val"))
    ),
    {"kind": "between_epochs", "t": 5.0, "epoch": 1, "parts": {"data_wait": 1.0}},
    {"t": 6.0, **capture_row({"forward": 1.0}, path="/x/y", first_step=2, last_step=4, disturbed_steps=[2, 5])},
    {"kind": "memory", "t": 6.0, "step": 7, "memory": {"gpu:0": {"peak_bytes_in_use": 3}}, "live": {"params": 1}},
    {"t": 6.0, **leak_row()},
    {"kind": "checkpoint", "t": 7.0, "step": 8, "path": "x"},
    {"kind": "profiling", "t": 7.0, "operations": {"make_step_total": timer(0.1)}},
    {"kind": "ledger", "t": 8.0, "step": 9, "step_time_s": 0.1, **make_ledger({"data_wait": 60.0}).to_dict()},
    {"kind": "finding", "t": 8.0, "id": "a", "severity": "info", "title": "b", "evidence": {}, "advice": "c"},
    {"kind": "leg_end", "t": 9.0, "leg": 1, "step": 9, "epoch": 1, "train_time_s": 3.0, "goodput": 0.5},
    {"kind": "status", "t": 9.0, "status": "success", "step": 9, "epoch": 1},
]


def damaged_lines(chance: random.Random) -> bytes:
    """The rows of a run, some of them odd, doubled, missing or in another order, and some bytes damaged."""
    rows = [row for row in ROWS for _ in range(chance.choice([0, 1, 1, 1, 1, 2]))]
    if chance.random() < 0.2:
        chance.shuffle(rows)
    rate = chance.choice([0.0, 0.1, 0.5])
    rows = [mutated_row(row, chance) if chance.random() < rate else row for row in rows]
    lines = [_line(row) for row in rows]
    if chance.random() < 0.1:
        lines.insert(chance.randrange(len(lines) + 1), b"[" * 100_000)
    data = b"".join(line + b"\n" for line in lines)
    return mutated_bytes(data, chance) if chance.random() < 0.5 else data


def _line(row: Any) -> bytes:
    try:
        return msgspec.json.encode(row)
    except (RecursionError, UnicodeEncodeError, OverflowError, ValueError):
        return b'{"kind":"leg","t":1.0,"step":' + b"[" * 2000 + b"]" * 2000 + b"}"


def look_at_everything(run: Run) -> None:
    """All that a run can be asked for."""
    for name in [
        name for name in dir(Run) if not name.startswith("_") and name not in ("plot", "refresh", "to_pandas")
    ]:
        value = getattr(run, name)
        if callable(value):
            list(value())
    for table in run.metrics.values():
        for name in table:
            assert len(table[name]) == len(table.step)
        table._repr_html_()
    for capture in run.captures:
        _ = capture.is_analysed, capture.error, capture.notes, capture.first_step, capture.utilisation
    run._repr_html_()
    run.refresh()
    with contextlib.suppress(ConfigError):  # nothing to draw
        run.plot(x="time", smooth=0.5)


def test_damaged_event_files_raise_documented_errors_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is in the files of a run, everything about it can be asked, and no rule fails on it."""
    caplog.set_level(logging.WARNING)
    for number, chance in enumerate(random_sources(NUM_INPUTS, seed=1)):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        contents = [damaged_lines(chance) for _ in range(chance.choice([1, 1, 2]))]
        for index, content in enumerate(contents):
            (folder / f"events-{index:05d}.jsonl").write_bytes(content)
        (folder / "config.json").write_bytes(_line(odd_value(chance)))
        try:
            look_at_everything(open_run(folder))
        except TracksideError:
            pass
        except Exception as error:
            raise AssertionError(f"input {number}: {contents!r}") from error
        assert not [record for record in caplog.records if record.exc_info], f"input {number}: {contents!r}"
        for path in folder.iterdir():
            path.unlink()


def test_rows_of_any_kind_give_facts(tmp_path: Path) -> None:
    """Rows that a program feeds by itself, however odd, never raise, and neither do the rules."""
    for chance in random_sources(4 * NUM_INPUTS, seed=2):
        rows = [mutated_row(row, chance) if chance.random() < 0.3 else row for row in ROWS]
        find(facts_from_events([row for row in rows if isinstance(row, dict)]))


def test_the_plain_reader_stands_damage(tmp_path: Path) -> None:
    """`read_events` gives the rows that there are, or a documented error."""
    path = tmp_path / "events-00000.jsonl"
    for chance in random_sources(NUM_INPUTS, seed=3):
        path.write_bytes(damaged_lines(chance))
        try:
            assert all(isinstance(row["kind"], str) for row in read_events(path))
        except TracksideError:
            continue


def test_damaged_runs_are_compared_or_refused(tmp_path: Path) -> None:
    """A comparison with a damaged run says what it can, or raises a documented error."""
    good = finished_run(tmp_path / "good").folder
    (tmp_path / "bad").mkdir()
    for number, chance in enumerate(random_sources(NUM_INPUTS // 5, seed=4)):
        content = damaged_lines(chance)
        (tmp_path / "bad" / "events-00000.jsonl").write_bytes(content)
        try:
            compare_runs(good, tmp_path / "bad").to_dict()
        except TracksideError:
            continue
        except Exception as error:
            raise AssertionError(f"input {number}: {content!r}") from error


def test_a_bad_run_does_not_hide_others(tmp_path: Path) -> None:
    """Runs next to damaged ones are found, in order, and read."""
    finished_run(tmp_path / "good")
    for number, chance in enumerate(random_sources(30, seed=5)):
        (tmp_path / f"bad-{number}").mkdir()
        (tmp_path / f"bad-{number}" / "events-00000.jsonl").write_bytes(damaged_lines(chance))
    assert tmp_path / "good" in find_runs(tmp_path)


def test_deep_nesting_is_a_damaged_line(tmp_path: Path) -> None:
    """A row that is nested deeper than can be decoded is skipped and counted, and the others are read."""
    written = finished_run(tmp_path)
    deep = b"[" * 100_000
    for kind in (b'{"kind":"config","config":', b'{"kind":"metrics","t":1.0,"values":'):
        written.append(kind + deep + b"\n")
    written.append(b'{"kind":"metrics","t":1.0,"step":1,"mode":"train","values":{"a":%b}}\n' % _line(nested(300)))
    run = open_run(tmp_path)
    assert run.status == "success"
    assert "events-00000.jsonl: 2 torn or damaged lines were skipped" in run.problems
