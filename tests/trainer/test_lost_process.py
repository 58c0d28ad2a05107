"""Which errors mean that another process is gone, and how this one leaves. `test_processes.py` kills real ones."""

import pytest
from jax.errors import JaxRuntimeError

from trackside.trainer.lost_process import EXIT_CODE_ALONE, leave_alone, means_lost_process

GLOO = "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer"


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JaxRuntimeError(GLOO), True),
        (ValueError(GLOO), True),
        (JaxRuntimeError("UNAVAILABLE: Task 1 heartbeat timeout."), True),
        (caused_by(OSError("could not save"), JaxRuntimeError(GLOO)), True),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (RuntimeError("the tracking server: connection reset by peer"), False),
        (ConnectionResetError("reset by peer"), False),
        (ValueError("expected a heartbeat"), False),
        (None, False),
    ],
)
def test_only_errors_of_collectives_count(error: Exception | None, expected: bool) -> None:
    """A user's own broken connection is an ordinary error; a collective's is the loss of a process."""
    assert means_lost_process(error) is expected


def test_it_leaves_with_its_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    """The process ends at once, with a code that tells a launcher why."""
    codes: list[int] = []
    leave_alone(codes.append)
    assert codes == [EXIT_CODE_ALONE] == [77]
