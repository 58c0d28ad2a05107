"""The processes of a run beside each other: the slow one and the silent one are named, and no other."""

from pathlib import Path

import numpy as np
import pytest

from tests.runs.written import WrittenRun
from trackside.runs import HostTable, open_run

NUM_STEPS = 1000


def write_hosts(
    folder: Path, own_s: list[float], ended: bool = True, num_steps: int = NUM_STEPS, part: str = "data_wait"
) -> list[WrittenRun]:
    """Processes with their own seconds per step; all wait in `device_wait` for the slowest of them."""
    step_s = max(own_s) + 0.01
    runs = []
    for index, seconds in enumerate(own_s):
        run = WrittenRun(folder, index).write("environment", hostname=f"node-{index}").leg()
        parts = {part: seconds * num_steps, "device_wait": (step_s - seconds) * num_steps, "compile": 5.0 + index}
        run.ledger(num_steps, num_steps, **parts).metrics(num_steps, loss=1.0)
        runs.append(run.end(step=num_steps) if ended else run)
    return runs


def hosts_of(folder: Path) -> HostTable:
    hosts = open_run(folder).hosts
    assert hosts is not None
    return hosts


def noisy(num: int, spread: float = 0.05) -> list[float]:
    """Own times around 20 ms."""
    return (0.02 * (1 + spread * np.random.default_rng(0).standard_normal(num))).tolist()


def test_figures_of_a_process(tmp_path: Path) -> None:
    """A row has the process's host, step, status and seconds per step."""
    write_hosts(tmp_path, [0.02, 0.02])
    host = hosts_of(tmp_path)[1]
    assert (host.process_index, host.hostname, host.step, host.status) == (1, "node-1", 1000, "success")
    assert host.num_steps == 1000
    assert host.wall_s_per_step == pytest.approx(0.036)
    assert host.own_s_per_step == pytest.approx(0.026)
    assert (host.data_wait, host.device_wait, host.other) == (pytest.approx(0.02), pytest.approx(0.01), 0.0)
    assert [each.process_index for each in hosts_of(tmp_path)] == [0, 1]


def test_last_step_of_a_process(tmp_path: Path) -> None:
    """The last step is that of its last row of metrics, whatever came before and after."""
    runs = [WrittenRun(tmp_path, index).leg(step=5).metrics(10, loss=1.0).metrics(20, loss=1.0) for index in range(2)]
    for run in runs:
        run.ledger(20, 20, dispatch=1.0)
    assert [(host.step, host.ended_at) for host in hosts_of(tmp_path)] == 2 * [(20, 1004.0)]


@pytest.mark.parametrize("num", [2, 3, 64])
def test_slow_one_is_named(tmp_path: Path, num: int) -> None:
    """A process that takes three times as long is named with its figures and the part that differs."""
    own = noisy(num)
    own[1] = 0.06
    write_hosts(tmp_path, own)
    (slow,) = hosts_of(tmp_path).slow
    median = float(np.median(np.delete(own, 1)))
    assert (slow.process_index, slow.hostname, slow.part) == (1, "node-1", "data_wait")
    assert (slow.own_s_per_step, slow.median_s_per_step) == (pytest.approx(0.06), pytest.approx(median))
    assert (slow.part_s_per_step, slow.part_median_s_per_step) == (pytest.approx(0.06), pytest.approx(median))
    assert slow.factor == pytest.approx(0.06 / median)
    assert slow.since_step == 0


def test_several_slow_ones(tmp_path: Path) -> None:
    """All that the others wait for are named, the slowest first."""
    own = noisy(16)
    own[3], own[9] = 0.05, 0.08
    write_hosts(tmp_path, own)
    assert [slow.process_index for slow in hosts_of(tmp_path).slow] == [9, 3]


@pytest.mark.parametrize("num", [2, 64])
@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_equal_ones_are_not_slow(tmp_path: Path, num: int, spread: float) -> None:
    """Where all are alike, none is named."""
    write_hosts(tmp_path, noisy(num, spread))
    assert hosts_of(tmp_path).slow == []


def test_spread_ones_are_not_slow(tmp_path: Path) -> None:
    """Where all differ widely, the last of them is nothing unusual."""
    write_hosts(tmp_path, noisy(256, 0.2))
    assert hosts_of(tmp_path).slow == []


def test_one_that_nobody_waits_for_is_not_slow(tmp_path: Path) -> None:
    """Twice as much of very little is nothing, if steps take their time on the device."""
    own = 8 * [0.0001]
    own[2] = 0.0002
    write_hosts(tmp_path, own)
    assert hosts_of(tmp_path).slow == []


