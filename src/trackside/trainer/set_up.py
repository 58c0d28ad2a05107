"""Setting a trainer up: everything that stands before the first step, built in order."""

import contextlib
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh

from trackside.profiling.ledger_totals import INITIAL_STATE
from trackside.profiling.sentinel import RecompileSentinel
from trackside.trainer.checkpoints import Checkpoints
from trackside.trainer.compile_cache import cache_for

if TYPE_CHECKING:
    from trackside.trainer.trainer import TrainerModule


def set_up(trainer: "TrainerModule", mesh: Mesh | None) -> None:
    """Build the parts of a trainer, by the steps that a subclass may override. If one fails, the run is closed.

    Args:
        trainer: The trainer, which has its configs and the example batch.
        mesh: A mesh to train on instead of the one that the model config describes.
    """
    trainer.init_logger(trainer.trainer_config.logger)
    trainer.run_configs = trainer.build_run_configs()
    log = trainer.run_log
    cache = trainer.compile_cache = cache_for(trainer.trainer_config.compile_cache, log.path, lambda: log.is_attached)
    try:
        with contextlib.nullcontext() if cache is None else cache.in_use():
            _build(trainer, mesh)
    except BaseException:
        trainer.logger.finalize("error")
        raise


def _build(trainer: "TrainerModule", mesh: Mesh | None) -> None:
    config, log = trainer.trainer_config, trainer.run_log
    trainer.sentinel = RecompileSentinel(log, config.max_recompiles, config.on_too_many_recompiles)
    trainer.checkpoints = Checkpoints(log, trainer.ledger, trainer.processes, trainer.sentinel.named)
    trainer.init_mesh(trainer.model_config, mesh)
    trainer.build_model(trainer.model_config)
    trainer.init_adapter()
    trainer.init_optimizer(trainer.optimizer_config)
    with trainer.ledger.spend(INITIAL_STATE):
        trainer.init_model(trainer.batch_to_input(trainer.exmp_batch))
    trainer.create_jitted_functions()
    trainer.init_callbacks(config.callbacks)
    if trainer.logs_rows:
        trainer.run_configs.log_to(trainer.logger)
        _log_devices(trainer)


def _log_devices(trainer: "TrainerModule") -> None:
    devices = [str(device) for device in trainer.mesh.devices.flat]
    trainer.logger.log_environment(
        {"devices": devices, "backend": jax.default_backend(), "mesh": dict(trainer.mesh.shape)}
    )
