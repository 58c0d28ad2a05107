"""`trackside doctor`: what a bug report needs, whatever is broken."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cli.tiny_run import call
from trackside import __version__, cli
from trackside.cli import doctor_checks
from trackside.cli.doctor_checks import Check, check_jax, check_optional_packages, check_variables, examine


@pytest.mark.slow
def test_everything_is_told_and_the_profiler_works(tmp_path: Path) -> None:
    """The real command names versions and devices, takes a profile that works, and never prints a secret."""
    variables = {"JAX_PLATFORMS": "cpu", "TRACKSIDE_API_KEY": "hush", "JAX_PROXY": "http://me:hush@host/"}
    done = call("doctor", "--json", "--timeout", "280", **variables)
    assert done.returncode == 0
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["packages"]["details"]["trackside"] == __version__
    assert checks["devices"]["details"]["backend"] == "cpu"
    assert checks["profiler"]["status"] == "ok"
    assert checks["profiler"]["details"]["num_runs"] == 5
    assert checks["variables"]["details"]["JAX_PLATFORMS"] == "cpu"
    assert {"python", "machine", "compile cache", "optional packages", "disk", "terminal", "git"} <= set(checks)
    assert "hush" not in done.stdout + done.stderr


def test_text_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """As text, each check begins a line with its name, in 80 columns."""
    found = [
        Check("packages", "ok", ["jax 0.10.2, " * 20]),
        Check("profiler", "failed", ["no answer within 1 s"]),
    ]
    monkeypatch.setattr(doctor_checks, "examine", lambda timeout_s: found)
    assert cli.run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("  packages  jax 0.10.2")
    assert lines[-1] == "! profiler  no answer within 1 s"
    assert max(map(len, lines)) <= 80


def test_hanging_driver_costs_its_own_items_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A jax that does not answer is given up after the timeout, and everything else is still reported."""
    slow = tmp_path / "python"
    slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    checks = {check.name: check for check in examine(timeout_s=0.5)}
    for name in ("devices", "compile cache", "profiler"):
        assert checks[name].status == "failed"
        assert "no answer within 0.5 s" in checks[name].lines[0]
    assert checks["disk"].status in ("ok", "note")


def test_probe_that_crashes_is_told_by_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that ends before it has answered is reported by its exit code and the last line of its errors."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libtpu.so: cannot open' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    first = next(iter(check_jax(timeout_s=30)))
    assert first.status == "failed"
    assert first.lines == ["the process ended with exit code 3", "libtpu.so: cannot open"]


def test_check_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something unexpected in one check becomes its result: a working directory that was removed."""
    monkeypatch.setattr(doctor_checks, "check_jax", lambda timeout_s: iter(()))
    monkeypatch.setattr(os, "getcwd", _raise_missing)
    monkeypatch.setattr(Path, "cwd", _raise_missing)
    checks = {check.name: check for check in examine(timeout_s=1)}
    assert checks["disk"].status == "failed"
    assert checks["python"].status == "ok"


def _raise_missing() -> Path:
    raise FileNotFoundError("the working directory was removed")


def test_secrets_in_variables_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that matter are listed, secrets by their name only, and others not at all."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x")
    monkeypatch.setenv("TRACKSIDE_ACCESS_TOKEN", "hush")
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    (check,) = check_variables()
    assert check.details["XLA_FLAGS"] == "--xla_dump_to=/tmp/x"
    assert check.details["TRACKSIDE_ACCESS_TOKEN"] == "***"
    assert "WANDB_API_KEY" not in check.details


def test_missing_optional_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not installed is listed with the command that installs it."""
    monkeypatch.setattr(doctor_checks, "EXTRAS", {"no_such_package": "wonder"})
    (check,) = check_optional_packages()
    assert check.lines == ["no_such_package is not installed: pip install 'trackside[wonder]'"]
