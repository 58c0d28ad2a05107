import os
import subprocess
import sys

import pytest

from trackside.logger import environment as environment_module
from trackside.logger.environment import gather_environment, git_state


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """On a busy machine, git may take longer than a training waits for it."""
    monkeypatch.setattr(environment_module, "GIT_TIMEOUT_S", 300.0)


def git(directory, *arguments):
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false", *arguments],
        cwd=directory,
        check=True,
        capture_output=True,
    )


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "model.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_clean_repository(repository):
    """The whole commit, even where a tag points at it, and files that git does not track do not matter."""
    git(repository, "tag", "v1")
    (repository / "notes.txt").write_text("")
    state = git_state(repository)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["dirty"] is False


def test_a_changed_repository(repository):
    """A change to a tracked file makes it dirty, and looking changes nothing."""
    (repository / "model.py").write_text("x = 2\n")
    index = (repository / ".git" / "index").read_bytes()
    state = git_state(repository)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["dirty"] is True
    assert (repository / ".git" / "index").read_bytes() == index


def test_no_repository(tmp_path, monkeypatch):
    """Outside of a repository, before its first commit, and without git, there is no state and no error."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_state(tmp_path) is None


def test_the_environment_names_what_ran(tmp_path, monkeypatch):
    """Versions, machine and command line are there, the secret on it is not."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--api_key=abc"])
    environment = gather_environment(4)
    assert environment["command"] == ["train.py", "--api_key=***"]
    assert {"trackside", "jax", "jaxlib", "flax", "optax", "numpy"} == set(environment["versions"])
    assert environment["python"].startswith("3.")
    assert (environment["pid"], environment["process_index"]) == (os.getpid(), 4)
    assert environment["working_directory"] == str(tmp_path)
    assert environment["hostname"]
    assert environment["platform"]
    assert "git" not in environment
