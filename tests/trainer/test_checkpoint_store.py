"""The store of checkpoints: what is committed comes back, what is damaged is found, what failed leaves no trace."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import v1 as ocp

from tests import fork_server
from trackside.errors import CheckpointError
from trackside.trainer.checkpoint_store import FORMAT_VERSION, MANIFEST, CheckpointStore


def make_trees() -> dict[str, Any]:
    params = {
        "kernel": jnp.arange(12.0).reshape(4, 3),
        "scale": jnp.array([0.1, -2.5, 3e30], jnp.bfloat16),
        "key": jnp.array([7, 2**32 - 1], jnp.uint32),
    }
    return {"params": params, "opt_state": optax.adam(1e-3).init({"kernel": params["kernel"]})}


def abstract(trees: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), trees)


def assert_same(trees: Any, expected: Any) -> None:
    assert jax.tree.structure(trees) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(trees), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(other))


def save(store: CheckpointStore, step: int = 1, **kwargs: Any) -> dict[str, Any]:
    trees = make_trees()
    store.save(step, trees, {"note": step}, **kwargs)
    store.wait()
    return trees


def names_in(store: CheckpointStore) -> set[str]:
    return {path.name for path in store.root.iterdir()}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_trees_come_back(store: CheckpointStore) -> None:
    """Values, dtypes and containers come back as they were, named tuples, uint32 and bfloat16 included."""
    trees = save(store)
    assert_same(store.load(1, abstract(trees)), trees)


def test_part_of_the_trees_can_be_loaded(store: CheckpointStore) -> None:
    """Parameters come back without the optimizer's state, and its state, with empty parts, without the parameters."""
    trees = save(store)
    for name, tree in trees.items():
        assert_same(store.load(1, {name: abstract(tree)}), {name: tree})


@pytest.mark.parametrize("empty", [{}, (optax.EmptyState(), optax.EmptyState()), None])
def test_trees_without_leaves_come_back(store: CheckpointStore, empty: Any) -> None:
    """A tree without arrays comes back as it is, beside others and alone."""
    for step, trees in enumerate([{"params": {"a": jnp.ones(2)}, "empty": empty}, {"params": {"a": jnp.ones(2)}}]):
        store.save(step, trees, {})
        store.wait()
        assert_same(store.load(step, {**abstract(trees), "empty": empty}), {**trees, "empty": empty})
    assert store.load(1, {"empty": empty}) == {"empty": empty}


def test_record_comes_back(store: CheckpointStore) -> None:
    """What JSON can hold is saved beside the trees and comes back from record and verify alike."""
    record = {"metrics": {"loss": 0.1}, "names": ["ä", "\n"], "nothing": None}
    store.save(1, make_trees(), record)
    store.wait()
    assert store.record(1) == record
    assert store.verify(1) == record


def test_shapes_are_known_without_loading(store: CheckpointStore) -> None:
    """Shapes and dtypes of the saved trees can be asked for."""
    save(store)
    shapes = store.shapes(1)
    kernel = shapes["params"]["kernel"]
    assert (kernel.shape, kernel.dtype) == ((4, 3), np.float32)
    assert shapes.keys() == {"params", "opt_state"}


def test_steps_are_listed_in_order(store: CheckpointStore) -> None:
    """Steps are ordered as numbers; before the first save there are none."""
    assert store.steps() == []
    for step in (20, 3, 100):
        save(store, step)
    assert store.steps() == [3, 20, 100]


def test_only_folders_named_as_a_step_are_listed(store: CheckpointStore) -> None:
    """Files, leftovers and numbers that no save would write are not taken for steps."""
    save(store)
    for name in ("007", "٣", ".saving-5", ".deleting-6", "8.orbax-checkpoint-tmp", "-9"):
        (store.root / name).mkdir()
    (store.root / "10").write_text("")
    assert store.steps() == [1]


def test_state_may_be_donated_after_save_returns(store: CheckpointStore) -> None:
    """What is saved is the state at the call, also if its memory is overwritten while it is written."""
    update = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
    trees = {"params": {f"layer_{at}": jnp.full((256, 256), float(at)) for at in range(8)}}
    expected, form = jax.tree.map(np.array, trees), abstract(trees)
    store.save(1, trees, {})
    for _ in range(3):
        trees = update(trees)
    jax.block_until_ready(trees)
    store.wait()
    assert_same(store.load(1, form), expected)


