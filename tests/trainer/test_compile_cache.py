"""Compiled programs that outlive a process: cold and warm, torn, killed, read-only, and whose settings win."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests import compile_cache as test_cache
from tests import fork_server
from tests.children import ROOT, environment
from tests.trainer.test_full_disk import mounted
from tests.trainer.tiny import make_loader, make_trainer
from trackside import jax_internals
from trackside.errors import ConfigError
from trackside.logger import LoggerConfig
from trackside.profiling.compiles import compile_counter
from trackside.trainer import TrainerConfig
from trackside.trainer.compile_cache import CompileCache, cache_for, machine, user_decides

PROGRAMS = ("initial state", "eval_step", "train_step")


def start(
    run: Path, cache: str | Path, *words: str, check: bool = True, starter: Any = fork_server.run, **variables: str
) -> Any:
    """Train in a process of its own, and give what it printed."""
    found = {name: value for name, value in environment().items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "tests.trainer.compile_script", str(run), str(cache), *words]
    done = starter(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**found, **variables}, timeout=300
    )
    assert not check or done.returncode == 0, done.stderr
    return (json.loads(done.stdout.splitlines()[-1]) | {"errors": done.stderr}) if check else done


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of programs, and the training that filled it: in a fresh interpreter, with hashes of its own."""
    root = tmp_path_factory.mktemp("cold")
    return root / "programs", start(root / "run", root / "programs", starter=subprocess.run)


def copied(cold: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """The programs, for a test that damages them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for path in entries(cold[0]):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.slow
def test_a_warm_process_compiles_nothing_and_gives_the_same(cold, tmp_path):
    """All programs come from the folder, and weights and metrics are the same to the last bit."""
    folder, first = cold
    second = start(tmp_path / "run", folder)
    assert first["compiles"] == dict.fromkeys(PROGRAMS, "miss")
    assert second["compiles"] == dict.fromkeys(PROGRAMS, "hit")
    assert (second["weights"], second["losses"]) == (first["weights"], first["losses"])


@pytest.mark.slow
def test_damaged_programs_are_compiled_again_and_replaced(cold, tmp_path):
    """One that is cut off, one with a flipped bit and an empty one: the log says so, and the next process is fine."""
    folder = copied(cold, tmp_path)
    before = [path.read_bytes() for path in entries(folder)]
    flipped = bytearray(before[0])
    flipped[len(flipped) // 2] ^= 1
    for path, content in zip(entries(folder)[:3], (bytes(flipped), before[1][:100], b""), strict=True):
        path.write_bytes(content)
    damaged = start(tmp_path / "run", folder)
    assert damaged["weights"] == cold[1]["weights"]
    assert damaged["errors"].count("is damaged") >= 3
    assert set(start(tmp_path / "again", folder)["compiles"].values()) == {"hit"}


@pytest.mark.slow
def test_a_process_killed_while_it_writes_leaves_no_program(cold, tmp_path):
    """What it leaves has another name, and the next process compiles and trains as usual."""
    killed = start(tmp_path / "killed", tmp_path / "programs", "killed", check=False)
    assert killed.returncode == -9
    assert [path.suffix for path in (tmp_path / "programs").iterdir()] == [".tmp"]
    assert start(tmp_path / "run", tmp_path / "programs")["weights"] == cold[1]["weights"]


@pytest.mark.slow
def test_programs_whose_names_differ_are_kept_apart(cold, tmp_path):
    """A scope with another name is another program: a capture shows the names of the code that ran."""
    renamed = start(tmp_path / "run", copied(cold, tmp_path), "renamed", "captured")
    assert renamed["compiles"]["train_step"] == "miss"
    assert renamed["weights"] == cold[1]["weights"]
    scopes = json.dumps([report["scopes"] for report in renamed["reports"]])
    assert "/other/" in scopes
    assert "/first/" not in scopes


@pytest.mark.slow
def test_a_capture_of_a_cached_program_says_what_it_lacks(cold, tmp_path):
    """Scopes and FLOPs are there; peak memory by scope is listed as missing."""
    warm = start(tmp_path / "run", cold[0], "captured")
    assert warm["compiles"]["train_step"] == "hit"
    report = warm["reports"][0]
    assert "/first/" in json.dumps(report["scopes"])
    assert report["flops"]["rows"]
    assert report["peak_memory"]["peak_temporary_bytes"] is None
    assert "compile cache" in report["missing"][-1]


@pytest.mark.slow
def test_a_second_leg_takes_its_programs_from_the_run(tmp_path):
    """By default a resumed run compiles neither its initial state nor its steps again."""
    start(tmp_path / "run", "run", "leg")
    second = start(tmp_path / "run", "run", "leg", "second")
    assert second["folder"] == str(tmp_path / "run")
    assert {name: second["compiles"][name] for name in PROGRAMS} == dict.fromkeys(PROGRAMS, "hit")


@pytest.mark.slow
def test_what_the_user_has_set_up_in_jax_wins(tmp_path):
    """With a directory in JAX's variable nothing goes to ours; with the cache switched off nothing goes anywhere."""
    start(tmp_path / "run", tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))
    off = start(tmp_path / "off", tmp_path / "ours", JAX_ENABLE_COMPILATION_CACHE="false")
    assert (tmp_path / "theirs").exists()
    assert set(off["compiles"].values()) == {"off"}
    assert not (tmp_path / "ours").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_does_not_end_a_training(cold, tmp_path):
    """The log says once that programs are not kept, and the training is as it would have been."""
    (tmp_path / "file").write_text("")
    done = start(tmp_path / "run", tmp_path / "file" / "programs")
    assert done["weights"] == cold[1]["weights"]
    assert done["errors"].count("training continues") == 1


