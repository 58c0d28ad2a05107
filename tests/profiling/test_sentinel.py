import functools
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from trackside.errors import ConfigError, RecompileError
from trackside.events import EventWriter, read_events
from trackside.profiling.compiles import MAX_EVENTS, compile_counter
from trackside.profiling.sentinel import RecompileSentinel

pytestmark = pytest.mark.usefixtures("no_compile_cache")


class Rows(list):
    """An event sink that keeps its rows."""

    def write(self, kind, **fields):
        self.append({"kind": kind, **fields})


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def make_step(**options):
    """A new jitted function, so that it has compiled for nothing yet."""

    def step(state, batch, width=1):
        return state["scale"] * batch["x"].astype(jnp.float32).sum() * np.float32(width)

    return jax.jit(step, **options)


STATE = {"scale": np.float32(1)}


def arguments(x=None, scale=None, width=None):
    """Arguments of a step as its first call has them, but for what is given."""
    state = STATE if scale is None else {"scale": scale}
    batch = {"x": zeros(8, 2) if x is None else x()}
    return (state, batch) if width is None else (state, batch, width)


MESH = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def placed(*spec):
    return jax.device_put(zeros(8, 2), NamedSharding(MESH, PartitionSpec(*spec)))


CAUSES = {
    "shape": ({}, arguments(), arguments(x=lambda: zeros(7, 2)), ("batch['x']", "(8, 2)", "(7, 2)")),
    "dtype": (
        {},
        arguments(),
        arguments(x=lambda: zeros(8, 2, dtype=np.int32)),
        ("batch['x']", "float32", "int32"),
    ),
    "weak_type": ({}, arguments(), arguments(scale=1.0), ("state['scale']", "False", "True")),
    "sharding": (
        {},
        arguments(x=lambda: placed("data")),
        arguments(x=lambda: placed()),
        ("batch['x']", "P('data',) on {'data': 8}", "P() on {'data': 8}"),
    ),
    "committed": (
        {},
        arguments(),
        arguments(x=lambda: jax.device_put(zeros(8, 2), jax.devices()[0])),
        ("batch['x']", "uncommitted", "cpu:0"),
    ),
    "static": ({"static_argnums": 2}, arguments(width=1), arguments(width=2), ("width", "1", "2")),
    "structure": (
        {},
        arguments(),
        (STATE, {**arguments()[1], "mask": zeros(8)}),
        ("batch['mask']", "absent", "float32[8]"),
    ),
}


@pytest.mark.parametrize("kind", CAUSES)
def test_the_cause_of_a_recompile_is_named(kind):
    """A jitted function that compiles again gives a row with the exact leaf, what it was and what it is."""
    options, first, second, (path, old, new) = CAUSES[kind]
    rows = Rows()
    step = RecompileSentinel(rows).watch(make_step(**options))
    for args in (first, first, second, first, second):
        step(*args)
    own = [row for row in rows if row["function"] == "step"]
    assert [(row["kind"], row["num_recompiles"], len(row["changes"])) for row in own] == [
        ("compile", 0, 0),
        ("compile", 1, 1),
    ]
    assert own[1]["changes"] == [{"path": path, "kind": kind, "old": old, "new": new}]


def test_a_static_keyword_is_named():
    """A static argument by name, passed by keyword, is named; the value of a traced number next to it is not."""
    rows = Rows()
    step = RecompileSentinel(rows).watch(make_step(static_argnames="width"))
    step({"scale": 1.0}, {"x": zeros(8)}, width=1)
    step({"scale": 2.0}, {"x": zeros(8)}, width=2)
    assert rows[-1]["changes"] == [{"path": "width", "kind": "static", "old": "1", "new": "2"}]


def test_a_row_has_cost_step_and_suggestion():
    """A row has what a reader needs, and the step that the caller gave."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    step = make_step()
    for number, args in enumerate((arguments(), arguments(x=lambda: zeros(7, 2))), start=1):
        num_events = compile_counter().num_events
        step(*args)
        assert sentinel.compiled("train_step", args, {}, number, function=step, since=num_events)
    assert [(row["function"], row["step"], row["cache"]) for row in rows] == [
        ("train_step", 1, "off"),
        ("train_step", 2, "off"),
    ]
    assert all(min(row["trace_s"], row["lower_s"], row["compile_s"]) > 0 for row in rows)
    assert (rows[0]["suggestion"], "drop the remainder" in rows[1]["suggestion"]) == ("", True)


def test_named_compiles_wait_for_the_rows_to_be_written():
    """A function of the library has the name that was given, in a row that is written with others, and no recompile."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    double = sentinel.named(make_step(), "first state")
    for args in (arguments(), arguments(), arguments(x=lambda: zeros(7, 2))):
        double(*args)
    assert list(rows) == []
    sentinel.flush(3)
    assert [(row["function"], row["num_recompiles"]) for row in rows] == [("first state", 0), ("first state", 0)]


