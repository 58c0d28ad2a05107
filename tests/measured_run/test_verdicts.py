"""One verdict: live, at the end, and read back later, a run gives the same findings from the same facts."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.delay_clock import NEVER_WAITS, DelayClock
from tests.trainer.tiny import MSETrainer, make_loader, make_trainer
from trackside.callbacks import Callback, CallbackConfig, CheckpointConfig, ModelCheckpoint
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig
from trackside.runs import open_run

CLOCK = DelayClock()
NUM_STEPS = 20


class ClockedTrainer(MSETrainer):
    clock = CLOCK


class Slow(Callback):
    """Makes the training wait, so that there is something to find."""

    def on_training_step(self, step_metrics: dict[str, float], epoch_idx: int, step_idx: int) -> None:
        CLOCK.delay()


def build(run: Path, **config: Any) -> ClockedTrainer:
    logger = LoggerConfig(log_path=run)
    return make_trainer(ClockedTrainer, logger=logger, max_inflight_steps=NEVER_WAITS, resume="auto", **config)


def train(trainer: ClockedTrainer, num_epochs: int, **kwargs: Any) -> None:
    keeper = ModelCheckpoint(CheckpointConfig(every_n_epochs=1))
    trainer.fit(make_loader(NUM_STEPS), num_epochs=num_epochs, callbacks=[keeper, Slow(CallbackConfig())], **kwargs)


def test_live_and_read_back_verdicts_are_the_same(tmp_path: Path) -> None:
    """After one leg and after a second one that resumed it, with the shares of the ledger over all legs."""
    for num_epochs in (2, 4):
        trainer = build(tmp_path)
        train(trainer, num_epochs, val_loader=make_loader(1))
        run = open_run(tmp_path)
        assert trainer.findings
        assert list(trainer.findings) == run.findings
        assert run.ledger is not None
        assert run.ledger.num_steps == NUM_STEPS * num_epochs
        assert trainer.run_log.facts() == run.facts


def test_silenced_findings_are_not_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither at the end nor read back, but that they were silenced; a later leg that wants them has them again."""
    for silenced in (["callback-dominates"], []):
        caplog.clear()
        trainer = build(tmp_path, silence_findings=silenced)
        with caplog.at_level("INFO"):
            train(trainer, num_epochs=2 if silenced else 3)
        run = open_run(tmp_path)
        assert list(trainer.findings) == run.findings
        assert ("callback_dominates" in [finding.id for finding in run.findings]) == (not silenced)
        assert ("callback-dominates: " in caplog.text) == (not silenced)
        assert ("1 finding silenced (callback-dominates)" in caplog.text) == bool(silenced)
        assert [finding.id for finding in run.silenced_findings] == ["callback_dominates"] * bool(silenced)


def test_a_reader_may_silence_more(tmp_path: Path) -> None:
    """By id, when it opens the run; a typo is refused."""
    train(build(tmp_path), num_epochs=2)
    assert "callback_dominates" in [finding.id for finding in open_run(tmp_path).findings]
    silenced = open_run(tmp_path, silence=["callback-dominates"])
    assert "callback_dominates" not in [finding.id for finding in silenced.findings]
    with pytest.raises(ConfigError, match="Did you mean 'callback-dominates'"):
        open_run(tmp_path, silence=["callback-dominate"])
