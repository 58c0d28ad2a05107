"""What is best: the names that users write, and the one order that stopping, keeping, loading and reports share."""

import json
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks import Callback, CheckpointConfig, EarlyStopping, EarlyStoppingConfig, ModelCheckpoint
from trackside.callbacks.model_checkpoint import steps_to_keep
from trackside.cli.run_glance import glance_at
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig
from trackside.monitor import Mode, Monitor, direction_of
from trackside.runs import open_run
from trackside.runs.best_metric import best_metric
from trackside.trainer.checkpoints import best_first
from trackside.trainer.saved_training import metrics_to_record, saved_ranks, saved_stages

NAN, INF = math.nan, math.inf
TRAIN = {"loss_mean": 1.0, "perplexity": 2.0, "acc_single": 3.0}
VAL = {"loss": 11.0, "perplexity": 12.0, "a_loss": 13.0}
VALIDATION = make_loader(1, seed=50)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val_loss", 11.0),
        ("val/loss", 11.0),
        ("loss", 11.0),
        ("train_loss", 1.0),
        ("train/loss", 1.0),
        ("train/loss_mean", 1.0),
        ("train_acc", 3.0),
        ("perplexity", 12.0),
        ("train_perplexity", 2.0),
        ("a_loss", 13.0),
        ("val_a_loss", 13.0),
        ("val/a_loss", 13.0),
        ("acc", None),
        ("val_acc", None),
        ("train_a_loss", None),
    ],
)
def test_names_where_a_training_validates(name: str, expected: float | None) -> None:
    """A name means one metric of one stage, and never that of the other."""
    monitor = Monitor(name)
    stage = monitor.stage_where(validates=True)
    assert monitor.find({"train": TRAIN, "val": VAL}[stage], stage) == expected


@pytest.mark.parametrize(("name", "expected"), [("loss", 1.0), ("train_loss", 1.0), ("perplexity", 2.0), ("acc", 3.0)])
def test_names_where_nothing_is_validated(name: str, expected: float) -> None:
    """A plain name is a metric of training where that is all there is."""
    monitor = Monitor(name)
    stage = monitor.stage_where(validates=False)
    assert stage == "train"
    assert monitor.find(TRAIN, stage) == expected


def test_metric_of_a_validation_that_never_comes() -> None:
    """A metric of validation is refused before the first step where nothing validates."""
    with pytest.raises(ConfigError, match="this training never validates"):
        Monitor("val_loss").check(validates=False)


@pytest.mark.parametrize(
    ("value", "than", "mode", "expected"),
    [
        (1.0, 2.0, "min", True),
        (2.0, 1.0, "max", True),
        (1.0, 1.0, "min", False),
        (NAN, None, "min", False),
        (1.0, NAN, "min", True),
        (INF, 1.0, "max", False),
        (1.0, None, "max", True),
    ],
)
def test_better(value: float, than: float | None, mode: Mode, expected: bool) -> None:
    """A finite value is better than none and than one that is not finite; a tie is not better."""
    assert Monitor("loss", mode).is_better(value, than) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", "min"),
        ("accuracy_mean", "max"),
        ("a_top5_accuracy", "max"),
        ("accumulated_loss", "min"),
        ("score/error_rate", "min"),
        ("F1", "max"),
        ("wall", "min"),
    ],
)
def test_direction_by_name(name: str, expected: Mode) -> None:
    """A metric without a monitor is judged by its name: a loss or an error is low, an accuracy or a score high."""
    assert direction_of(name) == expected


@pytest.mark.parametrize("mode", ["min", "max"])
def test_ranks_of_many_are_those_of_each(mode: Mode) -> None:
    """Ranking a column and ranking its values one by one is the same."""
    values = [1.0, NAN, -2.0, INF, -INF, 0.0]
    monitor = Monitor("loss", mode)
    assert monitor.rank_all(np.array(values)).tolist() == [monitor.rank(value) for value in values]


