"""The summary of a model, in every library."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.trainer.models.libraries import KITS, apply_with_names, init_fn, make_data
from trackside.trainer import ModelSummary, ParallelConfig, Trainer, TrainerConfig

DATA = make_data(1)


def summary_of(model: Any, loss: Any, depth: int | None = None, parallel: Any = None, **config: Any) -> ModelSummary:
    trainer = Trainer(
        model,
        loss,
        optax.adam(1e-2),
        config=TrainerConfig(enable_progress_bar=False, **config),
        parallel=parallel or ParallelConfig(data_axis_size=1),
    )
    with jax.numpy_dtype_promotion("standard"):
        return trainer.summary(DATA, depth=depth)


@pytest.fixture(scope="module", params=["linen", "nnx", "equinox"])
def summary(request: pytest.FixtureRequest) -> ModelSummary:
    kit = KITS[request.param]
    return summary_of(kit.stateful(), kit.stateful_loss)


def test_rows_are_the_layers(summary: ModelSummary) -> None:
    """Each layer has a row with its parameters and operations, named as in profiles, in the order in which they run."""
    rows = {row.name: row for row in summary.rows}
    assert list(rows) == ["loss", "first", "norm", "last"]
    assert [rows[name].num_params for name in ("first", "norm", "last")] == [40, 16, 9]
    # 8 examples, 4 inputs, 8 units, 1 output; the first layer has no gradient for its inputs.
    assert (rows["first"].forward_flops, rows["first"].step_flops) == (512, 1024)
    assert (rows["last"].forward_flops, rows["last"].step_flops) == (128, 384)
    assert rows["norm"].saved_bytes
    assert str(rows["first"].scope).endswith("/first")


def test_first_row_has_the_totals(summary: ModelSummary) -> None:
    """The whole has all parameters, their bytes, and the operations of all layers."""
    total = summary.total
    assert (total.num_params, total.param_bytes) == (65, 260)
    assert total.step_flops == sum(row.step_flops or 0 for row in summary.rows if row.depth == 1)
    moments = 2 * total.param_bytes
    assert total.state_bytes >= total.param_bytes + moments
    assert summary.state_bytes_per_device >= total.state_bytes


def test_summary_is_plain_data_and_a_table(summary: ModelSummary) -> None:
    """It can be written as JSON, and printed with a line per layer."""
    assert json.loads(json.dumps(summary.to_dict()))["rows"][1]["name"] == "first"
    assert "\n  first           40   160 B   512 FLOP" in str(summary)


def test_functions_without_names_are_not_attributed() -> None:
    """Layers of plain functions have parameters, and operations that are not known; a note says how to name them."""
    kit = KITS["functions"]
    summary = summary_of(kit.plain(), kit.loss)
    rows = {row.name: row for row in summary.rows}
    assert rows["(outside of modules)"].step_flops == summary.total.step_flops == 1408
    assert (rows["first"].num_params, rows["first"].step_flops, rows["first"].scope) == (40, None, None)
    assert any("100 % of the operations are in no module's scope" in note for note in summary.notes)


def test_named_parts_of_functions_are_rows() -> None:
    """A scope with the name of a part of the parameters has them, and operations."""
    summary = summary_of((init_fn, apply_with_names), KITS["functions"].loss)
    assert [(row.name, row.num_params, row.step_flops) for row in summary.rows[1:]] == [
        ("first", 40, 1024),
        ("last", 9, 384),
    ]


def test_products_are_no_modules() -> None:
    """What `jnp.einsum` calls its products is no row: their operations are those of the module around them."""

    def apply_fn(params: Any, inputs: jax.Array) -> jax.Array:
        with jax.named_scope("first"):
            hidden = jnp.tanh(jnp.einsum("bi,ij->bj", inputs, params["first"]["kernel"]))
        with jax.named_scope("last"):
            return jnp.einsum("bj,jk", hidden, params["last"]["kernel"])

    summary = summary_of((init_fn, apply_fn), KITS["functions"].loss)
    assert [(row.name, row.step_flops) for row in summary.rows] == [("loss", 1408), ("first", 1024), ("last", 384)]


def test_depth_cuts_rows_and_keeps_totals() -> None:
    """Depth 0 is the whole alone."""
    kit = KITS["linen"]
    summary = summary_of(kit.plain(), kit.loss, depth=0)
    assert [(row.name, row.num_params) for row in summary.rows] == [("loss", 49)]


def test_microbatches_save_less() -> None:
    """With gradient accumulation, operations stay the same and saved values are those of one microbatch."""
    kit = KITS["linen"]
    whole, parts, scanned = (
        summary_of(kit.plain(), kit.loss, gradient_accumulate_steps=steps, gradient_accumulate_scan=scan).total
        for steps, scan in ((1, False), (4, False), (4, True))
    )
    assert whole.step_flops == parts.step_flops == scanned.step_flops
    assert parts.saved_bytes == scanned.saved_bytes
    assert parts.saved_bytes is not None
    assert whole.saved_bytes is not None
    assert parts.saved_bytes < 0.5 * whole.saved_bytes


def test_sharded_state_is_counted_per_device() -> None:
    """Parameters that are split take less of each device; their number is that of the whole model."""
    kit = KITS["linen"]
    axes = ParallelConfig(data_axis_size=1, fsdp_axis_size=8, fsdp_min_weight_size=8)
    summary = summary_of(kit.built_on_demand, kit.loss, parallel=axes)
    assert summary.total.num_params == 49
    assert summary.state_bytes_per_device < 0.5 * summary.total.state_bytes


def test_debug_mode_counts_parameters_only() -> None:
    """Without jit nothing is traced: the table has parameters, and says that operations are not counted."""
    kit = KITS["functions"]
    summary = summary_of(kit.plain(), kit.loss, debug=True)
    assert summary.total.num_params == 49
    assert summary.total.step_flops is None
    assert "debug=True" in str(summary)


def test_a_look_leaves_no_trace(tmp_path: Path) -> None:
    """Before the training, nothing is written to the run, and checkpoints are chosen by the validation as ever."""
    kit = KITS["linen"]
    one_device = ParallelConfig(data_axis_size=1)
    config = TrainerConfig(enable_progress_bar=False)
    with jax.numpy_dtype_promotion("standard"):
        trainer = Trainer(
            kit.plain(), kit.loss, optax.adam(1e-2), run=tmp_path / "run", config=config, parallel=one_device
        )
        trainer.summary(DATA)
        assert not list(tmp_path.iterdir())
        trainer.fit(DATA, DATA, num_epochs=1)
    assert trainer.module.checkpoint_callback is not None
    assert trainer.module.checkpoint_callback.config.monitor == "val_loss"
