"""The run that the tests of commands share."""

from pathlib import Path

import pytest

from tests.cli.tiny_run import train_run


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Tests must not change it."""
    return train_run(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(autouse=True)
def _no_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are shown in one line, whatever the developer has set."""
    monkeypatch.delenv("TRACKSIDE_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