@pytest.mark.parametrize(
    ("ranks", "save_top_k", "expected"),
    [
        ([3.0, 1.0, 2.0], 1, {2, 3}),
        ([3.0, 1.0, 2.0, 4.0], 2, {2, 3, 4}),
        ([4.0, 3.0, 2.0, 1.0], 1, {3, 4}),
        ([1.0, INF, INF], 1, {1, 3}),
        ([INF, INF, INF], 1, {2, 3}),
        ([1.0, 1.0, 1.0], 1, {1, 3}),
        ([2.0, 1.0, 1.0, 5.0], 1, {2, 4}),
        ([1.0, 2.0, 3.0], 0, {2, 3}),
        ([1.0, 2.0, 3.0], -1, {1, 2, 3}),
        ([1.0], 1, {1}),
    ],
)
def test_steps_to_keep(ranks: list[float], save_top_k: int, expected: set[int]) -> None:
    """The best are kept, of equally good ones the first; the latest; and at least two."""
    assert steps_to_keep(dict(enumerate(ranks, 1)), save_top_k) == expected


# --- keeping, loading and lending agree with a plain sort -------------------------------------------------------------

SCORES = st.one_of(st.none(), st.sampled_from([NAN, INF, -INF]), st.integers(-3, 3).map(float))
"""Of an epoch: not validated, not finite, or a score; small whole numbers, so that there are ties."""
EPOCHS = st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=12)
"""Scores, and whether the epoch's save fails."""


def stages_of(score: float | None) -> dict[str, dict[str, float]]:
    """The metrics of an epoch: training's loss is always better than any score, and must never count as one."""
    return {
        "train": {"loss_mean": -100.0, "score": -100.0},
        **({"val": {"loss": 0.0, "score": score}} if score is not None else {}),
    }


def sorted_plainly(scores: dict[int, float | None], mode: Mode) -> list[int]:
    """The steps with a finite score, the best first, and the first of those that are equal."""
    finite = [
        (score if mode == "min" else -score, step)
        for step, score in scores.items()
        if score is not None and math.isfinite(score)
    ]
    return [step for _, step in sorted(finite)]


def expected_to_keep(scores: dict[int, float | None], mode: Mode, save_top_k: int) -> set[int]:
    kept = {*sorted_plainly(scores, mode)[:save_top_k], *([max(scores)] if scores else [])}
    return kept if len(kept) > 1 else {*kept, *sorted(scores)[-2:]}


def keeper_of(mode: Mode, save_top_k: int, dirpath: str | None = None) -> ModelCheckpoint:
    return ModelCheckpoint(CheckpointConfig(dirpath, "val_score", mode, save_top_k))


@given(EPOCHS, st.sampled_from(["min", "max"]), st.integers(0, 3))
def test_kept_and_loaded_is_what_a_sort_gives(epochs: list[tuple[float | None, bool]], mode: Mode, top_k: int) -> None:
    """However epochs are validated, fail and diverge: the steps that pruning leaves, and the best of them."""
    keeper = keeper_of(mode, top_k)
    saved: dict[int, str] = {}
    scores: dict[int, float | None] = {}
    for step, (score, fails) in enumerate(epochs, 1):
        if fails:
            continue
        scores[step] = score
        saved[step] = json.dumps(metrics_to_record(stages_of(score), keeper), allow_nan=False)
        kept = keeper.choose({step: saved_stages(json.loads(record)) for step, record in saved.items()})
        saved = {step: record for step, record in saved.items() if step in kept}
        assert set(saved) == expected_to_keep(scores, mode, top_k)
    records = {step: json.loads(record) for step, record in saved.items()}
    kept_scores = {step: scores[step] for step in saved}
    assert list(best_first(saved_ranks(records))) == sorted_plainly(kept_scores, mode)
    if top_k:
        assert sorted_plainly(kept_scores, mode)[:1] == sorted_plainly(scores, mode)[:1]