def test_rows_are_in_the_event_file(tmp_path):
    """With a run's own writer the rows are in its file."""
    writer = EventWriter(tmp_path / "events.jsonl")
    RecompileSentinel(writer).watch(make_step(), "train_step")(*arguments())
    writer.close()
    assert [row["function"] for row in read_events(writer.path) if row["kind"] == "compile"] == ["train_step"]


def test_one_line_is_logged_per_compile(caplog):
    """The first compile is news, a further one a warning that names leaf, values and what to do."""
    with caplog.at_level(logging.INFO, "trackside"):
        sentinel = RecompileSentinel(Rows())
        sentinel.step = 40
        step = sentinel.watch(make_step(), "train_step")
        step(*arguments())
        step(*arguments(x=lambda: zeros(7, 2)))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("train_step compiled at step 40 in ")
    assert "recompile 1: batch['x']: shape (8, 2) -> (7, 2). If it is the last batch, pad" in second


def test_consumed_arguments_can_be_explained():
    """The cause is named also where the call has taken its arguments for its own."""
    rows = Rows()
    step = RecompileSentinel(rows).watch(jax.jit(lambda x: x + 1, donate_argnums=0), "grow")
    for size in (3, 4):
        step(jax.device_put(zeros(size)))
    assert rows[-1]["changes"] == [{"path": "x", "kind": "shape", "old": "(3,)", "new": "(4,)"}]


def test_a_function_that_was_compiled_before_is_compared_with_its_first_call():
    """Watching a function that has run already costs no baseline: its next compile is a recompile with a cause."""
    rows = Rows()
    jitted = make_step()
    jitted(*arguments())
    step = RecompileSentinel(rows).watch(jitted)
    step(*arguments())
    assert rows == []
    step(*arguments(x=lambda: zeros(7, 2)))
    assert [(row["num_recompiles"], row["changes"][0]["path"]) for row in rows] == [(1, "batch['x']")]


def test_a_function_that_is_jitted_anew_compiles_again():
    """The same function under jit again and again is a recompile with the same arguments, and the row says so."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    for _ in range(2):
        sentinel.watch(make_step())(*arguments())
    assert [(row["num_recompiles"], row["changes"]) for row in rows] == [(0, []), (1, [])]
    assert "Build the jitted function once" in rows[1]["suggestion"]


def test_other_compiles_are_rows_without_a_cause():
    """What compiles outside of watched calls is written at the next flush, with its own name and the step."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    make_step()(*arguments())
    sentinel.flush(step=7)
    sentinel.flush(step=8)
    assert [(row["function"], row["step"], row["changes"], row["suggestion"]) for row in rows] == [("step", 7, [], "")]


def test_compiles_around_a_watched_call_are_not_its_own():
    """A compile of another function before the call does not count as the watched function's."""
    rows = Rows()
    sentinel = RecompileSentinel(rows, max_recompiles=0, on_too_many="error")
    step = sentinel.watch(make_step())
    step(*arguments())
    jax.jit(lambda x: x * 3)(zeros(3))
    step(*arguments())
    sentinel.flush()
    assert [row["function"] for row in rows] == ["step", "<lambda>"]


def test_compiles_of_other_threads_are_left_to_the_flush():
    """A compile on another thread during a watched call is a row, and not the watched function's."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)

    def run_thread(x):
        thread = threading.Thread(target=lambda: jax.jit(lambda y: y * 7)(zeros(3)), name="loader")
        thread.start()
        thread.join()
        return x

    sentinel.watch(run_thread)(zeros(3))
    assert (rows, sentinel.num_recompiles) == ([], {"run_thread": 0})
    sentinel.flush()
    assert [(row["function"], row["thread"]) for row in rows] == [("<lambda>", "loader")]


def test_operations_of_a_plain_function_are_not_its_compiles():
    """Single operations inside a function that is not jitted are rows of their own."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    sentinel.watch(lambda x: jnp.cosh(x), "run")(zeros(41))
    assert ([row["function"] for row in rows], sentinel.num_recompiles) == (["cosh"], {"run": 0})