# --- damage ---------------------------------------------------------------------------------------------------------


def test_one_flipped_bit_is_found_in_every_file(store: CheckpointStore) -> None:
    """A single bit that changes in any file of a step is found, and the file named."""
    save(store)
    folder = store.root / "1"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert folder / MANIFEST in files
    for at, path in enumerate(files):
        data = path.read_bytes()
        flipped = bytearray(data or b"\0")  # an empty file can only grow
        flipped[at * 97 % len(flipped)] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError, match="damaged") as caught:
            store.verify(1)
        assert path.relative_to(folder).as_posix() in str(caught.value)
        path.write_bytes(data)
    store.verify(1)


def test_every_bit_of_the_manifest_counts(store: CheckpointStore) -> None:
    """No bit of the manifest can change unnoticed, that of its own checksum and of its line ends included."""
    save(store)
    path = store.root / "1" / MANIFEST
    data = path.read_bytes()
    for at in [*range(12), *range(12, len(data) - 3, 50), len(data) - 2, len(data) - 1]:
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match=MANIFEST):
                store.record(1)


def test_missing_file_is_found(store: CheckpointStore) -> None:
    """A file that is gone is named."""
    save(store)
    (store.root / "1" / "state" / "_METADATA").unlink()
    with pytest.raises(CheckpointError, match="the file state/_METADATA is missing"):
        store.verify(1)


def test_extra_file_is_found(store: CheckpointStore) -> None:
    """A file that was not saved is named, since Orbax might read it."""
    save(store)
    (store.root / "1" / "state" / "extra").write_text("")
    with pytest.raises(CheckpointError, match="the file state/extra does not belong there"):
        store.verify(1)


@pytest.mark.parametrize("num_bytes", [0, 5, 9, 100, -1])
def test_truncated_manifest_is_found(store: CheckpointStore, num_bytes: int) -> None:
    """A manifest that was cut anywhere is damaged."""
    save(store)
    path = store.root / "1" / MANIFEST
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(CheckpointError, match=f"the file {MANIFEST} is damaged"):
        store.verify(1)


def test_manifest_is_json(store: CheckpointStore) -> None:
    """Other programs can read the manifest."""
    save(store, 1)
    sealed = json.loads((store.root / "1" / MANIFEST).read_text())
    assert sealed["manifest"]["step"] == 1
    assert len(sealed["crc32"]) == 8


def test_manifest_of_format_1_is_read(store: CheckpointStore) -> None:
    """A step that an earlier version has written, with the checksum on a line above the JSON, is verified and read."""
    save(store, 1)
    path = store.root / "1" / MANIFEST
    manifest = json.loads(path.read_text())["manifest"]
    body = json.dumps({**manifest, "format": 1}).encode()
    path.write_bytes(b"%08x\n%s\n" % (zlib.crc32(body), body))
    assert store.verify(1) == store.record(1) == manifest["record"]
    path.write_bytes(b"%08x\n%s\n" % (zlib.crc32(body) ^ 1, body))
    with pytest.raises(CheckpointError, match="checksum"):
        store.verify(1)


def test_step_with_a_folder_for_each_tree_is_read(store: CheckpointStore) -> None:
    """Format 2 had the trees one by one: they are verified, shown and loaded, all of them and some."""
    trees, folder = make_trees(), store.root / "1"
    ocp.save_checkpointables(str(folder), trees)
    files = {
        path.relative_to(folder).as_posix(): [path.stat().st_size, zlib.crc32(path.read_bytes())]
        for path in folder.rglob("*")
        if path.is_file()
    }
    body = json.dumps({"format": 2, "step": 1, "files": files, "record": {"note": 1}}).encode()
    (folder / MANIFEST).write_bytes(b'{"crc32": "%08x", "manifest":\n%s\n}\n' % (zlib.crc32(body), body))
    assert store.verify(1) == {"note": 1}
    assert store.shapes(1)["params"]["kernel"].shape == (4, 3)
    assert_same(store.load(1, abstract(trees)), trees)
    assert_same(store.load(1, {"params": abstract(trees["params"])}), {"params": trees["params"]})


def test_missing_manifest_is_found(store: CheckpointStore) -> None:
    """A step without a manifest is an error that says so, for record and verify."""
    save(store)
    (store.root / "1" / MANIFEST).unlink()
    for read in (store.record, store.verify):
        with pytest.raises(CheckpointError, match="manifest is missing"):
            read(1)


