"""Compiles during a training: each is a row of the run, with its cost and what caused it."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import make_batch, make_loader, make_trainer, rows_of
from trackside.errors import ConfigError, RecompileError
from trackside.logger import LoggerConfig
from trackside.testing import assert_no_recompiles


def build(tmp_path: Path, **config: Any) -> Any:
    return make_trainer(logger=LoggerConfig(log_path=tmp_path), **config)


def compiles_of(tmp_path: Path, function: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(tmp_path, "compile") if row["function"] == function]


def test_first_compile_is_a_row(tmp_path: Path) -> None:
    """The step's first compile is a row with its step and its seconds, and nothing that has changed."""
    build(tmp_path).train_model(make_loader(3), num_epochs=1)
    (row,) = compiles_of(tmp_path, "train_step")
    assert (row["step"], row["changes"], row["num_recompiles"]) == (1, [], 0)
    assert min(row["trace_s"], row["lower_s"], row["compile_s"]) > 0


def test_ragged_batch_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A last batch of another size compiles the step again; the row names the leaves, both shapes and what to do."""
    loader = [*make_loader(3), make_batch(5)]
    build(tmp_path).train_model(loader, num_epochs=2)
    first, second = compiles_of(tmp_path, "train_step")
    assert (first["step"], second["step"]) == (1, 4)
    assert {"path": "batch.inputs", "kind": "shape", "old": "(8, 4)", "new": "(5, 4)"} in second["changes"]
    assert "pad" in second["suggestion"]
    assert "batch.inputs" in caplog.text


def test_validation_is_watched_too(tmp_path: Path) -> None:
    """The evaluation step's compiles are rows of their own; a ragged batch is named there as well."""
    build(tmp_path).train_model(make_loader(2), [make_batch(8), make_batch(5)], num_epochs=2)
    rows = compiles_of(tmp_path, "eval_step")
    assert [row["num_recompiles"] for row in rows] == [0, 1]
    assert rows[1]["changes"][0]["path"] == "batch.inputs"


def test_too_many_recompiles_end_the_training(tmp_path: Path) -> None:
    """With a limit that is an error, the run ends with status error, and every completed step has its row."""
    trainer = build(tmp_path, max_recompiles=0, on_too_many_recompiles="error")
    with pytest.raises(RecompileError, match=r"train_step.*batch\.inputs"):
        trainer.train_model([*make_loader(3), make_batch(5), make_batch(8)], num_epochs=1)
    assert trainer.status == "error"
    assert [row["step"] for row in rows_of(tmp_path, mode="train")] == [1, 2, 3, 4]


def test_too_many_recompiles_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By default training goes on, and the log says that there were too many."""
    trainer = build(tmp_path, max_recompiles=0)
    trainer.train_model([*make_loader(2), make_batch(5)], num_epochs=1)
    assert trainer.status == "success"
    assert "max_recompiles" in caplog.text


def test_training_goes_on_without_a_compile(tmp_path: Path) -> None:
    """Training, validating, saving rows and going on compile nothing after the first epoch."""
    trainer = build(tmp_path)
    trainer.train_model(make_loader(3), make_loader(1), num_epochs=1)
    with assert_no_recompiles(after_warm_up=True):
        trainer.train_model(make_loader(3), make_loader(1), num_epochs=3)


def test_mistaken_limit_is_named() -> None:
    """A limit below -1 is refused when the trainer is built."""
    with pytest.raises(ConfigError, match=r"max_recompiles.*-2"):
        make_trainer(max_recompiles=-2)
