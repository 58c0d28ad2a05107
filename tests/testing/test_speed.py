import json
from pathlib import Path

import pytest

from tests.compare.written_runs import STEP_S, write_run
from trackside.errors import ConfigError
from trackside.runs import open_run
from trackside.testing import assert_steps_per_second
from trackside.testing.speed import FORMAT, UPDATE


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and one that is a tenth slower."""
    folder = tmp_path_factory.mktemp("written")
    return write_run(folder / "usual", STEP_S, seed=1), write_run(folder / "slowed", 1.1 * STEP_S, seed=2)


@pytest.fixture
def baseline(tmp_path: Path, runs: tuple[Path, Path]) -> Path:
    path = tmp_path / "baselines" / "step.json"
    assert assert_steps_per_second(runs[0], path) is None
    return path


def test_the_first_time_writes_the_baseline(baseline: Path):
    """Folders are made, and the file is JSON with a versioned format."""
    plain = json.loads(baseline.read_text(encoding="utf-8"))
    assert plain["format"] == FORMAT
    assert len(plain["seconds"]) == len(plain["num_steps"]) > 0


def test_the_same_speed_passes(baseline: Path, runs: tuple[Path, Path]):
    """A run as fast as the baseline passes and tells the change; the baseline stays as it was."""
    before = baseline.read_bytes()
    change = assert_steps_per_second(open_run(runs[0]), baseline, max_slowdown="5%")
    assert change is not None
    assert change.verdict == "no difference"
    assert baseline.read_bytes() == before


def test_a_slower_run_fails(baseline: Path, runs: tuple[Path, Path]):
    """The message has both speeds, the limit, the interval, and what to look at."""
    pattern = (
        r"steps per second, .* in the baseline.*10 % longer \(95 % interval .*at most 5\.0 % expected(.|\n)*report"
    )
    with pytest.raises(AssertionError, match=pattern.replace("10 %", r"(10|9\.\d|10\.\d) %")):
        assert_steps_per_second(runs[1], baseline, max_slowdown=0.05)


def test_a_slowdown_within_the_limit_passes(baseline: Path, runs: tuple[Path, Path]):
    """What is allowed is no failure."""
    change = assert_steps_per_second(runs[1], baseline, max_slowdown="15%")
    assert change is not None
    assert change.verdict == "slower"


def test_the_baseline_is_written_anew_on_demand(
    baseline: Path, runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    """By the environment variable or the argument; then the slower run is what is expected."""
    monkeypatch.setenv(UPDATE, "1")
    assert assert_steps_per_second(runs[1], baseline) is None
    monkeypatch.delenv(UPDATE)
    change = assert_steps_per_second(runs[1], baseline)
    assert change is not None
    assert change.verdict == "no difference"
    assert assert_steps_per_second(runs[0], baseline, update=True) is None


def test_a_damaged_baseline_is_named(baseline: Path, runs: tuple[Path, Path]):
    """A torn file, and one of another kind, are errors that say what to do."""
    content = baseline.read_text(encoding="utf-8")
    for damaged in (content[: len(content) // 2], "{}", "[]", content.replace(FORMAT, "other/1")):
        baseline.write_text(damaged, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"step\.json cannot be read .* remove it"):
            assert_steps_per_second(runs[0], baseline)


def test_a_short_run_cannot_tell(baseline: Path, tmp_path: Path):
    """Too few steps fail nothing, and say so in the result."""
    short = write_run(tmp_path / "short", 2 * STEP_S, num_steps=30)
    change = assert_steps_per_second(short, baseline)
    assert change is not None
    assert change.verdict == "cannot tell"


def test_a_run_without_steps_is_an_error(tmp_path: Path, baseline: Path):
    """A baseline is never made of nothing."""
    with pytest.raises(ConfigError, match="no clean step times"):
        assert_steps_per_second(write_run(tmp_path / "empty", STEP_S, num_steps=5), tmp_path / "other.json")


def test_a_bad_limit_is_refused(baseline: Path, runs: tuple[Path, Path]):
    """It is named."""
    with pytest.raises(ConfigError, match="max_slowdown"):
        assert_steps_per_second(runs[0], baseline, max_slowdown="fast")
