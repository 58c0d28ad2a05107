"""Traces of all kinds of damage: analysed, or refused by a documented error, in bounded memory."""

import contextlib
import tracemalloc

import pytest

from tests.fuzzing import mutated_bytes, mutated_row, random_sources
from tests.trace.synthetic import fused_chain, message, varint
from tests.trace.test_analyse import COSTS, cpu_space, fused_space, gpu_space, two_programs
from trackside.errors import TraceError
from trackside.trace import TraceReport, analyse_trace
from trackside.trace.peak_memory import peak_memory

NUM_INPUTS = 400
SPACES = [cpu_space(), gpu_space(), two_programs(), fused_space(fused_chain(COSTS))]


def test_damaged_traces_raise_documented_errors_only():
    """A trace with damaged bytes gives a report that can be written and read back, or a TraceError."""
    for number, chance in enumerate(random_sources(NUM_INPUTS, seed=1)):
        data = mutated_bytes(chance.choice(SPACES), chance)
        try:
            report = analyse_trace(data, marked_only=chance.random() < 0.2)
            assert TraceReport.from_dict(report.to_dict()) == report
            for module in report.modules.values():
                peak_memory(module.proto)
        except TraceError:
            continue
        except Exception as error:
            raise AssertionError(f"input {number}: {data!r}") from error


def plane(*events: bytes, line: bytes = b"") -> bytes:
    """A host's plane whose events may have the stat `hlo_op`."""
    named = [message((1, 1), (2, message((1, 1), (2, name)))) for name in ("dot", "hlo_op")]
    parts = [(2, "/host:CPU"), (4, named[0]), (5, named[1])]
    return message((1, message(*parts, (3, message((2, "line"), *((4, event) for event in events)) + line))))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(plane(line=varint(4 << 3 | 2) + varint(2**63 + 5) + b"x" * 200), id="length of an event"),
        pytest.param(plane(message((1, 1), (2, 2**63 - 1), (3, 2**63 - 1))), id="times"),
        pytest.param(plane(message((1, 1), (2, 5)), line=message((3, 2**62))), id="timestamp"),
        pytest.param(plane(message((1, 1), (2, 5), (3, 6), (4, message((1, 1), (7, 2**63 + 9))))), id="reference"),
        pytest.param(plane(message((1, 1), (2, 5), (3, 6), (4, 2**63 + 9))), id="a number for a stat"),
    ],
)
def test_numbers_that_no_trace_has(data):
    """Lengths, times and references beyond all bounds are refused, or their events left out."""
    with contextlib.suppress(TraceError):
        analyse_trace(data)


def test_damaged_traces_take_little_memory():
    """No length or number that a damaged trace claims makes the reader reserve memory for it."""
    tracemalloc.start()
    for number, chance in enumerate(random_sources(NUM_INPUTS // 4, seed=2)):
        data = mutated_bytes(chance.choice(SPACES), chance)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            analyse_trace(data)
        except TraceError:
            pass
        except Exception as error:
            raise AssertionError(f"input {number}: {data!r}") from error
        assert tracemalloc.get_traced_memory()[1] - before < 100e6, f"input {number}: {data!r}"
    tracemalloc.stop()


def test_odd_reports_raise_documented_errors_only():
    """Plain values of any kind in the place of a report's are read, or refused by a TraceError."""
    plain = [analyse_trace(space).to_dict() for space in SPACES]
    for chance in random_sources(NUM_INPUTS, seed=3):
        odd = chance.choice(plain)
        for _ in range(chance.choice([1, 3, 10])):
            odd = mutated_row(odd, chance)
        try:
            report = TraceReport.from_dict(odd)
            report.to_dict()
        except TraceError:
            continue
