"""The command line as a whole: finding commands, help, errors, exit codes and pipes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.tiny_run import call, command, plain_environment
from trackside import __version__, cli
from trackside.cli import doctor_checks
from trackside.cli.commands import COMMANDS


def test_help_lists_every_command(capsys: pytest.CaptureFixture) -> None:
    """`trackside --help` names each command with what it is for, in 80 columns, and the exit codes."""
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert "Exit codes: 0 success, 1 regression (compare), 2 error, 130 Ctrl-C." in out
    assert max(map(len, out.splitlines())) <= 80


def test_nothing_asked_for_shows_the_help(capsys: pytest.CaptureFixture) -> None:
    """`trackside` alone shows the help, and exits with an error."""
    assert cli.run([]) == 2
    assert "usage: trackside COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_teaches(name: str, capsys: pytest.CaptureFixture) -> None:
    """The help of each command has an example to copy, in lines that fit the terminal."""
    assert cli.run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"\nExamples:\n  {'source <(' if name == 'completion' else ''}trackside {name}" in out
    assert max(map(len, out.splitlines())) <= 86


def test_help_needs_neither_jax_nor_the_parser() -> None:
    """`trackside --help` imports no jax, nor numpy, tyro or rich, so that it is there at once."""
    code = (
        "import sys; from trackside import cli; assert cli.run(['--help']) == 0;"
        "print(*{'jax', 'numpy', 'tyro', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""


def test_help_of_commands_needs_no_jax() -> None:
    """No command's help imports jax: only the training of the demo does."""
    code = (
        "import sys; from trackside import cli\n"
        "for name in sys.argv[1:]:\n"
        "    assert cli.run([name, '--help']) == 0\n"
        "    print(name, *{'jax', 'flax', 'optax'} & set(sys.modules), file=sys.stderr)"
    )
    names = [name for name in COMMANDS if name != "demo"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == names


def test_version(capsys: pytest.CaptureFixture) -> None:
    """The version is printed by the command, and by the option that people try first."""
    assert cli.run(["version"]) == 0
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"trackside {__version__}\n" * 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("reprot", "did you mean `trackside report`?"),
        ("comapre", "did you mean `trackside compare`?"),
        ("xyzzy", "the commands are demo, report, watch"),
    ],
)
def test_unknown_command_proposes_the_nearest(wrong: str, said: str, capsys: pytest.CaptureFixture) -> None:
    """An unknown command exits with 2 and proposes the nearest."""
    assert cli.run([wrong]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_path_in_place_of_a_command_is_understood(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A run without a command is answered with the command to use."""
    assert cli.run([str(tmp_path)]) == 2
    assert f"trackside report {tmp_path}" in capsys.readouterr().err


def test_unknown_option_exits_with_2(capsys: pytest.CaptureFixture) -> None:
    """An unknown option exits with 2 and proposes the nearest."""
    assert cli.run(["report", "somewhere", "--jsno"]) == 2
    assert "--json" in capsys.readouterr().err


def test_error_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    """An error of the real command is one line that names the path, with exit code 2."""
    done = call("report", tmp_path / "nothing")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("trackside: ")
    assert done.stderr.count("\n") == 1
    assert "nothing" in done.stderr


def test_unreadable_file_is_one_line(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """An error of the file system names the file and the reason."""
    target = tmp_path / "no" / "such" / "folder" / "metrics.csv"
    assert cli.run(["export", str(trained_run), "--metrics", str(target)]) == 2
    assert capsys.readouterr().err == f"trackside: {target}: No such file or directory\n"


def test_debugging_shows_the_traceback(tmp_path: Path) -> None:
    """With TRACKSIDE_DEBUG=1, the traceback is there."""
    done = call("report", tmp_path / "nothing", TRACKSIDE_DEBUG="1")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Who stops a command sees no traceback, and the exit code that shells expect."""
    monkeypatch.setattr(doctor_checks, "examine", lambda timeout_s: signal.raise_signal(signal.SIGINT))
    assert cli.run(["doctor"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [["report", "--no-html"], ["trace"], ["trace", "--json"]], ids=" ".join)
def test_closed_pipe_is_quiet(arguments: list[str], trained_run: Path) -> None:
    """What reads the output may stop reading: no message, and not the exit code of a regression."""
    child = subprocess.Popen(
        command(*arguments, trained_run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=plain_environment()
    )
    with child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        errors = child.stderr.read()
    assert child.returncode == cli.PIPE_CLOSED
    assert errors == b""


def test_terminal_without_unicode_gets_question_marks(trained_run: Path) -> None:
    """Where the output cannot hold a character, the report is still printed."""
    done = call("report", trained_run, "--no-html", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "where the time went" in done.stdout
    assert "?" in done.stdout
