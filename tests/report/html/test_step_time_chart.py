"""Step time over the run: each mean covers its own interval."""

from pathlib import Path

from trackside.events import EventWriter
from trackside.report import summarise_run
from trackside.report.html import step_time_chart
from trackside.run_layout import event_file_name
from trackside.runs import open_run


def test_mean_covers_its_own_interval(tmp_path: Path) -> None:
    """A log row is the mean since the row before it: it is drawn as a level from there to its own step."""
    events = EventWriter(tmp_path / event_file_name(0))
    for step in range(20, 101, 20):
        events.write_metrics({"loss_mean": 1.0, "step_time": 0.001 * step}, step, 1, "train")
    events.close()
    run = open_run(tmp_path)
    line = step_time_chart.build(summarise_run(run), run).charts[0].traces[0]
    assert line["name"] == "clean"
    assert line["line"]["shape"] == "vh"
    assert (line["x"], line["y"]) == ([20, 40, 60, 80, 100], [40, 40, 60, 80, 100])
