"""What a W&B run lacks after a kill, read from the event file."""

from pathlib import Path

from trackside.events import EventWriter
from trackside.logger.wandb_history import rows_up_to
from trackside.run_layout import event_file_name


def test_rows_of_one_step_are_put_together(tmp_path: Path) -> None:
    """Two rows of a step, as by a learning-rate monitor, become one with the metrics of both; the last leg counts."""
    path = tmp_path / event_file_name(0)
    writer = EventWriter(path)
    for leg in (1.0, 2.0):
        for step in (1, 2):
            writer.write_metrics({"learning_rate": 0.1}, step, 1, "train")
            writer.write_metrics({"loss": leg}, step, 1, "train")
    writer.write_metrics({"loss": 5.0}, 3, 1, "train")
    writer.close()
    rows = rows_up_to(path, step=2)
    assert [(row["step"], row["values"]) for row in rows] == [
        (step, {"learning_rate": 0.1, "loss": 2.0}) for step in (1, 2)
    ]
