"""Stats of events as columns."""

import numpy as np

from tests.trace.synthetic import PlaneWriter, space
from tests.trace.test_xspace import host_plane
from trackside.trace import event_columns
from trackside.trace.event_columns import MISSING
from trackside.trace.xspace import read_xspace


def test_stats_are_columns_with_gaps():
    """A stat that an event lacks is missing, not zero; negative and large numbers come through."""
    plane = read_xspace(space(host_plane())).planes[0]
    np.testing.assert_array_equal(plane.events.stat("run_id"), [MISSING, MISSING, -4])
    np.testing.assert_array_equal(plane.events.stat("program_id"), [MISSING, MISSING, 2**40])
    assert plane.text(int(plane.events.stat("hlo_op")[2])) == "dot.1"
    assert plane.text(MISSING) == ""


def test_stats_of_python_s_tracer_are_not_read():
    """Events of Python's tracer are many, and their stats tell nothing."""
    events = read_xspace(space(host_plane())).planes[0].events
    np.testing.assert_array_equal(events.with_stat("step_num"), [0])


def test_texts_that_events_carry_themselves():
    """A text may be in the event and not among the plane's names."""
    plane = PlaneWriter("/device:GPU:0")
    for index in range(3):
        plane.event("Stream #1", "kernel", index, 1, annotation=f"layer_{index % 2}/MatMul")
    read = read_xspace(space(plane)).planes[0]
    ids = read.events.stat("annotation").tolist()
    assert [read.text(each) for each in ids] == ["layer_0/MatMul", "layer_1/MatMul", "layer_0/MatMul"]
    assert ids[0] == ids[2]


def test_events_without_a_time_are_left_out():
    """An event that stands for a number of occurrences lies nowhere, and the others keep their stats."""
    plane = PlaneWriter("/host:CPU")
    plane.counted_event("a", "many", 12)
    plane.event("a", "train", 4, 1, step_num=8)
    events = read_xspace(space(plane)).planes[0].events
    assert len(events) == 1
    np.testing.assert_array_equal(events.stat("step_num"), [8])


def test_chunks_make_no_difference(monkeypatch):
    """However many events are decoded at a time, the columns are the same."""
    plane = PlaneWriter("/host:CPU")
    for index in range(50):
        plane.event(f"line {index // 20}", f"op.{index % 7}", index, 1, **({"run_id": index} if index % 3 else {}))
    whole = read_xspace(space(plane)).planes[0].events
    monkeypatch.setattr(event_columns, "_CHUNK_EVENTS", 4)
    parts = read_xspace(space(plane)).planes[0].events
    for name in ("line", "metadata_id", "start_ps", "end_ps"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    np.testing.assert_array_equal(parts.stat("run_id"), whole.stat("run_id"))
