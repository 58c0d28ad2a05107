"""By which metric a run is judged."""

from pathlib import Path

import numpy as np
import pytest

from trackside.events import EventWriter
from trackside.run_layout import event_file_name
from trackside.runs import Run, open_run
from trackside.runs.best_metric import BestMetric, Monitored, best_metric, best_of, choose_metric


def run_with(folder: Path, values: list[float]) -> Run:
    """A run that was validated at steps 10, 20, ... with these accuracies."""
    writer = EventWriter(folder / event_file_name(0))
    for number, value in enumerate(values, 1):
        writer.write_metrics({"accuracy": value}, 10 * number, number, "val")
    writer.close()
    return open_run(folder)


def monitoring(monitor: str, mode: str = "min", name: str = "CheckpointConfig") -> dict:
    return {"trainer": {"callbacks": [{"__class__": name, "monitor": monitor, "mode": mode}]}}


@pytest.mark.parametrize("monitor", ["val_accuracy", "val/accuracy", "accuracy"])
def test_monitor_is_found_by_any_name(monitor: str) -> None:
    """A monitor may be written in each of the ways that callbacks take."""
    chosen = choose_metric(monitoring(monitor, "max"), {"train": ["loss_mean"], "val": ["loss", "accuracy"]})
    assert chosen == Monitored("val", "accuracy", "max")


def test_monitor_of_training_is_found() -> None:
    """What is only measured in training is found there, by its mean."""
    assert choose_metric(monitoring("train_loss"), {"train": ["loss_mean"]}) == Monitored("train", "loss_mean", "min")


def test_checkpoint_decides_before_early_stopping() -> None:
    """Where two callbacks monitor, the one that keeps models says what is best."""
    callbacks = monitoring("val_loss", name="EarlyStoppingConfig")["trainer"]["callbacks"]
    callbacks += monitoring("val_accuracy", "max")["trainer"]["callbacks"]
    chosen = choose_metric({"trainer": {"callbacks": callbacks}}, {"val": ["loss", "accuracy"]})
    assert chosen == Monitored("val", "accuracy", "max")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"train": ["loss_mean"], "val": ["accuracy", "loss"]}, Monitored("val", "loss", "min")),
        ({"train": ["loss_mean"], "val": ["r2"]}, Monitored("val", "r2", "max")),
        ({"train": ["grad_norm_mean", "loss_mean"]}, Monitored("train", "loss_mean", "min")),
        ({"train": ["epoch", "step_time", "grad_norm_mean"]}, None),
        ({}, None),
    ],
)
def test_choice_without_a_monitor(names: dict[str, list[str]], expected: Monitored | None) -> None:
    """Validation loss, else what else was validated, else the training loss, else nothing."""
    assert choose_metric({}, names) == expected


def test_values_that_are_not_finite_are_never_best() -> None:
    """A NaN or an infinity wins nothing."""
    best = best_of(Monitored("val", "loss", "max"), np.array([1, 2, 3]), np.array([1.0, np.inf, np.nan]))
    assert best is not None
    assert (best.value, best.step) == (1.0, 1)


def test_no_finite_value_no_best() -> None:
    """A run that was NaN from the start has no best."""
    assert best_of(Monitored("val", "loss", "min"), np.array([1]), np.array([np.nan])) is None


def test_best_of_a_run_has_its_step_and_the_last_value(tmp_path: Path) -> None:
    """The metric is chosen from the run's tables, and its best value comes with the step it was reached at."""
    assert best_metric(run_with(tmp_path, [0.5, 0.9, 0.7])) == BestMetric(
        *("val_accuracy", 0.9, 20, 0.7, "max", "val", "accuracy")
    )


def test_run_without_a_metric_has_no_best(tmp_path: Path) -> None:
    """Nothing is made up for a run that was never validated nor trained."""
    assert best_metric(run_with(tmp_path, [])) is None


def test_last_value_that_is_nan_is_said(tmp_path: Path) -> None:
    """A run that ends in NaN has its best value, and no last one."""
    best = best_metric(run_with(tmp_path, [0.5, 0.9, float("nan")]))
    assert best is not None
    assert (best.value, best.last) == (0.9, None)


@pytest.mark.parametrize("trainer", [[[]], 3.0, {"callbacks": 3}, {"callbacks": [3, {"monitor": 3}]}, None])
def test_odd_configs_monitor_nothing(trainer: object) -> None:
    """A config of another shape, as another program or damage may leave it, has no monitor."""
    assert choose_metric({"trainer": trainer}, {"val": ["loss"]}) == Monitored("val", "loss", "min")
