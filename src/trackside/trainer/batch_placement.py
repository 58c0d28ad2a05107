"""From a loader's batch to the arguments of a compiled call.

On CPU, numpy goes straight into the compiled call, which is the fastest way for any size. To an accelerator it is sent
ahead, so that the transfer runs during the step before.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trackside.errors import DataError
from trackside.measured_run.batch_size import batch_size
from trackside.processes import JAX_PROCESSES, Processes
from trackside.trainer.batch import check_leaves
from trackside.trainer.sharding import batch_axes, batch_specs, num_batch_shards, num_own_batch_shards, to_shardings


class BatchPlacement:
    """Places batches on a mesh.

    Args:
        mesh: The mesh.
        exmp_batch: A batch of the usual form.
        num_microbatches: Into how many parts a training step splits a batch.
        processes: The processes that train together.
    """

    def __init__(self, mesh: Mesh, exmp_batch: Any, num_microbatches: int = 1, processes: Processes = JAX_PROCESSES):
        check_leaves(exmp_batch)
        self._processes = processes
        self.mesh = mesh
        self.exmp_batch = exmp_batch
        self.num_microbatches = num_microbatches
        self.specs = batch_specs(mesh, exmp_batch)
        self.shardings = to_shardings(mesh, self.specs)
        self.stacked_shardings = jax.tree.map(
            lambda sharding: NamedSharding(mesh, PartitionSpec(None, *sharding.spec)), self.shardings
        )
        """How batches are spread that are stacked, with one more dimension in front."""
        self._structure = jax.tree.structure(exmp_batch)
        self._num_own_shards = num_own_batch_shards(mesh)
        self._train_size: int | None = None
        self.place = self._choose_way()
        """Brings a batch into the form in which the compiled call takes it fastest."""
        self.place_train = self._place_own_train_part if self._processes.are_several else self.place
        """The same for a training step."""
        self.send_ahead = self._choose_way_ahead()
        """The same for a training step to come, by another thread; None where batches are placed by their call."""

    def _choose_way(self) -> Callable[[Any], Any]:
        if self._processes.are_several:
            return self._place_own_part
        if jax.default_backend() == "cpu":
            return _as_it_is
        return lambda batch: jax.device_put(batch, self.shardings)

    def _choose_way_ahead(self) -> Callable[[Any], Any] | None:
        if self._processes.are_several or jax.default_backend() == "cpu":
            return None
        return self._send_if_possible

    def _send_if_possible(self, batch: Any) -> Any:
        """The batch on its way to the device; as it is if it cannot be split, which its step says when it is made."""
        try:
            return jax.device_put(batch, self.shardings)
        except (ValueError, TypeError):
            return batch

    def _place_own_part(self, batch: Any) -> Any:
        """The global batch of which this process has its part, as large as those of the other processes."""
        if _is_global(batch):
            return batch
        if not self.is_divisible(batch):
            raise DataError(
                f"batch of {batch_size(batch)} examples in process {self._processes.index}: not divisible by its "
                f"{self._num_own_shards} devices along {batch_axes(self.mesh)}; with several processes "
                "every batch has to be: change the batch size, or let the loader drop its last, smaller batch"
            )
        return jax.tree.map(jax.make_array_from_process_local_data, self.shardings, batch)

    def place_stacked(self, batches: Any) -> Any:
        """Bring stacked batches into the form in which the compiled call takes them fastest."""
        if self._processes.are_several:
            return jax.tree.map(jax.make_array_from_process_local_data, self.stacked_shardings, batches)
        return batches if jax.default_backend() == "cpu" else jax.device_put(batches, self.stacked_shardings)

    def num_parts(self, batch: Any) -> int:
        """Of how many equal parts, one for each process, a batch is one."""
        is_part = self._processes.are_several and not _is_global(batch)
        return num_batch_shards(self.mesh) // self._num_own_shards if is_part else 1

    def check_train_size(self, batch: Any) -> None:
        """Raise if a batch is of another size than those of the other processes, once it is known what these have."""
        if self._train_size is not None:
            self._check_own_size(batch)

    def _check_own_size(self, batch: Any) -> None:
        # Of another size than those of the other processes, a batch would be averaged with other weights on each
        # process, and their parameters would drift apart without an error.
        if not _is_global(batch) and batch_size(batch) != self._train_size:
            raise DataError(
                f"batch of {batch_size(batch)} examples in process {self._processes.index}, after batches of "
                f"{self._train_size}: with several processes all have to be of one size; let the loader drop its last, "
                "smaller batch"
            )

    def _place_own_train_part(self, batch: Any) -> Any:
        self._check_own_size(batch)
        return self._place_own_part(batch)

    def agree_on_size(self, batch: Any) -> None:
        """Raise on every process if the first training batch of one is larger than that of another."""
        self._train_size = batch_size(batch)
        self._processes.check_same(
            {"train_loader, examples per batch": self._train_size}, "let each process load an equal part"
        )

    def check_train_batch(self, batch: Any) -> None:
        """Raise if a training step cannot take this batch."""
        self.check_structure(batch)
        shards = num_batch_shards(self.mesh)
        size = batch_size(batch) * (shards // self._num_own_shards if not _is_global(batch) else 1)
        if size % self.num_microbatches:
            raise DataError(
                f"batch of {size} examples: not divisible by gradient_accumulate_steps={self.num_microbatches}; "
                f"change either, or let the loader drop its last, smaller batch"
            )
        if (size // self.num_microbatches) % shards:
            per_part = f" in {self.num_microbatches} microbatches" if self.num_microbatches > 1 else ""
            raise DataError(
                f"batch of {size} examples{per_part}: not divisible by the {shards} devices along "
                f"{batch_axes(self.mesh)}; change the batch size or the mesh, or let the loader drop its last, smaller "
                "batch"
            )

    def check_structure(self, batch: Any) -> None:
        """Raise if a batch has another form than the example batch."""
        check_leaves(batch)
        structure = jax.tree.structure(batch)
        if structure != self._structure:
            raise DataError(
                f"the loader's batches differ in structure from the example batch: {structure} against "
                f"{self._structure}; build the trainer with a batch of the loader's form"
            )

    def is_divisible(self, batch: Any) -> bool:
        """Whether a batch, or this process's part of it, can be split over the mesh."""
        return self.mesh.size == 1 or batch_size(batch) % self._num_own_shards == 0


def _as_it_is(batch: Any) -> Any:
    return batch


def _is_global(batch: Any) -> bool:
    return any(isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in jax.tree.leaves(batch))
