"""The time to the first step: what it holds and how it reads."""

from trackside.profiling.first_step import TimeToFirstStep


def test_parts_come_in_the_order_of_their_size() -> None:
    """Parts without time are left out, and the others add up."""
    first = TimeToFirstStep.of_parts({"setup": 1.0, "compile": 8.0, "logging": 0.0, "data_wait": 3.0})
    assert list(first.parts) == ["compile", "data_wait", "setup"]
    assert first.wall_s == 12.0


def test_text_names_the_parts_as_people_do() -> None:
    """Waiting for data is the first batch here; what is negligible is not shown."""
    first = TimeToFirstStep.of_parts({"compile": 8.0, "data_wait": 3.0, "other": 0.001})
    assert first.text == "11 s: compiling 8 s, first batch 3 s"