def test_more_compiles_than_are_remembered_are_reported(caplog):
    """Where compiles came too fast to be written, the rest are rows and the log says how many are missing."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    for _ in range(MAX_EVENTS + 3):
        jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", 0.1, fun_name="jit(f)")
    sentinel.flush()
    assert len(rows) == MAX_EVENTS
    assert "3 compiles came too fast" in caplog.text


def test_a_plain_function_owns_the_compiles_inside():
    """A Python function around jitted ones is explained by its own arguments, and counts once per call."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    first, second = jax.jit(lambda x: x + 1), jax.jit(lambda x: x * 2)

    def run(batch):
        return second(first(batch))

    run = sentinel.watch(run)
    run(zeros(3))
    run(zeros(4))
    assert sentinel.num_recompiles == {"run": 1}
    assert [row["changes"][0]["path"] for row in rows[2:]] == ["batch", "batch"]


@pytest.mark.parametrize(("max_recompiles", "is_logged"), [(-1, False), (1, False), (0, True)])
def test_too_many_recompiles_are_a_warning(caplog, max_recompiles, is_logged):
    """The log line says when there are more recompiles than the limit; -1 means no limit."""
    step = RecompileSentinel(Rows(), max_recompiles).watch(make_step())
    for size in (8, 7):
        step(*arguments(x=lambda size=size: zeros(size)))
    assert ("max_recompiles" in caplog.text) == is_logged


def test_too_many_recompiles_are_an_error():
    """With `error` the call that is one too many fails, and names function, leaf, how often and the fix."""
    rows = Rows()
    step = RecompileSentinel(rows, max_recompiles=1, on_too_many="error").watch(make_step(), "train_step")
    for size in (8, 7):
        step(*arguments(x=lambda size=size: zeros(size)))
    with pytest.raises(RecompileError, match=r"train_step.*2 times.*max_recompiles=1: batch\['x'\]: shape.*; or raise"):
        step(*arguments(x=lambda: zeros(6)))
    assert len(rows) == 3


def test_the_rest_of_a_jitted_function_stays_reachable():
    """A watched function lowers, has its name and works as a method, as the jitted one does."""
    jitted = make_step()
    step = RecompileSentinel(Rows()).watch(jitted)
    assert step.lower(*arguments()).as_text() == jitted.lower(*arguments()).as_text()
    assert (step.__name__, step.__wrapped__) == ("step", jitted)
    assert step.clear_cache() is None


def test_a_partial_function_can_be_watched():
    """A function without a name is known by the one that it wraps, even when it is made again."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)

    def scaled(scale, x):
        return x * scale

    for scale in (2, 3):
        sentinel.watch(jax.jit(functools.partial(scaled, np.float32(scale))))(zeros(3))
    assert [(row["function"], row["num_recompiles"]) for row in rows] == [("scaled", 0), ("scaled", 1)]


def test_a_watched_function_inside_another_is_left_alone():
    """Called while another function is traced, a watched function does not compile, and later has its first compile."""
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    inner = sentinel.watch(jax.jit(lambda x: x * 2), "inner")
    jax.jit(lambda x: inner(x) + 1)(zeros(3))
    inner(zeros(3))
    assert [row["num_recompiles"] for row in rows if row["function"] == "inner"] == [0]


def test_arguments_that_cannot_be_described_do_not_stop_training(caplog):
    """Where a user's container fails, the compile is still a row."""

    class Broken:
        pass

    def fail(tree):
        raise RuntimeError

    jax.tree_util.register_pytree_with_keys(Broken, fail, lambda data, children: Broken())
    rows = Rows()
    sentinel = RecompileSentinel(rows)
    step = make_step()
    step(*arguments())
    assert sentinel.compiled("step", (Broken(),), function=step)
    assert [row["changes"] for row in rows] == [[]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_recompiles": -2}, "max_recompiles.*-2"),
        ({"on_too_many": "stop"}, "on_too_many.*'warn' or 'error'.*'stop'"),
    ],
)
def test_bad_settings_are_refused(options, words):
    """A limit below -1 and an unknown reaction are named with what is expected."""
    with pytest.raises(ConfigError, match=words):
        RecompileSentinel(Rows(), **options)
