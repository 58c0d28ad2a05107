"""`trackside completion`, asked by a real bash."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.tiny_run import plain_environment
from trackside import cli

ASK = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tyro_trackside; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash."""
    path = tmp_path_factory.mktemp("completion") / "trackside.bash"
    with pytest.MonkeyPatch.context() as patch:
        text: list[str] = []
        patch.setattr("sys.stdout.write", text.append)
        assert cli.run(["completion", "bash"]) == 0
    path.write_text("".join(text))
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["re"], ["report"]),
        (["report", "--no"], ["--no-html"]),
        (["watch", "--in"], ["--interval"]),
        (["report", "expe"], ["experiments"]),
        (["report", "--html", "expe"], ["experiments"]),
    ],
)
def test_bash_completes(words: list[str], offered: list[str], script: Path, tmp_path: Path) -> None:
    """Commands, options and paths are completed."""
    (tmp_path / "experiments").mkdir()
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", str(script), "trackside", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=plain_environment(),
    )
    assert done.stdout.split() == offered


def test_zsh_has_a_script(capsys: pytest.CaptureFixture) -> None:
    """The script for zsh is one that its completion finds."""
    assert cli.run(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef trackside")


def test_another_shell_is_an_error(capsys: pytest.CaptureFixture) -> None:
    """A shell that is not supported exits with 2 and lists those that are."""
    assert cli.run(["completion", "tcsh"]) == 2
    assert "zsh" in capsys.readouterr().err
