"""Logging: the logger of a training, and the tools that show what it logs."""

from trackside.logger.file import FileLogger, FileLoggerConfig
from trackside.logger.logger import LOGGER, Logger
from trackside.logger.logger_config import LoggerConfig
from trackside.logger.tensorboard import TensorBoardLogger, TensorBoardLoggerConfig
from trackside.logger.tool import LoggerTool, LoggerToolsConfig
from trackside.logger.wandb import WandBLogger, WandBLoggerConfig

__all__ = [
    "LOGGER",
    "FileLogger",
    "FileLoggerConfig",
    "Logger",
    "LoggerConfig",
    "LoggerTool",
    "LoggerToolsConfig",
    "TensorBoardLogger",
    "TensorBoardLoggerConfig",
    "WandBLogger",
    "WandBLoggerConfig",
]
