"""The rules on compiles."""

from dataclasses import replace

import pytest

from tests.findings.made_up import change, compile_row, make_ledger
from trackside.findings import EpochFacts, RunFacts
from trackside.findings.compile_rules import is_ragged_last_batch, ragged_last_batch, recompiling, slow_compile

EPOCHS = [EpochFacts(1, 100), EpochFacts(2, 200)]
SHORTER = [change("(8, 4)", "(3, 4)"), change("(8, 1)", "(3, 1)", path="batch.targets")]
RAGGED = compile_row(step=100, num_recompiles=1, changes=SHORTER)
FIRST = compile_row()


def recompiles(number: int, **fields) -> list[dict]:
    rows = [
        compile_row(
            step=10 + index,
            num_recompiles=index + 1,
            changes=[change(f"(8, {index + 4})", f"(8, {index + 5})")],
            suggestion="Give `batch.inputs` one shape: pad it to a fixed size, or to one of a few",
            **fields,
        )
        for index in range(number)
    ]
    return [FIRST, *rows]


def facts(compiles: list[dict], wall_s: float | None = 100.0, compile_s: float = 0.0) -> RunFacts:
    ledger = None if wall_s is None else make_ledger({"compile": compile_s}, wall_s=wall_s)
    return RunFacts(ledger=ledger, epochs=EPOCHS, compiles=compiles)


def test_recompiling_names_function_leaf_and_cost():
    """A function that compiles again and again is found with the leaf that changes, the cost and the fix."""
    (finding,) = recompiling(facts(recompiles(3)))
    assert finding.title == "train_step was recompiled 3 times (3 s) because the shape of batch.inputs changed"
    assert finding.subject == "train_step"
    assert finding.evidence["recompile_share"] == pytest.approx(0.03)
    assert (finding.evidence["first_step"], finding.evidence["last_step"]) == (10, 12)
    assert finding.advice.startswith("give `batch.inputs` one shape")


@pytest.mark.parametrize(
    ("number", "wall_s", "expected"),
    [
        (0, 1000.0, []),
        (1, 1000.0, []),
        (2, 1000.0, ["warning"]),
        (9, 1000.0, ["warning"]),
        (10, 1000.0, ["severe"]),
        (2, 10.0, ["severe"]),
        (2, 10.1, ["warning"]),
        (2, None, ["warning"]),
    ],
)
def test_edges_of_recompiling(number, wall_s, expected):
    """One recompile is nothing, two are a warning; ten, or a fifth of the wall, are severe."""
    assert [finding.severity for finding in recompiling(facts(recompiles(number), wall_s))] == expected


def test_programs_of_one_call_are_one_recompile():
    """A call that compiles two programs has compiled again once."""
    row = compile_row(step=7, num_recompiles=1, changes=[change("(8, 4)", "(8, 5)")])
    assert list(recompiling(facts([FIRST, row, row]))) == []


def test_each_function_is_a_finding():
    """Two functions that compile again are two findings."""
    rows = recompiles(2) + [compile_row("eval_step", 20 + index, index + 1) for index in range(2)]
    assert [finding.subject for finding in recompiling(facts(rows))] == ["train_step", "eval_step"]


def test_advice_is_for_the_cause_that_the_title_names_first():
    """Where several arguments change, title and advice speak of the same one, and the title of both."""
    causes = ["mode", "mode", "n"]
    rows = [
        compile_row(
            step=index,
            num_recompiles=index + 1,
            changes=[change("1", "2", path, "static")],
            suggestion=f"Each value of `{path}` compiles again",
        )
        for index, path in enumerate(causes)
    ]
    (finding,) = recompiling(facts(rows))
    assert finding.title.endswith("because the static value of mode and the static value of n changed")
    assert finding.advice == "each value of `mode` compiles again"
    more = [compile_row(step=9, num_recompiles=4, changes=[change("1", "2", "k")])]
    (finding,) = recompiling(facts(rows + more))
    assert finding.title.endswith("changed, among others")


def test_recompile_without_changes_has_advice():
    """Where nothing is known of the arguments, the advice is general and the title names no leaf."""
    rows = [compile_row(step=None, num_recompiles=index + 1) for index in range(2)]
    (finding,) = recompiling(facts(rows))
    assert finding.title == "train_step was recompiled 2 times (2 s)"
    assert "same shapes" in finding.advice


def test_first_compiles_are_no_recompiles():
    """Many functions that compile once each are no finding."""
    assert list(recompiling(facts([compile_row(f"f{index}", index) for index in range(30)]))) == []


def test_ragged_last_batch_is_found():
    """A recompile for a shorter batch at an epoch's last step is told as that, with both shapes."""
    (finding,) = ragged_last_batch(facts([FIRST, RAGGED]))
    assert finding.title == (
        "the last batch is smaller ((8, 4) -> (3, 4)), which cost one recompile of train_step (1 s)"
    )
    assert finding.evidence["step"] == 100
    assert "drop the remainder" in finding.advice


def test_ragged_last_batch_is_not_recompiling():
    """Ragged last batches are told once, not as recompiles too."""
    rows = [RAGGED, compile_row(step=200, num_recompiles=2, changes=[change("(8, 4)", "(2, 4)")])]
    assert list(recompiling(facts([FIRST, *rows]))) == []
    assert len(list(ragged_last_batch(facts([FIRST, *rows])))) == 1


