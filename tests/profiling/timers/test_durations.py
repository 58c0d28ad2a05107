import math
import random
import threading

import pytest

from trackside.profiling.timers.durations import MAX_PENDING, DurationSketch


def exact_quantile(values, share):
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def sketch_of(values):
    sketch = DurationSketch()
    for value in values:
        sketch.add(value)
    return sketch


def test_counts_sums_and_extremes_are_exact():
    """Count, total, smallest and largest are those of the records, however many folds they took."""
    values = [1e-6 * (index + 1) for index in range(3 * MAX_PENDING + 5)]
    found = sketch_of(values).summarise()
    assert (found.count, found.min_s, found.max_s) == (len(values), values[0], values[-1])
    assert found.total_s == pytest.approx(math.fsum(values), rel=1e-12)
    assert found.mean_s == pytest.approx(math.fsum(values) / len(values), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 10.0])
def test_quantiles_are_within_half_a_percent(scale):
    """A quantile is within 0.4 % of the record that it stands for, however many folds the records took."""
    rng = random.Random(0)
    values = [scale * rng.lognormvariate(0, 1) for _ in range(4 * MAX_PENDING + 5)]
    found = sketch_of(values).summarise()
    for estimate, share in ((found.p50_s, 0.5), (found.p95_s, 0.95), (found.p99_s, 0.99)):
        assert estimate == pytest.approx(exact_quantile(values, share), rel=0.004)


def test_records_of_other_sizes_join_the_histogram():
    """Batches of records that are far smaller and far larger than earlier ones count with them."""
    sketch = DurationSketch()
    for value in (1e-3, 1e-6, 1e2, 1e-3):
        sketch.add(value)
        sketch.fold()
    found = sketch.summarise()
    assert (found.p50_s, found.p99_s) == (pytest.approx(1e-3, rel=0.004), 1e2)


def test_memory_does_not_grow_with_the_records():
    """A hundred thousand records within a factor of two leave 128 buckets and a list that is not full."""
    rng = random.Random(0)
    sketch = sketch_of(rng.uniform(1e-3, 2e-3) for _ in range(100_000))
    assert len(sketch.pending) < MAX_PENDING
    assert len(sketch._counts) <= 130


def test_quantiles_stay_between_the_extremes():
    """The quantiles of equal records are these records, not the middle of their bucket."""
    found = sketch_of([0.123] * 10).summarise()
    assert {found.p50_s, found.p99_s, found.min_s, found.max_s} == {0.123}


def test_nothing_recorded_is_all_zero():
    """Without records there are zeros, and no error."""
    found = DurationSketch().summarise()
    assert (found.count, found.mean_s, found.min_s, found.max_s, found.p99_s) == (0, 0.0, 0.0, 0.0, 0.0)


def test_exclusive_time_is_the_total_without_nested_time():
    """What is nested counts off, and never below zero."""
    sketch = sketch_of([2.0, 3.0])
    sketch.nested.append(1.5)
    assert sketch.summarise().exclusive_s == 3.5
    sketch.nested.append(9.0)
    assert sketch.summarise().exclusive_s == 0.0


def test_clear_forgets_everything():
    """After clearing, only what comes later counts."""
    sketch = sketch_of([5.0] * 300)
    sketch.clear()
    sketch.add(1.0)
    found = sketch.summarise()
    assert (found.count, found.max_s, found.p50_s) == (1, 1.0, 1.0)


def test_no_record_is_lost_between_threads():
    """Records of several threads are all counted, while another one asks for summaries."""
    sketch = DurationSketch()

    def add_many():
        for _ in range(5000):
            sketch.add(1.0)

    threads = [threading.Thread(target=add_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        sketch.summarise()
    found = sketch.summarise()
    assert (found.count, found.total_s) == (20_000, 20_000.0)
