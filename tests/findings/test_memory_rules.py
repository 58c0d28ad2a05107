"""The rule on memory that grows."""

import pytest

from tests.findings.made_up import leak_row
from trackside.findings import RunFacts
from trackside.findings.memory_rules import SEVERE_BYTES_PER_STEP, memory_growth


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
