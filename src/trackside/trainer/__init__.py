"""Training: the trainer, its configs, and what its users handle."""

from trackside.trainer.batch import Batch, DataloaderModule
from trackside.trainer.lr_schedules import SchedulerConfig, register_schedule
from trackside.trainer.models import ModelConfig
from trackside.trainer.optimizer import OptimizerConfig, register_optimizer
from trackside.trainer.sharding import ParallelConfig
from trackside.trainer.train_state import TrainState
from trackside.trainer.trainer import LOGGER, TrainerModule
from trackside.trainer.trainer_config import TrainerConfig
from trackside.trainer.workers import exit_with_parent

__all__ = [
    "LOGGER",
    "Batch",
    "DataloaderModule",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "SchedulerConfig",
    "TrainState",
    "TrainerConfig",
    "TrainerModule",
    "exit_with_parent",
    "register_optimizer",
    "register_schedule",
]