@pytest.mark.parametrize("part", ["compile", "setup", "initial_state", "restoring", "drain/WandBLogger"])
def test_what_comes_once_does_not_make_slow(tmp_path: Path, part: str) -> None:
    """A process that found nothing in the compile cache, or that has the logging tools, is not named."""
    write_hosts(tmp_path, 4 * [0.02])
    once = {part: 500.0}
    WrittenRun(tmp_path, 4).leg().ledger(1000, 1000, data_wait=20.0, device_wait=10.0, **once).end(step=1000)
    assert hosts_of(tmp_path).slow == []


def test_one_that_became_slow(tmp_path: Path) -> None:
    """One that has been slow for the last minutes only is named, with the step since when."""
    write_one_that_became_slow(tmp_path)
    (slow,) = hosts_of(tmp_path).slow
    assert (slow.process_index, slow.since_step) == (5, 9700)
    assert slow.own_s_per_step == pytest.approx(0.05)


def test_one_that_became_slow_beside_one_that_died(tmp_path: Path) -> None:
    """A process that died early, and has no last minutes to compare, does not hide it."""
    write_one_that_became_slow(tmp_path)
    WrittenRun(tmp_path, 8).leg().ledger(10, 10, data_wait=0.2, device_wait=0.1)
    assert [(slow.process_index, slow.since_step) for slow in hosts_of(tmp_path).slow] == [(5, 9700)]


def write_one_that_became_slow(folder: Path) -> None:
    """Eight processes, of which number 5 is slow in the last 35 rows of 1,000."""
    for index in range(8):
        run = WrittenRun(folder, index).leg()
        own_s = wait_s = 0.0
        for row in range(1, 1001):
            slow_now = index == 5 and row > 965
            own_s += 10 * (0.05 if slow_now else 0.02)
            wait_s += 10 * ((0.06 if row > 965 else 0.03) - (0.05 if slow_now else 0.02))
            run.ledger(10 * row, 10 * row, data_wait=own_s, device_wait=wait_s)


def test_findings_name_the_slow_one(tmp_path: Path) -> None:
    """The run's verdicts begin with the process that the others wait for."""
    own = noisy(8)
    own[6] = 0.06
    write_hosts(tmp_path, own)
    finding = open_run(tmp_path).findings[0]
    assert (finding.id, finding.severity, finding.subject) == ("slow_host", "severe", "process 6")
    assert finding.title.startswith("the other processes wait 5")
    assert finding.evidence["own_per_step_s"] == pytest.approx(0.06)
    assert "waiting for data takes 60 ms per step there" in finding.advice


def test_silent_one_is_named(tmp_path: Path) -> None:
    """A process that stopped writing while the others went on is named, with its last step."""
    runs = write_hosts(tmp_path, noisy(4), ended=False)
    for run in runs[:3]:
        run.clock.advance(300.0)
        run.metrics(2000, loss=1.0)
    (silent,) = hosts_of(tmp_path).silent
    assert (silent.process_index, silent.hostname, silent.step, silent.others_step) == (3, "node-3", 1000, 2000)
    assert silent.silent_s == pytest.approx(301.0)
    assert [finding.id for finding in open_run(tmp_path).findings] == ["silent_host"]


def test_one_that_ended_without_a_word(tmp_path: Path) -> None:
    """A process that was killed, after which the others ended with an error, is named."""
    runs = write_hosts(tmp_path, noisy(4), ended=False)
    for run in (runs[0], runs[2], runs[3]):
        run.end("error", step=1001)
    assert [silent.process_index for silent in hosts_of(tmp_path).silent] == [1]


def test_none_is_silent_while_all_write(tmp_path: Path) -> None:
    """A process that is a few seconds behind the others is not named."""
    runs = write_hosts(tmp_path, noisy(4), ended=False)
    for run in runs[:3]:
        run.clock.advance(20.0)
        run.metrics(1010, loss=1.0)
    assert hosts_of(tmp_path).silent == []


def test_one_without_rows(tmp_path: Path) -> None:
    """A process that has written nothing at all is silent, and its figures are zero."""
    write_hosts(tmp_path, noisy(3))
    (tmp_path / "events-00003.jsonl").touch()
    hosts = hosts_of(tmp_path)
    assert [silent.process_index for silent in hosts.silent] == [3]
    assert hosts[3].num_steps == 0
    assert hosts.slow == []


def test_data_frame(tmp_path: Path) -> None:
    """Where pandas is installed, the table is a frame with a row per process."""
    pytest.importorskip("pandas")
    write_hosts(tmp_path, [0.02, 0.02])
    frame = hosts_of(tmp_path).to_pandas()
    assert frame.index.tolist() == [0, 1]
    assert frame["data_wait"].tolist() == [pytest.approx(0.02), pytest.approx(0.02)]
