import json
import os
import struct
import sys
import time
import types

import numpy as np
import pytest

import trackside.logger.wandb
from tests import fork_server
from trackside.errors import ConfigError
from trackside.logger import WandBLoggerConfig

# What W&B measures of the machine by itself has no place in a test.
QUIET = {"x_disable_stats": True, "x_disable_meta": True}


def read_records(path):
    """The records of a W&B run file, which is a log in LevelDB's format."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, part = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        part += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def wait_for_end(path):
    """W&B's own process writes the last records of a run a moment after it was finished."""
    for _ in range(6000):
        if any(record.WhichOneof("record_type") == "exit" for record in read_records(path)):
            return
        time.sleep(0.05)


def read_run(log_path):
    """Rows by step, config and exit code of the only offline run below a directory."""
    (path,) = log_path.glob("wandb/offline-run-*/*.wandb")
    wait_for_end(path)
    rows, config, exit_code, run_id = {}, {}, None, None
    for record in read_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            rows[row["_step"]] = {name: value for name, value in row.items() if not name.startswith("_")}
        elif kind == "config":
            config.update({item.key: json.loads(item.value_json) for item in record.config.update})
        elif kind == "run":
            run_id = record.run.run_id
        elif kind == "exit":
            exit_code = record.exit.exit_code
    return types.SimpleNamespace(rows=rows, config=config, exit_code=exit_code, run_id=run_id)


class FakeRun:
    def __init__(self, step):
        self.step = step
        self.logged = []

    def log(self, row, step):
        self.logged.append((step, row))

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def fake_wandb(monkeypatch):
    """W&B as it is after a resume at step 100, without a key."""
    fake = types.SimpleNamespace(
        run=None,
        runs=[],
        setup=lambda: None,
        login=lambda prompt, verify: False,
        Settings=lambda **fields: fields,
    )

    def init(**arguments):
        fake.arguments = arguments
        fake.runs.append(FakeRun(step=100))
        return fake.runs[-1]

    fake.init = init
    monkeypatch.setattr(trackside.logger.wandb, "require", lambda module, needed_for: fake)
    return fake


@pytest.mark.slow
def test_an_offline_run_has_everything(make_logger, tmp_path):
    """Rows by mode and step, media, the redacted config, and a good end."""
    logger = make_logger(tmp_path, tools=[WandBLoggerConfig(mode="offline", settings=QUIET)])
    logger.log_config({"model": {"width": 12}, "api_key": "abc"})
    logger.start_epoch(1, step=0)
    logger.log_row({"loss": 0.5}, step=1)
    logger.log_row({"loss": 0.25}, step=2)
    logger.start_epoch(1, step=2, mode="val")
    logger.log_image("sample", np.zeros((4, 6), np.uint8), step=2)
    logger.log_histogram("weights", np.arange(4.0), step=2)
    logger.log_text("story", "<once>", step=2)
    logger.end_epoch({"loss": 0.75}, step=2)
    logger.finalize("success")
    run = read_run(tmp_path)
    assert run.rows[1]["train/loss"] == 0.5
    assert run.rows[2]["train/loss"] == 0.25
    assert run.rows[2]["val/loss"] == 0.75
    assert run.rows[2]["val/sample._type"] == "images/separated"
    assert run.rows[2]["val/weights._type"] == "histogram"
    (story,) = tmp_path.glob("wandb/offline-run-*/files/media/html/**/*.html")
    assert "&lt;once&gt;" in story.read_text()
    assert run.config["model"] == {"width": 12}
    assert run.config["api_key"] == "***"
    assert run.exit_code == 0
    assert run.run_id == (tmp_path / "wandb" / "trackside-run-id").read_text()


@pytest.mark.slow
def test_nothing_is_written_to_home_or_working_directory(tmp_path):
    """A run with a path keeps to it, and one without to a temporary directory; a failed run ends as failed."""
    directories = {name: tmp_path / name for name in ("home", "work", "temp", "run")}
    for directory in directories.values():
        directory.mkdir()
    code = """
import sys
from trackside.logger import Logger, LoggerConfig, WandBLoggerConfig
for path in (None, sys.argv[1]):
    tool = WandBLoggerConfig(mode="offline", settings={"x_disable_stats": True, "x_disable_meta": True})
    logger = Logger(LoggerConfig(log_path=path, log_tools=[tool]))
    logger.log_host_metrics({"loss": 1.0}, step=1, mode="train")
    logger.finalize("error")
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "XDG_"))}
    environment |= {"HOME": str(directories["home"]), "TMPDIR": str(directories["temp"])}
    command = [sys.executable, "-c", code, str(directories["run"])]
    fork_server.run(command, cwd=directories["work"], env=environment, check=True, capture_output=True)
    assert list(directories["home"].iterdir()) == []
    assert list(directories["work"].iterdir()) == []
    (temporary,) = directories["temp"].glob("trackside-wandb-*")
    for log_path in (directories["run"], temporary):
        run = read_run(log_path)
        assert run.rows[1] == {"train/loss": 1.0}
        assert run.exit_code == 1


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_does_not_stop_training(tmp_path):
    """It is reported once, and the event file is complete."""
    code = """
