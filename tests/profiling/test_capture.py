"""Captures: one at a time, each with a place of its own, and none that keeps another from being taken."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from trackside.errors import CaptureError
from trackside.profiling import capture as captures
from trackside.profiling import session as sessions
from trackside.profiling.capture import CaptureContext, CaptureResult, start_capture

pytestmark = pytest.mark.usefixtures("no_compile_cache")

CONTEXT = CaptureContext(program="jit_step")


@jax.jit
def step(x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ x)


def run_steps(num_steps: int, first: int = 1) -> None:
    for index in range(first, first + num_steps):
        with jax.profiler.StepTraceAnnotation("train", step_num=index):
            step(jnp.ones((16, 16))).block_until_ready()


def take(directory: Path, session: str = "one", num_steps: int = 3) -> CaptureResult:
    run_steps(1)  # compiled
    capture = start_capture(directory, session, 1)
    run_steps(num_steps)
    capture.stop(num_steps, CONTEXT)
    return capture.wait()


def test_result_tells_what_was_captured(tmp_path: Path) -> None:
    """Steps, size, files and tables of a capture are known once it is finished."""
    result = take(tmp_path)
    assert (result.error, result.num_steps, result.session) == ("", 3, "one")
    assert result.report is not None
    assert result.report.num_steps == 3
    assert result.size_bytes == next(result.directory.glob("*.xplane.pb")).stat().st_size


def test_same_name_does_not_overwrite(tmp_path: Path) -> None:
    """A session whose name is taken gets a number; the files of the first stay."""
    first, second = take(tmp_path), take(tmp_path)
    assert (first.session, second.session) == ("one", "one-2")
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 2


def test_second_capture_is_refused_by_name(tmp_path: Path) -> None:
    """While one is being taken, another is refused with the first one's name and step."""
    running = start_capture(tmp_path, "first", 7)
    with pytest.raises(CaptureError, match="capture first has been running since step 7"):
        start_capture(tmp_path, "second", 8)
    running.cancel()


def test_cancelled_capture_leaves_nothing(tmp_path: Path) -> None:
    """A capture without steps leaves no folder, and the next may start."""
    start_capture(tmp_path, "nothing", 1).cancel()
    assert not list((tmp_path / "plugins" / "profile").iterdir())
    assert take(tmp_path).error == ""


def test_failed_stop_does_not_keep_others_from_starting(tmp_path: Path) -> None:
    """A capture beside somebody else's profile fails with the cause, and the next one is taken."""
    jax.profiler.start_trace(str(tmp_path / "theirs"))
    try:
        failed = take(tmp_path / "ours")
    finally:
        jax.profiler.stop_trace()
    assert "another profile was being taken" in failed.error
    assert failed.report is None
    assert take(tmp_path / "ours", "two").error == ""


def test_disk_without_space_is_told_before(tmp_path: Path) -> None:
    """Where there is too little space, nothing is traced, and the error names folder and figures."""
    with pytest.raises(CaptureError, match=rf"{tmp_path} has \d+ MB free"):
        start_capture(tmp_path, "large", 1, min_free_bytes=1 << 60)
    assert take(tmp_path).error == ""


def test_folder_that_is_a_file_is_told_before(tmp_path: Path) -> None:
    """Where no folder can be made, nothing is traced, and the error names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="file cannot be written to"):
        start_capture(tmp_path / "file", "one", 1)
    assert take(tmp_path).error == ""


def test_program_that_did_not_run_is_an_error_of_that_capture(tmp_path: Path) -> None:
    """A capture without the program that it is about has its trace, and says what did run."""
    capture = start_capture(tmp_path, "other", 1)
    run_steps(1)
    capture.stop(1, CaptureContext(program="jit_other"))
    result = capture.wait()
    assert "jit_step" in result.error
    assert list(result.directory.glob("*.xplane.pb"))


def test_json_that_was_cut_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More events than JAX writes into the file for Perfetto are told of."""
    monkeypatch.setattr(captures, "MAX_JSON_EVENTS", 3)
    (warning,) = take(tmp_path).warnings
    assert "trace.json.gz is cut at 3 of" in warning


def test_file_for_perfetto_can_be_left_out(tmp_path: Path) -> None:
    """A capture that nobody looks at does without it."""
    capture = start_capture(tmp_path, "one", 1, for_perfetto=False)
    run_steps(1)
    capture.stop(1, CONTEXT)
    assert [path.suffix for path in capture.wait().directory.iterdir()] == [".pb"]


def test_public_calls_serve_where_there_is_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a JAX without the private session, captures are the same."""
    monkeypatch.setattr(sessions, "_profiler", None)
    result = take(tmp_path)
    assert result.error == ""
    assert result.report is not None
    assert result.report.num_steps == 3
    assert {"".join(path.suffixes[-2:]) for path in result.directory.iterdir()} == {".xplane.pb", ".json.gz"}


def test_waiting_for_a_capture_that_runs_is_an_error(tmp_path: Path) -> None:
    """Nobody can wait for the end of a capture that was not ended."""
    capture = start_capture(tmp_path, "one", 1)
    with pytest.raises(CaptureError, match="stop it before"):
        capture.wait()
    capture.cancel()