def test_ragged_batch_of_validation():
    """The last batch of validation is told for the function that evaluates."""
    row = compile_row("eval_step", 100, 1, changes=SHORTER)
    assert [finding.subject for finding in ragged_last_batch(facts([RAGGED, row]))] == ["train_step", "eval_step"]


@pytest.mark.parametrize(
    ("step", "changes"),
    [
        pytest.param(50, SHORTER, id="within an epoch"),
        pytest.param(None, SHORTER, id="outside of training"),
        pytest.param(100, [], id="nothing changed"),
        pytest.param(100, [change("(8, 4)", "(8, 3)")], id="another size than the first"),
        pytest.param(100, [change("(3, 4)", "(8, 4)")], id="longer"),
        pytest.param(100, [change("(8, 4)", "(3, 4, 1)")], id="another rank"),
        pytest.param(100, [change("()", "()")], id="scalars"),
        pytest.param(100, [*SHORTER, change("float32", "int32", kind="dtype")], id="dtype as well"),
        pytest.param(100, [*SHORTER, change("(4, 4)", "(4, 5)", path="params")], id="another leaf as well"),
    ],
)
def test_other_recompiles_are_not_ragged(step, changes):
    """Only a batch with fewer examples, at an epoch's last step, is a ragged last batch."""
    row = compile_row(step=step, num_recompiles=1, changes=changes)
    assert not is_ragged_last_batch(row, frozenset({100, 200}))
    assert list(ragged_last_batch(facts([FIRST, row]))) == []


@pytest.mark.parametrize(
    ("wall_s", "expected"), [(None, "info"), (101.0, "info"), (100.0, "warning"), (10.0, "warning")]
)
def test_ragged_batch_that_costs_little_is_information(wall_s, expected):
    """A recompile of less than a hundredth of the run is no warning."""
    (finding,) = ragged_last_batch(facts([RAGGED], wall_s))
    assert finding.severity == expected


@pytest.mark.parametrize(("compile_s", "expected"), [(4.6, "info"), (4.75, "warning")])
def test_ragged_batch_that_takes_long_is_a_warning(compile_s, expected):
    """A recompile of five seconds is a warning in any run."""
    row = {**RAGGED, "trace_s": 0.25, "lower_s": 0.0, "compile_s": compile_s}
    (finding,) = ragged_last_batch(facts([row], wall_s=1e6))
    assert finding.severity == expected


@pytest.mark.parametrize(
    ("compile_s", "wall_s", "expected"),
    [
        (9.9, 12.0, None),
        (10.0, 33.4, None),
        (10.0, 33.3, "warning"),
        (59.0, 60.0, "warning"),
        (60.0, 100.0, "severe"),
        (60.0, 101.0, "warning"),
    ],
)
def test_edges_of_slow_compile(compile_s, wall_s, expected):
    """Compilation is a finding from 10 s and 30 % of the wall on, severe from a minute and 60 %."""
    finding = slow_compile(facts([FIRST], wall_s, compile_s))
    assert (finding and finding.severity) == expected


def test_slow_compile_names_the_slowest():
    """The evidence has the function that took longest."""
    finding = slow_compile(facts([FIRST, compile_row("eval_step", compile_s=30.0)], 60.0, 40.0))
    assert finding is not None
    assert finding.evidence["slowest_function"] == "eval_step"


@pytest.mark.parametrize(("cache", "is_advised"), [("off", True), ("miss", False), ("hit", False)])
def test_a_cache_is_advised_where_there_is_none(cache, is_advised):
    """A compilation cache that is on already is not advised."""
    finding = slow_compile(facts([{**FIRST, "cache": cache}], 60.0, 40.0))
    assert finding is not None
    assert ("compile_cache of the TrainerConfig" in finding.advice) == is_advised
    assert "scan over them" in finding.advice


@pytest.mark.parametrize(
    ("library", "advised"),
    [("linen", "(nn.scan)"), ("nnx", "(nnx.scan,"), ("equinox", "(jax.lax.scan, over"), ("", "(jax.lax.scan)")],
)
def test_advice_on_slow_compiles_fits_the_library(library, advised):
    """For equal layers, the advice names the scan of the model's own library."""
    finding = slow_compile(replace(facts([FIRST], 60.0, 40.0), library=library))
    assert finding is not None
    assert advised in finding.advice


def test_advice_on_slow_compiles_fits_the_loop():
    """A loop of the user's own has no TrainerConfig."""
    finding = slow_compile(replace(facts([FIRST], 60.0, 40.0), is_own_loop=True))
    assert finding is not None
    assert "jax_compilation_cache_dir" in finding.advice
    assert "TrainerConfig" not in finding.advice


def test_recompiles_are_not_told_as_slow_compile():
    """Where most of the compilation is recompiles, that is the finding and not this."""
    assert slow_compile(facts(recompiles(30), wall_s=60.0, compile_s=31.0)) is None


def test_slow_compile_without_a_ledger():
    """Without the wall there is no verdict."""
    assert slow_compile(facts([FIRST], None)) is None
