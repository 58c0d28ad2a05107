import os
from pathlib import Path

import pytest

from trackside.clock import ManualClock
from trackside.profiling.processor_use import ProcessorMeter, ProcessorUse

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def write_stat(proc: Path, busy_s: float, of_others_s: float = 0.0) -> None:
    """What the kernel counts: each usable processor computed for some time, of which a hypervisor took some away."""
    user, stolen = (round(seconds * TICKS_PER_S) for seconds in (busy_s, of_others_s))
    lines = [f"cpu{number} {user} 0 0 999 999 0 0 {stolen} 0 0" for number in sorted(os.sched_getaffinity(0))]
    (proc / "stat").write_text(
        "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "cpu9999 123456 0 0 0 0 0 0 0", "intr 1"])
    )


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The processor time of this process, as a test sets it."""
    taken = [0.0]
    monkeypatch.setattr(os, "times", lambda: (taken[0], 0.0, 0.0, 0.0, 0.0))
    return taken


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="other systems do not tell")
def test_what_others_used_is_what_is_left_of_the_busy_time(tmp_path: Path, own_time: list[float]) -> None:
    """Of usable processors only, with what a hypervisor gave to others, since the meter was made."""
    number, clock = len(os.sched_getaffinity(0)), ManualClock()
    write_stat(tmp_path, busy_s=50.0)
    meter = ProcessorMeter(clock, tmp_path)
    clock.advance(10.0)
    own_time[0] = 4.0
    write_stat(tmp_path, busy_s=56.0, of_others_s=2.0)
    use = meter.use()
    assert use == ProcessorUse(10.0, 4.0, pytest.approx(number * 8.0 - 4.0), number)
    assert use.idle == pytest.approx(number - number * 0.8)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="other systems do not tell")
def test_processes_that_were_started_are_no_others(tmp_path: Path, own_time: list[float]) -> None:
    """Workers of a loader, and what these started, belong to the program, whatever they are called."""
    clock = ManualClock()
    for parent, child in ((os.getpid(), 4_000_001), (4_000_001, 4_000_002)):
        (tmp_path / str(parent) / "task" / "1").mkdir(parents=True)
        (tmp_path / str(parent) / "task" / "1" / "children").write_text(f"{child} ")
    write_stat(tmp_path, busy_s=0.0)
    meter = ProcessorMeter(clock, tmp_path)
    clock.advance(10.0)
    write_stat(tmp_path, busy_s=10.0)
    ticks = 3 * TICKS_PER_S
    (tmp_path / "4000002").mkdir()
    (tmp_path / "4000002" / "stat").write_text(f"4000002 (a) b (c) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0\n")
    use = meter.use()
    assert use is not None
    assert use.own_s == pytest.approx(3.0)


def test_a_system_that_does_not_tell_is_not_guessed(tmp_path: Path) -> None:
    """Without the kernel's file, and with one of another form, nothing is known."""
    assert ProcessorMeter(ManualClock(), tmp_path).use() is None
    (tmp_path / "stat").write_text("cpu0 what is this\n")
    assert ProcessorMeter(ManualClock(), tmp_path).use() is None


def test_legs_add_up() -> None:
    """Two whiles together, weighted by how long they were."""
    both = ProcessorUse(10.0, 5.0, 10.0, 2).plus(ProcessorUse(30.0, 35.0, 10.0, 2))
    assert (both.own, both.other, both.idle) == (1.0, 0.5, 0.5)
    assert ProcessorUse.from_dict({"wall_s": 1.0, "own_s": 2.0, "other_s": 3.0, "num_processors": 4, "t": 0.0}).own == 2
