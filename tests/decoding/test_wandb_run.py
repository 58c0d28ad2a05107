import builtins
import sys
import types

import pytest

import trackside.logger.wandb
from tests.decoding.problem import TorchProblem
from trackside.decoding import train_decoding_torch
from trackside.decoding.wandb_run import WandBRun
from trackside.errors import MissingExtraError


class FakeRun:
    """A run that records what is logged to it."""

    def __init__(self, fails=False):
        self.rows, self.exit_code, self.step, self.fails = [], None, 0, fails

    def log(self, row, commit=True, step=None):
        if self.fails:
            raise ConnectionError("no route")
        self.rows.append(row)

    def define_metric(self, name, step_metric):
        pass

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch):
    """W&B without an active run, and without its files."""
    fake = types.SimpleNamespace(run=None, started=[], setup=lambda: None, Settings=lambda **fields: fields)

    def init(**arguments):
        fake.started.append(arguments)
        fake.run = FakeRun()
        return fake.run

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_a_run_is_started_and_finished(wandb, tmp_path):
    """With the name given, below the directory given."""
    run = WandBRun("my_experiment", tmp_path)
    run.log({"loss": 1.0})
    run.finish("success")
    assert [arguments["name"] for arguments in wandb.started] == ["my_experiment"]
    assert wandb.started[0]["dir"] == str(tmp_path)
    assert wandb.run.rows == [{"loss": 1.0}]
    assert wandb.run.exit_code == 0


def test_the_run_of_the_user_is_used_and_left_open(wandb, tmp_path):
    """No other one is started, and it is not finished."""
    wandb.run = FakeRun()
    run = WandBRun("my_experiment", tmp_path)
    run.log({"loss": 1.0})
    run.finish("success")
    assert wandb.started == []
    assert wandb.run.rows == [{"loss": 1.0}]
    assert wandb.run.exit_code is None


def test_without_a_name_none_is_started(wandb, tmp_path):
    """An active run would be used all the same."""
    WandBRun(None, tmp_path).log({"loss": 1.0})
    assert wandb.started == []


def test_a_failed_training_ends_its_run_as_failed(wandb, tmp_path):
    """W&B shows it as such."""
    WandBRun("my_experiment", tmp_path).finish("error")
    assert wandb.run.exit_code == 1


def test_a_run_that_fails_is_reported_once(wandb, caplog):
    """Rows are lost, the training is not."""
    wandb.run = FakeRun(fails=True)
    run = WandBRun("my_experiment", None)
    run.log({"loss": 1.0})
    run.log({"loss": 1.0})
    assert caplog.text.count("no route") == 1


def test_a_run_that_cannot_be_started_is_reported(wandb, monkeypatch, tmp_path, caplog):
    """Online and without a key, the user is not prompted for one."""
    monkeypatch.setenv("WANDB_MODE", "online")
    wandb.login = lambda prompt, verify: False
    WandBRun("my_experiment", tmp_path).log({"loss": 1.0})
    assert "no W&B API key is configured" in caplog.text
    assert wandb.started == []


def test_wandb_that_is_not_installed_is_reported(monkeypatch, tmp_path, caplog):
    """With the extra that brings it."""

    def missing(module, needed_for):
        raise MissingExtraError("Install it with: pip install 'trackside[wandb]'")

    monkeypatch.setattr(trackside.logger.wandb, "require", missing)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    WandBRun("my_experiment", tmp_path).log({"loss": 1.0})
    assert "continues without W&B: Install it with: pip install 'trackside[wandb]'" in caplog.text


def test_a_program_without_wandb_does_not_import_it(monkeypatch):
    """Without a name there is no reason to."""
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        assert name != "wandb"
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    WandBRun(None, None).log({"loss": 1.0})


def test_a_training_logs_its_rows(wandb):
    """One per evaluation, under the names of the guide."""
    wandb.run = FakeRun()
    train_decoding_torch(**TorchProblem().arguments | {"wandb_run_name": "my_experiment", "enable_profiling": True})
    rows = [row for row in wandb.run.rows if "epoch" in row]
    assert [row["epoch"] for row in rows] == [2, 4]
    assert rows[1].keys() >= {"train/loss", "val/loss", "metrics/train.r2", "metrics/val.r2", "metrics/val.r2.1"}
    assert rows[1].keys() >= {"params/weight.norm", "grads/weight.norm"}
    profile = [row for row in wandb.run.rows if "profiling/training_step_avg_time" in row]
    assert profile[-1]["profiling/training_step_count"] == 12


@pytest.mark.slow
def test_a_real_run_offline(monkeypatch, tmp_path, caplog):
    """W&B itself takes what is logged, and its files are in save_dir."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "300")  # how long W&B's own process may take to start
    arguments = TorchProblem().arguments | {"wandb_run_name": "my_experiment", "save_dir": tmp_path}
    train_decoding_torch(**arguments)
    assert wandb.run is None
    assert "W&B" not in caplog.text
    wandb.teardown()  # only then has W&B's own process written everything
    (run_file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"my_experiment" in run_file.read_bytes()
    assert b"metrics/val.r2" in run_file.read_bytes()
