"""Collecting batches for calls: which batches share one follows from the batches alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.tiny import make_loader
from trackside.fusing.batch_stack import BatchForm
from trackside.trainer.batch_collector import BatchCollector
from trackside.trainer.steps_per_call import StepsPerCall


def on_device(batch: Any) -> Any:
    return jax.tree.map(jnp.asarray, batch)


@pytest.mark.parametrize("capacity", [2, 3, 16])
def test_a_key_makes_a_batch_a_call_of_its_own(capacity: int) -> None:
    """NumPy cannot hold it; which other batches come before does not matter."""
    with_keys = [(jax.random.key(number), jnp.zeros(4)) for number in range(4)]
    batches = [with_keys[at // 3] if at % 3 == 0 else batch for at, batch in enumerate(make_loader(12))]
    collector = BatchCollector(StepsPerCall("fused", capacity), lambda batch: None, lambda: 0.0)
    found = [(one.stack is not None, one.num_batches) for one in collector.collect(batches)]
    assert sum(number for is_stacked, number in found if is_stacked) == 8
    assert sum(number for is_stacked, number in found if not is_stacked) == 4


def test_batches_on_the_device_share_calls() -> None:
    """On a CPU, they are stacked like those of the host."""
    batches = make_loader(6)
    collector = BatchCollector(StepsPerCall("fused", 6), lambda batch: None, lambda: 0.0)
    found: list[np.ndarray] = []
    for collected in collector.collect([on_device(batch) for batch in batches]):
        assert collected.stack is not None
        found.extend(collected.stack.stacked().inputs[: collected.num_batches].copy())
    np.testing.assert_array_equal(found, [batch.inputs for batch in batches])


def test_a_batch_fits_those_that_lie_where_it_does() -> None:
    """On the device or not, in part or as a whole, batches of one form are used by one program."""
    batch, *_ = make_loader(1)
    kinds = [batch, on_device(batch), batch.replace(inputs=jnp.asarray(batch.inputs))]
    forms = [BatchForm.of(*jax.tree.flatten(kind)) for kind in kinds]
    fits = [[form is not None and form.fits(*jax.tree.flatten(kind)) for kind in kinds] for form in forms]
    assert fits == [[True, False, True], [False, True, False], [True, False, True]]


def test_the_first_batch_of_each_form_is_checked() -> None:
    """Others are like it."""
    checked: list[int] = []
    collector = BatchCollector(StepsPerCall("fused", 4), lambda batch: checked.append(len(batch.inputs)), lambda: 0.0)
    batches = [*make_loader(3, 8), *make_loader(3, 5), *make_loader(2, 8)]
    assert sum(one.num_batches for one in collector.collect(batches)) == 8
    assert checked == [8, 5]