def test_newer_format_is_refused(store: CheckpointStore) -> None:
    """A checkpoint of a later version is an error with both formats and what to do."""
    save(store)
    body = json.dumps({"format": FORMAT_VERSION + 1, "step": 1, "contents": "unknown"}).encode()
    (store.root / "1" / MANIFEST).write_bytes(b"%08x\n%s\n" % (zlib.crc32(body), body))
    with pytest.raises(
        CheckpointError, match=rf"format {FORMAT_VERSION + 1} is newer than {FORMAT_VERSION}.*update trackside"
    ):
        store.verify(1)


# --- saves that fail, are dropped or come twice ---------------------------------------------------------------------


def test_step_is_invisible_until_it_is_committed(store: CheckpointStore) -> None:
    """A step that is fully written but not committed is not listed."""
    is_asked, may_commit = threading.Event(), threading.Event()

    def is_good() -> bool:
        is_asked.set()
        return may_commit.wait(300)

    store.save(1, make_trees(), {}, is_good=is_good)
    assert is_asked.wait(300)
    before = store.steps(), names_in(store)
    may_commit.set()
    store.wait()
    assert before == ([], {".saving-1"})
    assert (store.steps(), names_in(store)) == ([1], {"1"})


def test_state_that_is_not_good_leaves_nothing_behind(store: CheckpointStore) -> None:
    """A step that is found not to be good is dropped, without an error and without a trace."""
    commits: list[int] = []
    save(store, 1)
    save(store, 2, is_good=lambda: False)
    save(store, 3, after_commit=lambda: commits.append(3))
    assert names_in(store) == {"1", "3"}
    assert commits == [3]


def test_saving_a_step_twice_keeps_the_first(store: CheckpointStore) -> None:
    """A step that is there is not written again."""
    save(store)
    store.save(1, {"params": {"other": jnp.zeros(3)}}, {"note": "second"})
    store.wait()
    assert store.verify(1) == {"note": 1}


def test_saving_a_damaged_step_again_replaces_it(store: CheckpointStore) -> None:
    """A training that went back behind a damaged step and comes to it again saves it."""
    save(store)
    (store.root / "1" / "state" / "_METADATA").write_text("")
    trees = save(store)
    store.verify(1)
    assert_same(store.load(1, abstract(trees)), trees)


def test_root_that_is_a_file(tmp_path: Path) -> None:
    """A folder that cannot be made is an error at wait that names the cause, and is raised once."""
    (tmp_path / "file").write_text("kept")
    store = CheckpointStore(tmp_path / "file")
    store.save(1, make_trees(), {})
    with pytest.raises(CheckpointError, match=r"file could not be written: .*File exists"):
        store.wait()
    store.wait()
    assert store.steps() == []
    assert (tmp_path / "file").read_text() == "kept"


def test_record_that_cannot_be_written(store: CheckpointStore) -> None:
    """A record that JSON cannot hold fails the save and leaves the earlier step and nothing else."""
    save(store)
    with pytest.raises(CheckpointError, match="JSON"):
        store.save(2, make_trees(), {"loss": float("nan")})
    assert names_in(store) == {"1"}


def test_failed_save_is_raised_by_the_next(store: CheckpointStore) -> None:
    """A failure that nobody waited for is not lost; after it, saving works again."""

    def fail() -> bool:
        raise OSError("the disk is gone")

    store.save(1, make_trees(), {}, is_good=fail)
    with pytest.raises(CheckpointError, match="the disk is gone"):
        store.save(2, make_trees(), {})
    save(store, 3)
    assert store.steps() == [3]


CHILD = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
import jax.numpy as jnp
from trackside.errors import CheckpointError
from trackside.trainer.checkpoint_store import CheckpointStore

store = CheckpointStore(sys.argv[1])
"""


def start_child(code: str, root: Path, **kwargs: Any) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD + textwrap.dedent(code), str(root)]
    return fork_server.Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)


@pytest.mark.slow
def test_disk_that_is_full(tmp_path: Path) -> None:
    """Where a file cannot grow, wait raises with the cause, and the earlier step is intact and alone."""
    code = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store.save(1, {"params": {"a": jnp.arange(10.0)}}, {})
        store.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        store.save(2, {"params": {"a": jnp.sin(jnp.arange(1e6))}}, {})
        try:
            store.wait()
        except CheckpointError as error:
            print("raised", error)
    """
    child = start_child(code, tmp_path)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    assert "raised" in out
    assert "File too large" in out
    store = CheckpointStore(tmp_path)
    assert names_in(store) == {"1"}
    store.verify(1)


