"""Events of xplane files as columns."""

import numpy as np
import pytest

from tests.trace.synthetic import PlaneWriter, message, space
from trackside.trace.wire import WireError
from trackside.trace.xspace import read_xspace


def host_plane() -> PlaneWriter:
    plane = PlaneWriter("/host:CPU", process_id=17, share=0.5, kind="text")
    plane.line("python", timestamp_ns=1_000)
    plane.event("python", "train", 10, 5, step_num=3)
    plane.event("python", "$file.py:1 f", 11, 1, step_num=9)
    plane.line("worker", timestamp_ns=1_100)
    plane.event("worker", "dot.1", 2.5, 1, hlo_op="dot.1", run_id=-4, program_id=2**40, device_ordinal=1)
    return plane


def test_times_are_picoseconds_since_the_first_line():
    """A line's timestamp and an event's offset add up; lines are put on one clock."""
    events = read_xspace(space(host_plane())).planes[0].events
    np.testing.assert_array_equal(events.start_ps, [10_000, 11_000, 102_500])
    np.testing.assert_array_equal(events.end_ps - events.start_ps, [5_000, 1_000, 1_000])
    np.testing.assert_array_equal(events.line, [0, 0, 1])


def test_timestamps_since_1970_do_not_overflow():
    """Nanoseconds of the wall clock fit, although they do not in picoseconds."""
    plane = PlaneWriter("/host:CPU")
    plane.line("a", timestamp_ns=1_794_797_908_929_093_115)
    plane.event("a", "e", 0, 1)
    plane.line("b", timestamp_ns=1_794_797_908_929_093_117)
    plane.event("b", "e", 0, 1)
    np.testing.assert_array_equal(read_xspace(space(plane)).planes[0].events.start_ps, [0, 2_000])


def test_metadata_is_decoded_with_its_stats():
    """What events of a name share is at hand by their id."""
    plane = PlaneWriter("/device:TPU:0")
    plane.describe("%fusion.1 = f32[]", "fusion.1", tf_op="jit(f)/add", flops=12, raw=b"\x00\xff", ratio=0.25)
    plane.event("XLA Ops", "%fusion.1 = f32[]", 0, 1)
    read = read_xspace(space(plane)).planes[0]
    metadata = read.metadata(int(read.events.metadata_id[0]))
    assert (metadata.name, metadata.display_name) == ("%fusion.1 = f32[]", "fusion.1")
    assert metadata.stats == {"tf_op": "jit(f)/add", "flops": 12, "raw": b"\x00\xff", "ratio": 0.25}


def test_plane_stats():
    """A plane's own stats come with their names."""
    assert read_xspace(space(host_plane())).planes[0].stats == {"process_id": 17, "share": 0.5, "kind": "text"}


def test_what_the_profiler_says_is_kept():
    """Warnings are part of the file."""
    read = read_xspace(space(host_plane(), warnings=["dropped events"]))
    assert read.warnings == ["dropped events"]
    assert read.num_events == 3


@pytest.mark.parametrize("data", [message((9, "x")), message((1, b"\x12\x50"))], ids=["other fields", "broken plane"])
def test_other_messages_are_refused(data):
    """A message of another kind is an error."""
    with pytest.raises(WireError):
        read_xspace(data)
