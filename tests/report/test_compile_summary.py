"""What a run compiled."""

from trackside.report.compile_summary import summarise_compiles


def test_single_operations_are_no_programs() -> None:
    """Operations outside of functions compile by the hundred, and are left out."""
    rows = [
        {"function": "step", "trace_s": 0.5, "lower_s": 0.0, "compile_s": 1.0, "cache": "hit"},
        {"function": "add", "trace_s": 0.0, "lower_s": 0.0, "compile_s": 1.0, "is_operation": True},
    ]
    compiles = summarise_compiles(rows)
    assert (compiles.num_compiles, compiles.seconds) == (1, 1.5)
    assert compiles.functions[0].num_cached == 1
