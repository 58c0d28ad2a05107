"""The rules on memory that grows, and on memory that steps do not reuse."""

import pytest

from tests.findings.made_up import leak_row
from trackside.findings import RunFacts
from trackside.findings.judged_time import MIN_STEPS
from trackside.findings.memory_rules import (
    MIN_FRESH_PER_S,
    MIN_SYSTEM_SHARE,
    SEVERE_BYTES_PER_STEP,
    memory_growth,
    memory_not_reused,
)
from trackside.profiling.fresh_memory import FreshMemory


@pytest.mark.parametrize(
    ("name", "expected_id", "expected_title"),
    [
        (
            "host memory",
            "host_memory_growth",
            "host memory has grown by 500 kB per 100 steps since step 20",
        ),
        (
            "other live arrays",
            "device_memory_growth",
            "other live arrays have grown by 500 kB per 100 steps since step 20",
        ),
        (
            "memory in use on cuda:0",
            "device_memory_growth",
            "memory in use on cuda:0 has grown by 500 kB per 100 steps since step 20",
        ),
    ],
)
def test_growth_is_told_by_where_it_is(name, expected_id, expected_title):
    """Memory of the host and of devices are findings with ids of their own, and name what grows."""
    (finding,) = memory_growth(RunFacts(leaks=[leak_row(name, 5000.0)]))
    assert (finding.id, finding.title, finding.subject) == (expected_id, expected_title, name)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(6.4, "warning"), (SEVERE_BYTES_PER_STEP - 1, "warning"), (SEVERE_BYTES_PER_STEP, "severe")],
)
def test_edges_of_growth(rate, expected):
    """A gigabyte in a thousand steps is severe."""
    (finding,) = memory_growth(RunFacts(leaks=[leak_row(bytes_per_step=rate)]))
    assert finding.severity == expected


def test_each_leak_is_a_finding():
    """Two things that grow are two findings."""
    assert len(list(memory_growth(RunFacts(leaks=[leak_row(), leak_row("host memory")])))) == 2


def test_leak_of_several_legs_is_one_finding():
    """What is found again after a restart is told once, with the last figures."""
    (finding,) = memory_growth(RunFacts(leaks=[leak_row(bytes_per_step=1.0), leak_row(bytes_per_step=2.0)]))
    assert finding.evidence["bytes_per_step"] == 2.0


def test_silent_without_leaks():
    """A run in which nothing was seen growing has no finding."""
    assert list(memory_growth(RunFacts())) == []


def fresh(num_bytes: float = 50 << 20, system_share: float = 0.5, num_steps: int = 100) -> FreshMemory:
    """That of steps of 50 ms."""
    return FreshMemory(num_bytes * num_steps, num_steps, system_share * num_steps * 0.05, num_steps * 0.05)


def test_memory_that_is_not_reused_is_told_with_what_to_set():
    """The title says how much it is, and the advice has the settings of the C library."""
    finding = memory_not_reused(RunFacts(fresh_memory=fresh()))
    assert finding is not None
    assert finding.title == (
        "each step gets 52.4 MB of fresh memory from the operating system, which spends 50 % of the time on this run"
    )
    assert "MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=2147483648" in finding.advice


@pytest.mark.parametrize(
    "facts",
    [
        RunFacts(),
        RunFacts(fresh_memory=fresh(num_bytes=0.04 * MIN_FRESH_PER_S)),
        RunFacts(fresh_memory=fresh(system_share=MIN_SYSTEM_SHARE - 0.01)),
        RunFacts(fresh_memory=fresh(num_steps=MIN_STEPS - 1)),
        RunFacts(fresh_memory=FreshMemory(0.0, 0, 0.0, 0.0)),
    ],
    ids=["not measured", "little memory", "little time", "few steps", "no step"],
)
def test_little_memory_and_little_time_are_no_finding(facts):
    """Fresh memory that costs nothing is not worth a word."""
    assert memory_not_reused(facts) is None
