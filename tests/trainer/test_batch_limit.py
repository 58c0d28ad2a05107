"""The largest batch that fits: found with few compiles, and in accord with what the compiler says."""

import json
from typing import Any

import jax
import pytest

from tests.trainer.tiny import make_loader, make_trainer
from trackside.errors import ConfigError
from trackside.trainer import BatchLimit, ParallelConfig
from trackside.trainer.batch_limit import search

pytestmark = pytest.mark.usefixtures("default_compiler")

LIMIT = 1_000_000


@pytest.fixture(scope="module")
def limit(default_compiler: None) -> BatchLimit:
    return make_trainer().largest_batch(LIMIT)


def test_largest_batch_is_within_the_limit(limit: BatchLimit) -> None:
    """The size fits, a slightly larger one does not, and all that was tried is in the result."""
    fitting = [trial for trial in limit.trials if trial.fits]
    too_large = [trial for trial in limit.trials if not trial.fits]
    assert limit.size == fitting[-1].size
    assert fitting[-1].num_bytes is not None
    assert 0.95 * LIMIT < fitting[-1].num_bytes <= LIMIT
    assert too_large[0].size <= 1.03 * limit.size
    assert len(limit.trials) <= 8


def test_bytes_are_those_of_the_training_step(limit: BatchLimit) -> None:
    """For a size that was tried, the bytes are what the compiler says of the real step, and of one batch in flight."""
    trainer = make_trainer()
    layout, trial = trainer.init_train_metrics().layout, limit.trials[0]
    batch = make_loader(1, trial.size)[0]
    memory = (
        trainer.engine.train_call(layout)
        .lower(trainer.progress.carry, trainer.engine.fresh_vector(layout), batch)
        .compile()
        .memory_analysis()
    )
    step = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    waiting = sum(leaf.nbytes for leaf in jax.tree.leaves(batch))
    assert trial.num_bytes == step + waiting


def test_table_and_plain_data(limit: BatchLimit) -> None:
    """It prints a line for each size, and what fits; and it can be written as JSON."""
    assert f"a batch of {limit.size:,} fits into 1 MB per device (as given)" in str(limit)
    assert str(limit).count("too large") == sum(not trial.fits for trial in limit.trials)
    assert json.loads(json.dumps(limit.to_dict()))["size"] == limit.size


def test_sizes_fit_the_mesh_and_the_microbatches() -> None:
    """All sizes are multiples of what devices and gradient accumulation need, and each device has its own limit."""
    spread = make_trainer(
        batch=make_loader(1, 32)[0], parallel=ParallelConfig(data_axis_size=4), gradient_accumulate_steps=2
    ).largest_batch(LIMIT, max_compiles=3)
    assert spread.multiple == 8
    assert all(trial.size % 8 == 0 for trial in spread.trials)


def test_limit_is_that_of_the_machine_by_default() -> None:
    """Without a limit, the memory that is free counts; `max_size` ends the search."""
    limit = make_trainer().largest_batch(max_size=16)
    assert limit.size == 16
    assert not limit.is_bounded
    assert "free on the host" in str(limit)


def test_not_even_the_smallest_fits() -> None:
    """With too little memory for one example there is no size, and the text says so."""
    limit = make_trainer().largest_batch(100)
    assert limit.size is None
    assert "not even a batch of 1 fits" in str(limit)


def test_training_is_left_as_it_is() -> None:
    """Nothing ran: the step is 0 and the state can still be trained."""
    trainer = make_trainer()
    trainer.largest_batch(LIMIT, max_compiles=1)
    assert trainer.global_step == 0
    assert trainer.sentinel.num_recompiles == {}
    trainer.train_model(make_loader(2), num_epochs=1)


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ({"debug": True}, {}, "largest_batch: with debug=True nothing is compiled"),
        ({}, {"limit_bytes": 0}, "limit_bytes: expected a positive number"),
        ({}, {"max_size": 0}, "max_size: expected at least 1"),
        ({}, {"max_compiles": 0}, "max_compiles: expected a positive number"),
    ],
)
def test_bad_arguments(config: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    """An error names the argument and what is expected."""
    with pytest.raises(ConfigError, match=message):
        make_trainer(**config).largest_batch(**arguments)


@pytest.mark.parametrize("limit_at", [1, 7, 100, 12_345, 999_999])
def test_search_is_short_where_bytes_grow_by_steps(limit_at: int) -> None:
    """Within twelve trials the search is within 2 % of the limit, although bytes grow unevenly."""

    def bytes_of(number: int) -> int:
        return 1000 + 64 * (-(-number // 16) * 16) + number

    limit = bytes_of(limit_at)
    trials = search(bytes_of, limit, 8, None, 12)
    best = max(number for number, _, fits in trials if fits)
    worst = min(number for number, _, fits in trials if not fits)
    assert best < worst <= max(1.03 * best, best + 1)


def test_search_bears_programs_that_cannot_be_compiled() -> None:
    """A size whose bytes are not known does not fit, and the search goes on below it."""
    trials = search(lambda number: None if number > 50 else number, 1000, 8, None, 12)
    assert max(number for number, _, fits in trials if fits) == 50