@pytest.mark.slow
def test_process_that_ends_without_waiting(tmp_path: Path) -> None:
    """A save that is under way when the interpreter ends is still committed."""
    child = start_child('store.save(1, {"params": {"a": jnp.arange(1e6)}}, {})', tmp_path)
    _, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    CheckpointStore(tmp_path).verify(1)


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Whenever a process is killed, each step that is listed verifies and holds what was saved."""
    code = """
        tree = {f"layer_{at}": jnp.full((500, 1000), float(at)) for at in range(10)}
        for step in range(max(store.steps(), default=0) + 1, 10_000):
            store.save(step, {"params": {name: leaf + step for name, leaf in tree.items()}}, {"step": step})
            store.delete(store.steps()[:-2])
            print(step, flush=True)
    """
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)  # shown if the test fails
    moments, store = random.Random(seed), CheckpointStore(tmp_path)
    form = {f"layer_{at}": jax.ShapeDtypeStruct((500, 1000), np.float32) for at in range(10)}
    form = jax.tree.map(lambda leaf: leaf.update(sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])), form)
    for _ in range(3):
        child = start_child(code, tmp_path)
        assert child.stdout is not None
        for _ in range(moments.randint(2, 5)):
            assert child.stdout.readline().strip().isdecimal()
        with pytest.raises(subprocess.TimeoutExpired):  # any moment of the save that is under way
            child.wait(moments.uniform(0.0, 0.3))
        child.kill()
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        assert store.steps()
        for step in store.steps():
            assert store.verify(step) == {"step": step}
            loaded = store.load(step, {"params": form})["params"]
            for at in range(10):
                np.testing.assert_array_equal(loaded[f"layer_{at}"], np.float32(at + step))
    store.clean()
    assert names_in(store) == {str(step) for step in store.steps()}


# --- deleting -------------------------------------------------------------------------------------------------------


def test_deleted_steps_are_gone(store: CheckpointStore) -> None:
    """Deleting removes the steps named and no other; one that is not there is no error."""
    for step in (1, 2, 3):
        save(store, step)
    store.delete([1, 3, 99])
    assert names_in(store) == {"2"}


def test_step_loses_its_name_before_its_files(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If deleting is cut short, the step is not listed any more, and clean removes the rest."""
    save(store)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
        store.delete([1])
    assert store.steps() == []
    assert names_in(store) == {".deleting-1"}
    store.clean()
    assert names_in(store) == set()


def test_leftovers_are_cleaned_and_steps_kept(store: CheckpointStore) -> None:
    """Clean removes half-written and half-deleted folders, Orbax's own included, and leaves all else alone."""
    save(store)
    for name in (".saving-2", ".saving-3.orbax-checkpoint-tmp", ".deleting-4", "notes"):
        (store.root / name / "inner").mkdir(parents=True)
    store.clean()
    assert names_in(store) == {"1", "notes"}
    store.verify(1)


def test_cleaning_where_nothing_is(store: CheckpointStore) -> None:
    """Clean does not mind that the folder is missing, and does not make it."""
    store.clean()
    assert not store.root.exists()


def test_save_over_a_leftover(store: CheckpointStore) -> None:
    """A step that an earlier process left half written can be saved."""
    for name in (".saving-1", ".saving-1.orbax-checkpoint-tmp"):
        (store.root / name / "state").mkdir(parents=True)
        (store.root / name / "state" / "half").write_text("half")
    save(store)
    assert names_in(store) == {"1"}
    store.verify(1)


@pytest.mark.parametrize("name", ["1", ".saving-1", ".deleting-1", ".saving-1.orbax-checkpoint-tmp"])
def test_links_are_not_followed_when_deleting(store: CheckpointStore, tmp_path: Path, name: str) -> None:
    """What a link points to is never deleted."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    store.root.mkdir()
    (store.root / name).symlink_to(tmp_path / "precious", target_is_directory=True)
    store.delete([1])
    store.clean()
    assert (tmp_path / "precious" / "file").read_text() == "kept"
    assert names_in(store) == ({"1"} if name == "1" else set())
