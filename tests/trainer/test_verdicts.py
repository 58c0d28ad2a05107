"""One verdict: live, at the end, and read back later, a run gives the same findings from the same facts."""

import time
from collections.abc import Iterator
from pathlib import Path

from tests.trainer.tiny import make_loader, make_trainer
from trackside.callbacks import CheckpointConfig
from trackside.logger import LoggerConfig
from trackside.runs import open_run
from trackside.trainer import Batch


class SlowLoader:
    """Makes the device wait, so that there is something to find."""

    def __init__(self, num_batches: int):
        self.batches = make_loader(num_batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            time.sleep(0.03)
            yield batch


def test_live_and_read_back_verdicts_are_the_same(tmp_path: Path) -> None:
    """After one leg and after a second one that resumed it, with the shares of the ledger over all legs."""
    for num_epochs in (2, 4):
        trainer = make_trainer(
            logger=LoggerConfig(log_path=tmp_path), callbacks=[CheckpointConfig(every_n_epochs=2)], resume="auto"
        )
        trainer.train_model(SlowLoader(20), make_loader(1), num_epochs=num_epochs)
        run = open_run(tmp_path)
        assert trainer.findings
        assert list(trainer.findings) == run.findings
        assert run.ledger is not None
        assert run.ledger.num_steps == 20 * num_epochs
        assert trainer.run_log.facts() == run.facts