@pytest.fixture(scope="module")
def trainer() -> Any:
    return make_trainer(resume="auto")


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(SCORES, st.booleans()), min_size=2, max_size=5), st.sampled_from(["min", "max"]))
def test_real_checkpoints_agree(
    trainer: Any, tmp_path_factory: pytest.TempPathFactory, epochs: list[tuple[float | None, bool]], mode: Mode
) -> None:
    """What is on disk, what `load_best` loads and what `best_model` lends is what a plain sort gives.

    A save fails here as it does in a training: its state is not finite, and nothing is committed.
    """
    keeper = keeper_of(mode, 1, str(tmp_path_factory.mktemp("checkpoints")))
    trainer.checkpoint_callback, progress = keeper, trainer.progress
    initial, scores = jax.device_get(progress.carry), {}
    for step, (score, fails) in enumerate(epochs, 1):
        params = jax.tree.map(lambda leaf, value=NAN if fails else step: jnp.full_like(leaf, value), initial.params)
        carry = initial._replace(params=params, step=jnp.asarray(step, jnp.int32))
        progress.begin_at(jax.device_put(carry, trainer.engine.carry_shardings), step)
        for stage, metrics in stages_of(score).items():
            progress.metrics.add(stage, step, metrics)
        trainer.save_checkpoint(keeper.directory, keep=keeper.choose)
        scores.update({} if fails else {step: score})
    trainer.finish_saving()
    store, best = trainer.checkpoints.store(keeper.directory), sorted_plainly(scores, mode)[:1]
    assert set(store.steps()) == expected_to_keep(scores, mode, 1)
    with trainer.best_model():
        lent = jax.tree.leaves(trainer.state.params)[0].ravel()[0].item()
    assert lent == best[0] if best else lent == len(epochs) or math.isnan(lent)
    if scores:
        assert trainer.load_pretrained_model(keeper.directory, load_best=True) == (best or [max(scores)])[0]
    progress.begin_at(jax.device_put(initial, trainer.engine.carry_shardings), 0)


# --- the same in trainings --------------------------------------------------------------------------------------------


class Scores(Callback):
    """Gives each validation, and each epoch of training, a score of its own."""

    def __init__(self, val: Iterable[float], train: Iterable[float] = ()):
        super().__init__()
        self._val, self._train = iter(val), iter(train)

    def on_training_epoch_end(self, train_metrics: dict[str, Any], epoch_idx: int) -> None:
        train_metrics["score"] = next(self._train, -100.0)

    def on_validation_epoch_end(self, eval_metrics: dict[str, Any], epoch_idx: int, step_idx: int) -> None:
        eval_metrics["score"] = next(self._val)


def lent_step(trainer: Any) -> int:
    with trainer.best_model():
        return int(trainer.state.step)


def test_epochs_without_a_validation_are_never_best(tmp_path: Path) -> None:
    """An epoch that was not validated has no score, however good its training was."""
    trainer = make_trainer(check_val_every_n_epoch=2)
    keeper = keeper_of("min", 1, str(tmp_path))
    trainer.fit(make_loader(1), VALIDATION, num_epochs=5, callbacks=[Scores([1.0, 2.0]), keeper])
    assert trainer.checkpoints.store(tmp_path).steps() == [2, 5]
    assert lent_step(trainer) == 2


def test_metric_of_training_is_kept_by(tmp_path: Path) -> None:
    """`train_score` ranks by training's metric, where validation has one of that name too."""
    trainer = make_trainer()
    keeper = ModelCheckpoint(CheckpointConfig(str(tmp_path), "train_score"))
    trainer.fit(make_loader(1), VALIDATION, num_epochs=3, callbacks=[Scores([1, 2, 3], [3, 1, 2]), keeper])
    assert trainer.checkpoints.store(tmp_path).steps() == [2, 3]
    assert lent_step(trainer) == 2


def test_best_is_kept_where_saving_is_by_steps(tmp_path: Path) -> None:
    """A checkpoint by steps has the score of a validation at the same step."""
    trainer = make_trainer(check_val_every_n_epoch=-1, check_val_every_n_steps=1)
    config = CheckpointConfig(str(tmp_path), "val_score", every_n_epochs=-1, every_n_steps=1)
    trainer.fit(make_loader(4), VALIDATION, callbacks=[Scores([3, 1, 2, 4]), ModelCheckpoint(config)])
    assert trainer.checkpoints.store(tmp_path).steps() == [2, 4]
    assert lent_step(trainer) == 2


def test_misspelt_monitor_where_saving_is_by_steps(tmp_path: Path) -> None:
    """A monitor that is not a metric is an error also where no epoch is saved."""
    config = CheckpointConfig(str(tmp_path), "val_scroe", every_n_epochs=-1, every_n_steps=1)
    with pytest.raises(ConfigError, match=r"val_scroe.*loss"):
        make_trainer().fit(make_loader(2), VALIDATION, callbacks=[ModelCheckpoint(config)])


