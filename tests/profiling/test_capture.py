"""Captures: one at a time, each in its own place, and none that prevents another."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from trackside.errors import CaptureError
from trackside.profiling import capture as captures
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


def test_the_result_says_what_was_captured(tmp_path: Path) -> None:
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
    """A capture during another profile fails with the cause, and the next one succeeds."""
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


def test_json_that_was_cut_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More events than JAX writes into the file for Perfetto are reported."""
    monkeypatch.setattr(captures, "MAX_JSON_EVENTS", 3)
    (warning,) = take(tmp_path).warnings
    assert "trace.json.gz is cut at 3 of" in warning


def test_file_for_perfetto_can_be_left_out(tmp_path: Path) -> None:
    """A capture that is only analysed does not need it."""
    capture = start_capture(tmp_path, "one", 1, for_perfetto=False)
    run_steps(1)
    capture.stop(1, CONTEXT)
    assert [path.suffix for path in capture.wait().directory.iterdir()] == [".pb"]


def test_waiting_for_a_capture_that_runs_is_an_error(tmp_path: Path) -> None:
    """A capture that was not stopped never ends."""
    capture = start_capture(tmp_path, "one", 1)
    with pytest.raises(CaptureError, match="stop it before"):
        capture.wait()
    capture.cancel()


def test_capture_that_gives_way_is_ended_by_the_next(tmp_path: Path) -> None:
    """It is asked to end, and the next one starts when it has."""
    first = start_capture(tmp_path, "background", 1, on_wanted=lambda: first.cancel())
    second = start_capture(tmp_path, "asked for", 1)
    run_steps(1)
    second.stop(1)
    assert second.wait().error == ""


def test_captures_that_give_way_do_not_end_each_other(tmp_path: Path) -> None:
    """The second is refused."""
    first = start_capture(tmp_path, "one", 1, on_wanted=lambda: pytest.fail("ended"))
    with pytest.raises(CaptureError, match="one"):
        start_capture(tmp_path, "two", 1, on_wanted=lambda: None)
    first.cancel()