@pytest.mark.slow
def test_the_default_is_the_run_folder_and_none_switches_it_off(tmp_path):
    """`run` puts programs into the run's folder; None leaves it without; without a run nothing is written at all."""
    assert (Path(start(tmp_path / "a", "run")["folder"]) / "compiled").is_dir()
    assert not (Path(start(tmp_path / "b", "none")["folder"]) / "compiled").exists()
    start(tmp_path / "c", "run", "unlogged")
    assert not (tmp_path / "c").exists()


def test_a_program_comes_back_as_it_was(tmp_path):
    """What was put is what one gets, also after another was put in its place."""
    cache = CompileCache(tmp_path / "new")
    assert cache.get("one") is None
    cache.put("one", b"abc")
    cache.put("one", b"abcd")
    assert cache.get("one") == b"abcd"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["one"]


def test_many_writers_of_one_program_never_show_half_of_it(tmp_path, caplog):
    """Readers get what one of the writers wrote, whole, at any moment."""
    values = [bytes([index]) * 100_000 for index in range(4)]

    def write_and_read(value: bytes) -> list[bytes | None]:
        cache = CompileCache(tmp_path, max_bytes=300_000)
        return [found for _ in range(20) for found in [cache.put("one", value), cache.get("one")]]

    with ThreadPoolExecutor(len(values)) as pool:
        found = [one for part in pool.map(write_and_read, values) for one in part]
    assert {one for one in found if one is not None} <= set(values)
    assert caplog.text == ""


@pytest.mark.parametrize("at", [0, 25, 60])
def test_a_changed_byte_is_noticed(tmp_path, at, caplog):
    """In the mark, the checksum or the program."""
    cache = CompileCache(tmp_path)
    cache.put("one", bytes(100))
    content = bytearray((tmp_path / "one").read_bytes())
    content[at] ^= 1
    (tmp_path / "one").write_bytes(content)
    assert cache.get("one") is None
    assert "is damaged" in caplog.text


def test_a_full_disk_is_said_once_and_leaves_nothing(tmp_path, caplog):
    """What does not fit is not kept, half of it neither, and what was kept can still be read."""
    with mounted(tmp_path / "disk") as disk:
        cache = CompileCache(disk)
        cache.put("small", b"abc")
        cache.put("large", bytes(8 << 20))
        cache.put("larger", bytes(9 << 20))
        assert [path.name for path in disk.iterdir()] == ["small"]
        assert cache.get("small") == b"abc"
    assert caplog.text.count("training continues") == 1


def test_the_folder_is_bounded(tmp_path):
    """What was used longest ago goes first, left-over files go too, and files of others stay."""
    cache = CompileCache(tmp_path, max_bytes=1000)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".old.tmp").write_text("")
    os.utime(tmp_path / ".old.tmp", (0, 0))
    for index, key in enumerate(("one", "two", "three")):
        cache.put(key, bytes(300))
        os.utime(tmp_path / key, (1000 + index, 1000 + index))
    assert cache.get("two") is not None
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "two", "three"}
    cache.put("huge", bytes(2000))
    assert cache.get("huge") is None


