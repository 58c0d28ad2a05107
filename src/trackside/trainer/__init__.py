"""Training: the trainer, its configs, and what its users handle."""

from trackside.trainer.batch import Batch, DataloaderModule
from trackside.trainer.batch_limit import BatchLimit
from trackside.trainer.learning_rate_curve import LearningRateTest
from trackside.trainer.loss_scale import LossScaleConfig
from trackside.trainer.lr_schedules import SchedulerConfig, register_schedule
from trackside.trainer.model_summary import ModelSummary
from trackside.trainer.models import FunctionModel, ModelConfig
from trackside.trainer.optimizer import OptimizerConfig, register_optimizer
from trackside.trainer.parameter_groups import ParamGroupConfig
from trackside.trainer.precision import PrecisionConfig
from trackside.trainer.sharding import ParallelConfig
from trackside.trainer.short_trainer import Trainer
from trackside.trainer.train_state import TrainState
from trackside.trainer.trainer import LOGGER, TrainerModule
from trackside.trainer.trainer_config import TrainerConfig
from trackside.trainer.workers import exit_with_parent

__all__ = [
    "LOGGER",
    "Batch",
    "BatchLimit",
    "DataloaderModule",
    "FunctionModel",
    "LearningRateTest",
    "LossScaleConfig",
    "ModelConfig",
    "ModelSummary",
    "OptimizerConfig",
    "ParallelConfig",
    "ParamGroupConfig",
    "PrecisionConfig",
    "SchedulerConfig",
    "TrainState",
    "Trainer",
    "TrainerConfig",
    "TrainerModule",
    "exit_with_parent",
    "register_optimizer",
    "register_schedule",
]