@pytest.mark.parametrize("in_checkpoints", [True, False])
def test_folder_of_a_step_is_that_step(tmp_path: Path, in_checkpoints: bool) -> None:
    """A path that names a step loads this step and not the latest, for a run's folder and any other."""
    folder = tmp_path / "checkpoints" if in_checkpoints else tmp_path
    trainer = make_trainer()
    saving = ModelCheckpoint(CheckpointConfig(str(folder), save_top_k=-1))
    trainer.fit(make_loader(1), num_epochs=2, callbacks=[saving])
    assert trainer.load_pretrained_model(folder / "1") == 1
    assert trainer.global_step == 1
    assert trainer.load_pretrained_model(folder) == 2


@pytest.mark.parametrize("monitor", ["loss", "val_loss", "train_loss"])
def test_one_check_per_epoch(monitor: str) -> None:
    """A metric that both stages have is checked once per epoch."""
    trainer = make_trainer(lr=0.0)
    stopper = EarlyStopping(EarlyStoppingConfig(monitor=monitor, patience=3))
    trainer.fit(make_loader(1), VALIDATION, num_epochs=8, callbacks=[stopper])
    assert trainer.epoch == 4


@pytest.mark.parametrize(
    ("scores", "options", "epoch"),
    [
        ([1.0, NAN, NAN, NAN, 0.0], {"patience": 2}, 3),
        ([NAN, NAN, NAN], {"patience": 2}, 2),
        ([1.0, INF, 0.0], {"divergence_threshold": 5.0}, 2),
        ([1.0, -INF, 0.0], {"divergence_threshold": -5.0, "mode": "max"}, 2),
        ([1.0, NAN, 0.0], {"check_finite": True}, 2),
    ],
)
def test_scores_that_are_not_finite(scores: list[float], options: dict[str, Any], epoch: int) -> None:
    """They are never better, use up patience, and infinity is beyond any threshold."""
    config = EarlyStoppingConfig(**{"monitor": "val_score", "check_finite": False, **options})
    trainer = make_trainer(lr=0.0)
    callbacks = [Scores(scores), EarlyStopping(config)]
    trainer.fit(make_loader(1), VALIDATION, num_epochs=len(scores), callbacks=callbacks)
    assert trainer.epoch == epoch


@pytest.mark.parametrize(
    ("monitor", "mode", "step", "label"),
    [("val_score", "min", 2, "val_score"), ("score", "max", 1, "val_score"), ("train/score", "min", 3, "train_score")],
)
def test_every_view_means_the_same(tmp_path: Path, monitor: str, mode: Mode, step: int, label: str) -> None:
    """One name and mode choose the same step for keeping, loading, lending, early stopping, `ls` and the report."""
    run, scores = tmp_path / "run", Scores([3.0, 1.0, 1.0, 2.0], [4.0, 3.0, 1.0, 2.0])
    stopper = EarlyStopping(EarlyStoppingConfig(monitor=monitor, mode=mode))
    callbacks = [scores, CheckpointConfig(None, monitor, mode), stopper]
    trainer = make_trainer(logger=LoggerConfig(log_path=run), callbacks=callbacks)
    trainer.train_model(make_loader(1), VALIDATION, num_epochs=4)
    reported, listed = best_metric(open_run(run)), glance_at(run).best
    assert step in trainer.checkpoints.store(None).steps()
    assert lent_step(trainer) == step
    assert trainer.load_pretrained_model(run, load_best=True) == step
    assert reported is not None
    assert listed is not None
    assert (reported.step, reported.label, reported.value) == (step, label, stopper.best_score)
    assert (listed.step, listed.label, listed.value) == (step, label, stopper.best_score)


def test_reason_to_stop_names_min_delta(caplog: pytest.LogCaptureFixture) -> None:
    """A metric that improves by less than min_delta did improve; the reason says what was asked of it."""
    trainer = make_trainer(lr=0.0)
    config = EarlyStoppingConfig(monitor="val_score", patience=2, min_delta=0.1)
    callbacks = [Scores([1.0, 0.99, 0.98]), EarlyStopping(config)]
    with caplog.at_level(logging.INFO, "trackside"):
        trainer.fit(make_loader(1), VALIDATION, num_epochs=3, callbacks=callbacks)
    assert "did not improve on 1 by more than min_delta=0.1 in 2 checks" in caplog.text
