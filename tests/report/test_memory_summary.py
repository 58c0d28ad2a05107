"""What filled the memory of a run."""

from trackside.report.memory_summary import summarise_memory


def test_peak_of_a_device_is_that_of_all_samples() -> None:
    """The highest peak counts, with what the device has."""
    rows = [
        {"step": step, "memory": {"gpu:0": {"peak_bytes_in_use": peak, "bytes_limit": 9}}}
        for step, peak in ((1, 5), (2, 3))
    ]
    memory = summarise_memory(
        rows, [{"name": "host memory", "bytes_per_step": 1}, {"name": "host memory", "bytes_per_step": 2}]
    )
    assert memory is not None
    assert (memory.devices["gpu:0"].peak_bytes, memory.devices["gpu:0"].limit_bytes) == (5, 9)
    assert [leak["bytes_per_step"] for leak in memory.leaks] == [2]
