import contextlib
import logging
import subprocess
import sys

import pytest

from trackside.logger.console import ConsoleHandler, LogOutput, root_handlers_kept

TRACKSIDE = logging.getLogger("trackside")


@contextlib.contextmanager
def logging_not_set_up():
    """Logging as it is in a program that has not set it up: without the handlers of the test runner."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = handlers


def consoles():
    return [handler for handler in TRACKSIDE.handlers if isinstance(handler, ConsoleHandler)]


def test_the_log_file_has_the_records_of_trackside(make_logger, tmp_path):
    """INFO and up, of trackside alone; a reopened logger appends."""
    logger = make_logger(tmp_path, cmd_logging_name="train")
    logging.getLogger("trackside.trainer").info("first")
    logging.getLogger("trackside.trainer").debug("detail")
    logging.getLogger("other").warning("not ours")
    logger.finalize("success")
    TRACKSIDE.warning("between")
    logger.on_training_start()
    TRACKSIDE.info("second")
    text = (tmp_path / "train.log").read_text()
    assert [line.rpartition(": ")[2] for line in text.splitlines()] == ["first", "second"]
    assert "INFO trackside.trainer" in text


def test_handlers_and_level_are_restored(make_logger, tmp_path):
    """Loggers that overlap leave logging as it was before the first."""
    before = (list(TRACKSIDE.handlers), TRACKSIDE.level)
    with logging_not_set_up():
        first, second = make_logger(tmp_path / "a"), make_logger(tmp_path / "b")
        assert TRACKSIDE.isEnabledFor(logging.INFO)
        first.finalize("success")
        assert TRACKSIDE.isEnabledFor(logging.INFO)
        second.finalize("success")
    assert (list(TRACKSIDE.handlers), TRACKSIDE.level) == before


def test_two_loggers_share_the_terminal(make_logger, capsys):
    """A record is shown once, as long as one of them is open."""
    with logging_not_set_up():
        first, second = make_logger(), make_logger()
        TRACKSIDE.info("hello")
        assert capsys.readouterr().err.count("hello") == 1
        first.finalize("success")
        TRACKSIDE.info("again")
        assert capsys.readouterr().err.count("again") == 1
        second.finalize("success")
    assert consoles() == []


def test_the_terminal_belongs_to_the_first_process(make_logger):
    """Other processes have their log files."""
    with logging_not_set_up():
        make_logger(process_index=1)
        assert consoles() == []
        make_logger(process_index=0)
        assert len(consoles()) == 1


@pytest.mark.parametrize("name", ["", "trackside"])
def test_a_program_that_set_up_logging_is_left_alone(make_logger, name):
    """With a handler on root or on trackside, there is no second one for the terminal."""
    handler = logging.NullHandler()
    with logging_not_set_up():
        logging.getLogger(name).addHandler(handler)
        try:
            make_logger()
            assert consoles() == []
        finally:
            logging.getLogger(name).removeHandler(handler)


def test_a_level_that_the_program_chose_is_kept(make_logger, tmp_path, caplog):
    """Whoever wants warnings only, gets them."""
    with caplog.at_level(logging.WARNING, "trackside"):
        logger = make_logger(tmp_path)
        TRACKSIDE.info("quiet")
        assert TRACKSIDE.level == logging.WARNING
        logger.finalize("success")
        assert TRACKSIDE.level == logging.WARNING
    assert (tmp_path / "output.log").read_text() == ""


def test_records_do_not_tear_a_progress_bar(make_logger, capsys):
    """A line is written above the bar, which is drawn again below it."""
    from tqdm import tqdm

    with logging_not_set_up(), tqdm(total=2, file=sys.stderr, mininterval=0, desc="steps") as bar:
        make_logger()
        bar.update()
        capsys.readouterr()
        TRACKSIDE.info("hello")
        err = capsys.readouterr().err
    line, _, rest = err.partition("\n")
    assert line.endswith("INFO hello")
    assert "steps" in rest


def test_a_log_file_that_fails_is_told_of_once(tmp_path):
    """Past a file size limit, logging goes on without a traceback for each record."""
    code = """
import logging, resource, sys
from trackside.logger.console import LogOutput
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
output = LogOutput(__import__("pathlib").Path(sys.argv[1]), to_console=False)
for _ in range(10):
    logging.getLogger("trackside").info("x" * 30)
output.close()
"""
    path = tmp_path / "output.log"
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    (line,) = result.stderr.splitlines()
    assert str(path) in line
    assert "File too large" in line


def test_library_that_sets_up_the_root_logger_doubles_nothing(capsys):
    """A root handler that appears while a run is open does not print records of the run once more."""
    with logging_not_set_up():
        output = LogOutput(None, to_console=True)
        logging.basicConfig()
        TRACKSIDE.info("once")
        output.close()
        assert capsys.readouterr().err.count("once") == 1
        assert TRACKSIDE.propagate


def test_root_handlers_of_an_import_are_taken_back():
    """What a block gives to the root logger is gone after it; what was there stays."""
    before = list(logging.root.handlers)
    with root_handlers_kept():
        logging.root.addHandler(logging.NullHandler())
    assert logging.root.handlers == before


def test_handler_that_a_library_brought_about_counts_as_none(capsys):
    """After a first `logging.warning` of a library, as in `import grain`, records still look as those of trackside."""
    with logging_not_set_up():
        logging.warning("from a library")
        output = LogOutput(None, to_console=True)
        TRACKSIDE.info("from trackside")
        output.close()
        assert "INFO from trackside" in capsys.readouterr().err
