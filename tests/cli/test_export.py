"""`trackside export`: metrics as tables, captures for Perfetto."""

import csv
import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.tiny_run import FIRST_CAPTURED
from trackside import cli
from trackside.runs import open_run
from trackside.trace.perfetto import write_perfetto
from trackside.trace.trace_files import find_trace_files
from trackside.trace.xspace import read_xspace


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_perfetto(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        return [event for event in json.load(file)["traceEvents"] if event]


def test_csv_holds_all_metrics(trained_run: Path, tmp_path: Path) -> None:
    """Each row of each mode is a line, with the values that the run has, and empty cells where it has none."""
    path = tmp_path / "metrics.csv"
    assert cli.run(["export", str(trained_run), "--metrics", str(path)]) == 0
    rows, metrics = read_csv(path), open_run(trained_run).metrics
    assert len(rows) == sum(map(len, metrics.values()))
    train = [row for row in rows if row["mode"] == "train"]
    assert [float(row["loss_mean"]) for row in train] == metrics["train"]["loss_mean"].tolist()
    assert {row["loss"] for row in train} == {""}
    assert [int(row["step"]) for row in rows if row["mode"] == "val"] == metrics["val"].step.tolist()


def test_one_mode_has_its_own_columns(trained_run: Path, tmp_path: Path) -> None:
    """`--mode` leaves out the rows and the columns of other modes."""
    path = tmp_path / "metrics.csv"
    assert cli.run(["export", str(trained_run), "--metrics", str(path), "--mode", "val"]) == 0
    rows = read_csv(path)
    assert list(rows[0])[:5] == ["mode", "step", "epoch", "t", "loss"]
    assert "loss_mean" not in rows[0]
    assert {row["mode"] for row in rows} == {"val"}


def test_parquet_holds_the_same(trained_run: Path, tmp_path: Path) -> None:
    """Parquet has the same table, with types, and nulls where a row has no such metric."""
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "metrics.parquet"
    assert cli.run(["export", str(trained_run), "--metrics", str(path)]) == 0
    table, metrics = parquet.read_table(path).to_pydict(), open_run(trained_run).metrics
    is_train = np.array(table["mode"]) == "train"
    assert np.array(table["loss_mean"])[is_train].tolist() == metrics["train"]["loss_mean"].tolist()
    assert set(np.array(table["loss"])[is_train]) == {None}
    assert all(isinstance(step, int) for step in table["step"])


def test_parquet_without_its_package_names_the_extra(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Where pyarrow is missing, the error says what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.run(["export", str(trained_run), "--metrics", str(tmp_path / "metrics.parquet")]) == 2
    assert "pip install 'trackside[parquet]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to export"),
        (["--metrics", "metrics.xlsx"], "*.csv or *.parquet"),
        (["--metrics", "metrics.csv", "--mode", "tarin"], "its modes are"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], said: str, trained_run: Path, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    """What cannot be exported is refused with what can, and no file is left behind."""
    given = [str(tmp_path / word) if word.startswith("metrics.") else word for word in arguments]
    assert cli.run(["export", str(trained_run), *given]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_captures_are_copied_for_perfetto(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """What JAX wrote for Perfetto next to a capture is taken as it is, named by session and host."""
    assert cli.run(["export", str(trained_run), "--captures", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert path.name.startswith(f"step_{FIRST_CAPTURED:08d}-")
    assert path.name.endswith(".trace.json.gz")
    assert str(path) in capsys.readouterr().out
    assert any(event["ph"] == "X" for event in read_perfetto(path))


def test_capture_without_json_is_converted(trained_run: Path, tmp_path: Path) -> None:
    """Where JAX's file is not there, one is made from the trace: the same events, by name and number."""
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    (written,) = run.rglob("*.trace.json.gz")
    by_jax = read_perfetto(written)
    written.unlink()
    assert cli.run(["export", str(run), "--captures", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").iterdir()
    made = read_perfetto(path)
    counts = [sorted(event["name"] for event in events if event["ph"] == "X") for events in (by_jax, made)]
    assert counts[0] == counts[1]


def test_converted_events_nest(trained_run: Path, tmp_path: Path) -> None:
    """On each track, events are nested or side by side: Perfetto shows no others."""
    trace_file = find_trace_files(trained_run)[0]
    write_perfetto(trace_file, tmp_path / "out.json.gz")
    events = [event for event in read_perfetto(tmp_path / "out.json.gz") if event["ph"] == "X"]
    assert len(events) == read_xspace(trace_file.read_bytes()).num_events
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        open_ends: list[float] = []
        for start, end in spans:
            while open_ends and open_ends[-1] <= start + 1e-6:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-6
            open_ends.append(end)


def test_converted_tracks_are_named(trained_run: Path, tmp_path: Path) -> None:
    """Each process and track of a converted trace has a name, and operations carry the step's program."""
    write_perfetto(find_trace_files(trained_run)[0], tmp_path / "out.json.gz")
    events = read_perfetto(tmp_path / "out.json.gz")
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named == {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    assert any("jit_train" in event["args"].get("hlo_module", "") for event in events)


def test_run_without_captures_is_an_error(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A run whose captures are gone says so, and makes no directory."""
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    for file in run.rglob("*.xplane.pb"):
        file.unlink()
    assert cli.run(["export", str(run), "--captures", str(tmp_path / "out")]) == 2
    assert "no longer where they were written" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def linked_capture(trained_run: Path, tmp_path: Path, pattern: str) -> tuple[Path, Path]:
    """A copy of the run in which a part of the capture is a link out of it, and where the link leads."""
    run = Path(shutil.copytree(trained_run, tmp_path / "run"))
    (inside,) = run.rglob(pattern)
    outside = tmp_path / "elsewhere" / inside.name
    outside.parent.mkdir()
    shutil.move(inside, outside)
    inside.symlink_to(outside)
    return run, outside


@pytest.mark.parametrize("pattern", ["step_*", "*.xplane.pb", "*.trace.json.gz"])
def test_link_out_of_the_run_is_skipped(
    pattern: str, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A run from somewhere else must not make export read other files: the link is named, and nothing is written."""
    run, outside = linked_capture(trained_run, tmp_path, pattern)
    assert cli.run(["export", str(run), "--captures", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert f"{outside.name} is a link that leads out of the run; skipped" in errors
    assert not (tmp_path / "out").exists()


def test_link_within_the_run_is_followed(trained_run: Path, tmp_path: Path) -> None:
    """A run whose folder is reached by a link is exported as any other."""
    (tmp_path / "link").symlink_to(trained_run)
    assert cli.run(["export", str(tmp_path / "link"), "--captures", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 1