def test_a_run_that_is_only_looked_at_is_not_written_to(tmp_path):
    """Where nothing may be written, nothing is."""
    cache = cache_for("run", tmp_path, lambda: False)
    assert cache is not None
    cache.put("one", b"abc")
    assert list(tmp_path.iterdir()) == []


def test_no_cache_without_a_folder(tmp_path):
    """`run` needs a run; a path does not; None is none."""
    assert cache_for("run", None, lambda: True) is None
    assert cache_for(None, tmp_path, lambda: True) is None
    assert cache_for(str(tmp_path), None, lambda: True) is not None


def test_a_wrong_value_is_named():
    """A number or an empty path is refused; a Path is taken."""
    for wrong in ("", 3, False):
        with pytest.raises(ConfigError, match="compile_cache: expected"):
            TrainerConfig(compile_cache=wrong)  # type: ignore[arg-type]
    assert TrainerConfig(compile_cache=Path("a/b")).compile_cache == os.path.join("a", "b")  # type: ignore[arg-type]


def test_the_suite_has_a_cache_of_jax_which_wins(tmp_path):
    """A trainer next to a cache that the user has set up leaves the run's folder without one."""
    assert user_decides()
    make_trainer(logger=LoggerConfig(log_path=tmp_path / "run")).train_model(make_loader(2), num_epochs=1)
    assert not (tmp_path / "run" / "compiled").exists()


def test_only_the_thread_in_the_block_uses_the_store(tmp_path):
    """Code of the user's before and after the block does not reach the folder, and JAX is left as it was."""
    with test_cache.switched_off():
        cache = CompileCache(tmp_path)
        functions = jax_internals._compilation_cache._get_cache, jax_internals._compilation_cache.get_cache_key
        with jax_internals.programs_kept_in(cache, machine(), 0.0):
            jax.jit(lambda x: jnp.sin(x) * 3)(jnp.ones(5)).block_until_ready()
        num_entries = len(list(tmp_path.iterdir()))
        number = compile_counter().num_compiles
        jax.jit(lambda x: jnp.sin(x) * 4)(jnp.ones(5)).block_until_ready()
        assert num_entries > 0
        assert len(list(tmp_path.iterdir())) == num_entries
        assert compile_counter().events_after(number)[-1].cache == "off"
        assert functions == (
            jax_internals._compilation_cache._get_cache,
            jax_internals._compilation_cache.get_cache_key,
        )


def test_two_stores_in_one_process_do_not_mix(tmp_path):
    """Two trainers with folders of their own each keep what they compile."""
    with test_cache.switched_off():
        for name in ("a", "b"):
            jax.clear_caches()
            with jax_internals.programs_kept_in(CompileCache(tmp_path / name), machine(), 0.0):
                jax.jit(lambda x: jnp.cos(x) * 3)(jnp.ones(6)).block_until_ready()
        assert [path.name for path in entries(tmp_path / "a")] == [path.name for path in entries(tmp_path / "b")]


def test_without_the_private_api_everything_is_compiled(tmp_path, monkeypatch):
    """A version of JAX without it compiles as if there were no cache."""
    monkeypatch.setattr(jax_internals, "_compilation_cache", None)
    with test_cache.switched_off(), jax_internals.programs_kept_in(CompileCache(tmp_path), machine(), 0.0):
        assert not jax_internals.keeps_programs()
        jax.jit(lambda x: jnp.cos(x) * 7)(jnp.ones(7)).block_until_ready()
    assert list(tmp_path.iterdir()) == []


def test_lines_are_not_part_of_the_key_but_names_are(tmp_path):
    """Code that has moved down is the same program; a scope with another name is another one."""

    def keys(scope: str, num_lines: int) -> set[str]:
        source = "\n" * num_lines + f"def f(x):\n    with jax.named_scope({scope!r}):\n        return jnp.sin(x) * 5\n"
        namespace: dict[str, Any] = {"jax": jax, "jnp": jnp}
        exec(compile(source, "moved.py", "exec"), namespace)
        folder = tmp_path / f"{scope}{num_lines}"
        with jax_internals.programs_kept_in(CompileCache(folder), machine(), 0.0):
            jax.jit(namespace["f"]).lower(jnp.ones(5)).compile()
        return {path.name for path in folder.iterdir()}

    with test_cache.switched_off():
        jnp.ones(5)
        assert keys("a", 0) == keys("a", 9)
        assert keys("a", 0) != keys("b", 0)
