"""What the files in a run's folder are called, for those that write them and those that read them."""

WHERE_A_RUN_IS_GIVEN_ITS_FOLDER = "`run` of Trainer, the path of trackside.run, or LoggerConfig.log_path"
"""What users may have written, for messages to those who have to write it."""
CONFIG_FILE_NAME = "config.json"
"""The configs of trainer, model and optimizer."""
LOCK_FILE_NAME = ".lock"
"""Locked for as long as a process trains the run."""
CHECKPOINTS_FOLDER = "checkpoints"
"""A folder per saved step."""
COMPILED_FOLDER = "compiled"
"""The compiled programs, for the next leg."""
TENSORBOARD_FOLDER = "tensorboard"
"""TensorBoard's files, and profiles by default."""
CAPTURE_REQUEST_FILE_NAME = "capture.now"
"""Asks for a capture when it is touched."""
REPORT_FILE_NAME = "report.html"
"""The page that `trackside report` writes."""
SUMMARY_FILE_NAME = "summary.json"
"""The figures of that page."""
EVENT_FILE_PATTERN = "events-*.jsonl"
"""The event files of all processes."""


def event_file_name(process_index: int) -> str:
    """The event file of a process."""
    return f"events-{process_index:05d}.jsonl"


def log_file_name(name: str, process_index: int) -> str:
    """The log file of a process: plain for the first, numbered for the others.

    Args:
        name: `LoggerConfig.cmd_logging_name`.
        process_index: The index of the process.
    """
    return f"{name}.log" if process_index == 0 else f"{name}-{process_index:05d}.log"
