"""Trainings with a fault, and what is found in them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.trainer.tiny import Linear, MSETrainer, make_batch
from trackside.callbacks import Callback
from trackside.events import read_events
from trackside.findings import Finding, RunFacts, facts_from_events, find
from trackside.logger import LoggerConfig, LoggerToolsConfig
from trackside.run_layout import event_file_name
from trackside.trainer import Batch, ModelConfig, OptimizerConfig, ParallelConfig, SchedulerConfig, TrainerConfig


class Delayed:
    """A loader that does something before each batch."""

    def __init__(self, batches: list[Batch], before_batch: Callable[[], object]):
        self._batches = batches
        self._before_batch = before_batch

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._before_batch()
            yield batch


def train(
    run: Path,
    train_loader: Any,
    val_loader: Any = None,
    num_epochs: int = 1,
    callbacks: list[Callback] | None = None,
    log_every_n_steps: int = 50,
    postprocess: Callable | None = None,
    model_class: type = Linear,
    optimizer: str = "sgd",
    trainer_class: type[MSETrainer] = MSETrainer,
    max_inflight_steps: int = 2,
    tools: Sequence[LoggerToolsConfig] = (),
    steps_per_call: Any = "auto",
) -> RunFacts:
    """Train, and read the facts from the run's event file."""
    logger = LoggerConfig(log_path=run, log_every_n_steps=log_every_n_steps, log_tools=list(tools))
    trainer = trainer_class(
        TrainerConfig(
            logger=logger,
            enable_progress_bar=False,
            max_inflight_steps=max_inflight_steps,
            steps_per_call=steps_per_call,
        ),
        ModelConfig(model_class=model_class, parallel=ParallelConfig(data_axis_size=1)),
        OptimizerConfig(name=optimizer, scheduler=SchedulerConfig(name="constant", lr=1e-3)),
        batch=make_batch(8),
    )
    trainer.logger.metric_postprocess_fn = postprocess
    trainer.fit(train_loader, val_loader, num_epochs=num_epochs, callbacks=callbacks or [])
    return facts_from_events(read_events(run / event_file_name(0)))


def found(facts: RunFacts) -> dict[str, Finding]:
    return {finding.id: finding for finding in find(facts)}