import logging, sys
logging.basicConfig(level=logging.ERROR, format="ERROR %(message)s")
from trackside.logger import Logger, LoggerConfig, WandBLoggerConfig
tool = WandBLoggerConfig(init_timeout_s=1, settings={"x_graphql_retry_max": 0})
logger = Logger(LoggerConfig(log_path=sys.argv[1], log_tools=[tool]))
for step in range(50):
    logger.log_row({"loss": 1.0}, step=step)
logger.finalize("success")
"""
    environment = {**os.environ, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40}
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    result = fork_server.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert result.stderr.count("ERROR The logging tool WandBLogger failed in setup") == 1
    lines = (tmp_path / "run" / "events-00000.jsonl").read_text().splitlines()
    assert sum('"kind":"metrics"' in line for line in lines) == 50


def test_a_missing_key_is_reported_with_the_fix(make_logger, fake_wandb, tmp_path, caplog, monkeypatch):
    """Nobody is asked for it on the terminal, and the run goes on without W&B."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    logger = make_logger(tmp_path, tools=[WandBLoggerConfig()])
    logger.log_row({"loss": 1.0}, step=1)
    logger.finalize("success")
    assert "wandb login" in caplog.text
    assert fake_wandb.runs == []


def test_steps_never_go_backwards(make_logger, fake_wandb, tmp_path, caplog):
    """After a resume, rows that the run has already are left out and counted."""
    logger = make_logger(tmp_path, tools=[WandBLoggerConfig(mode="offline")])
    for step in (98, 99, 100, 101, 101, 99):
        logger.log_host_metrics({"loss": float(step)}, step=step, mode="train")
    (tool,) = logger.tools
    logger.finalize("success")
    assert fake_wandb.runs[0].logged == [(step, {"train/loss": float(step)}) for step in (100, 101, 101)]
    assert tool.num_skipped == 3


def test_a_test_of_an_earlier_model_is_kept(make_logger, fake_wandb, tmp_path):
    """W&B takes no earlier steps, so the row is at the last step and says which it belongs to."""
    logger = make_logger(tmp_path, tools=[WandBLoggerConfig(mode="offline")])
    logger.log_host_metrics({"loss": 1.0}, step=101, mode="train")
    logger.log_host_metrics({"loss": 2.0}, step=100, mode="test")
    logger.finalize("success")
    assert fake_wandb.runs[0].logged == [(101, {"train/loss": 1.0}), (101, {"test/loss": 2.0, "test/step": 100})]


def test_a_reopened_logger_continues_the_same_run(make_logger, fake_wandb, tmp_path):
    """The id is kept in the run's directory and used again."""
    ids = []
    for _ in range(2):
        logger = make_logger(tmp_path, tools=[WandBLoggerConfig(mode="offline")])
        logger.log_host_metrics({"loss": 1.0}, step=100)
        logger.finalize("success")
        ids.append(fake_wandb.arguments["id"])
        assert fake_wandb.arguments["resume"] == "allow"
        assert fake_wandb.arguments["dir"] == str(tmp_path)
    assert ids[0] == ids[1]


@pytest.mark.parametrize(("status", "exit_code"), [("success", 0), ("error", 1), ("interrupted", 1), ("nan", 1)])
def test_the_end_is_truthful(make_logger, fake_wandb, tmp_path, status, exit_code):
    """Only a success ends as one."""
    logger = make_logger(tmp_path, tools=[WandBLoggerConfig(mode="offline")])
    logger.log_host_metrics({"loss": 1.0}, step=100)
    logger.finalize(status)
    assert fake_wandb.runs[0].exit_code == exit_code


def test_a_run_that_the_user_has_open_stays_theirs(make_logger, fake_wandb, tmp_path):
    """A second run is made beside it; without one, ours is W&B's current run."""
    for run, reinit in ((None, None), (FakeRun(0), "create_new")):
        fake_wandb.run = run
        logger = make_logger(tmp_path, tools=[WandBLoggerConfig(mode="offline")])
        logger.log_host_metrics({"loss": 1.0}, step=100)
        logger.finalize("success")
        assert fake_wandb.arguments["reinit"] == reinit


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "of"}, "mode is 'of'"),
        ({"init_timeout_s": 0}, "init_timeout_s is 0"),
        ({"finish_timeout_s": -1}, "-1"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    """The error names field and value."""
    with pytest.raises(ConfigError, match=message):
        WandBLoggerConfig(**fields)


@pytest.mark.parametrize(
    ("mode", "wanted", "expected"),
    [
        ("online", "offline", "offline"),
        ("online", "dryrun", "offline"),
        ("online", "disabled", "disabled"),
        ("online", "online", "online"),
        ("offline", "online", "offline"),
    ],
)
def test_the_mode_of_a_machine_is_respected(monkeypatch, tmp_path, mode, wanted, expected):
    """`WANDB_MODE` keeps a tool offline; what a config says other than `online` counts."""
    monkeypatch.setenv("WANDB_MODE", wanted)
    assert trackside.logger.wandb.WandBLogger(WandBLoggerConfig(mode=mode), tmp_path).mode == expected
