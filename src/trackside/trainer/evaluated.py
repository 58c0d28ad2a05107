"""The part of the trainer that evaluates: validation, test, prediction, each with its hooks and log row."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import jax

from trackside.callbacks import CallbackList
from trackside.metrics import Metrics, to_host_metrics
from trackside.profiling.ledger import LOGGING, VALIDATION
from trackside.trainer.feed import loader_length
from trackside.trainer.hooks import Hooks
from trackside.trainer.measured import MeasuredSteps
from trackside.trainer.progress import is_shown, track
from trackside.trainer.setup import Loaders
from trackside.trainer.state import Carry, TrainState

LOGGER = logging.getLogger(__name__)


class EvaluatedModel(MeasuredSteps):
    """Evaluates the model on data sets."""

    def test_eval_function(self, val_loader: Loaders) -> None:
        """Run the evaluation step on one batch, so that its errors show before training and not after an epoch.

        Loaders that can be gone through only once are left alone; the example batch serves instead.

        Args:
            val_loader: The validation loader.
        """
        loader = next(iter(val_loader.values())) if isinstance(val_loader, dict) else val_loader
        layout = self.init_eval_metrics().layout
        iterator = iter(loader)
        if iterator is not loader:
            with self.ledger.spend(VALIDATION):
                first = next(iterator, None)
                self._evaluator.evaluate(
                    self._position.carry, [] if first is None else [first], self._eval_step, layout
                )

    def _eval_model_in_train_loop(self, val_loader: Any, epoch_idx: int) -> dict[str, float]:
        """Validate during training, with the hooks around it."""
        step = self.global_step
        hooks = Hooks(self, self.callbacks)
        hooks.call("on_validation_epoch_start", epoch_idx, step)
        return self._evaluate(
            val_loader,
            "val",
            epoch_idx,
            lambda metrics: hooks.call("on_validation_epoch_end", metrics, epoch_idx, step),
        )

    def test_model(self, test_loader: Loaders, apply_callbacks: bool = False, epoch_idx: int = 0) -> dict[str, float]:
        """Test the model.

        Args:
            test_loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
            apply_callbacks: Whether the callbacks hear of it.
            epoch_idx: The epoch index for callbacks and log.

        Returns:
            The metrics.
        """
        hooks = Hooks(self, self.callbacks if apply_callbacks else CallbackList())
        hooks.call("on_test_epoch_start", epoch_idx)
        return self._evaluate(
            test_loader, "test", epoch_idx, lambda metrics: hooks.call("on_test_epoch_end", metrics, epoch_idx)
        )

    def eval_model(self, data_loader: Loaders, mode: str, epoch_idx: int) -> dict[str, float]:
        """Evaluate on a data set and log the metrics.

        Args:
            data_loader: The batches, or a dict of loaders whose keys are prefixed to the metrics.
            mode: What to log them under, commonly `val` or `test`.
            epoch_idx: The epoch index for the log.

        Returns:
            The metrics, averaged over the data points.
        """
        return self._evaluate(data_loader, mode, epoch_idx, lambda metrics: None)

    def _evaluate(self, data_loader: Loaders, mode: Any, epoch_idx: int, before_log: Callable) -> dict[str, float]:
        with self.ledger.spend(VALIDATION):
            return self._evaluate_and_log(data_loader, mode, epoch_idx, before_log)

    def _evaluate_and_log(
        self, data_loader: Loaders, mode: Any, epoch_idx: int, before_log: Callable
    ) -> dict[str, float]:
        was_open = self.logger.is_open
        self.logger.start_epoch(epoch_idx, self.global_step, mode)
        metrics: dict[str, float] = {}
        loaders = data_loader if isinstance(data_loader, dict) else {"": data_loader}
        for name, loader in loaders.items():
            values = to_host_metrics(self._run_model_eval(loader, mode, epoch_idx))
            metrics.update({f"{name}_{key}" if name else key: value for key, value in values.items()})
        before_log(metrics)
        with self.ledger.spend(LOGGING):
            self.logger.end_epoch(metrics, self.global_step)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        LOGGER.info("epoch %d, step %d, %s: %s", epoch_idx, self.global_step, mode, shown)
        if not was_open:  # after a training: the run is over again
            self.logger.finalize(self.status)
        return metrics

    def _run_model_eval(self, data_loader: Iterable, mode: str = "", epoch_idx: int = -1) -> Metrics:
        """Evaluate on one data set, without logging.

        Args:
            data_loader: The batches.
            mode: What the progress bar shows.
            epoch_idx: What the progress bar shows beside it.

        Returns:
            The metrics, on the device.
        """
        layout = self.init_eval_metrics().layout
        desc = f"{mode} {epoch_idx}" if epoch_idx >= 0 else mode

        def tracked(batches: Iterable) -> Iterable:
            return self.tracker(batches, desc=desc, total=loader_length(data_loader), leave=False, delay=1.0)

        return self._evaluator.evaluate(self._evaluation_carry(), data_loader, self._eval_step, layout, tracked)

    def _evaluation_carry(self) -> Carry:
        carry = self._position.carry
        params = self.callbacks.evaluation_params(carry)
        return carry if params is None else carry._replace(params=params)

    def predict(self, data_loader: Iterable) -> Any:
        """The model's outputs for every example of a loader, as numpy arrays in the loader's order.

        With several processes, each has those for the examples of its own loader.
        """
        return self._evaluator.predict(self._evaluation_carry(), data_loader, self._predict_step)

    def _predict_step(self, state: TrainState, batch: Any) -> Any:
        apply_fn = self._bind(state.mutable_variables, jax.random.key(self.trainer_config.seed_eval))
        return self._adapter.predict(apply_fn, state.params, self.batch_to_input(batch))

    @property
    def _shows_bar(self) -> bool:
        enabled = self.trainer_config.enable_progress_bar or any(one.shows_progress for one in self.callbacks)
        return is_shown(enabled, jax.process_index() == 0)

    def tracker(self, iterator: Iterable, **kwargs: Any) -> Iterable:
        """The iterator in a progress bar, if bars are enabled, else as it is.

        Args:
            iterator: What to go through.
            kwargs: Arguments to tqdm.
        """
        return track(iterator, self._shows_bar, **kwargs)
