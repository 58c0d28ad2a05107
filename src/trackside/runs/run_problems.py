"""What is wrong with the files of a run: which are missing, and which are damaged."""

from collections.abc import Iterator, Mapping
from itertools import islice

from trackside.run_layout import CONFIG_FILE_NAME, event_file_name
from trackside.runs.process_file import ProcessFile
from trackside.text import count

_MAX_NAMED_FILES = 3


def problems_of(
    processes: Mapping[int, ProcessFile], has_config_file: bool, knows_config: bool, is_written: bool
) -> Iterator[str]:
    """What is wrong, as sentences.

    Args:
        processes: The event files that are there, by process.
        has_config_file: Whether the file with the configuration is there.
        knows_config: Whether the configuration is known, if from elsewhere. A loop of the user's own need not have one.
        is_written: Whether the run is still going, so that the last line of a file may be on its way.
    """
    if knows_config and not has_config_file:
        yield f"{CONFIG_FILE_NAME} is missing; the configuration was read from the event file"
    yield from _missing_event_files(processes)
    for process in processes.values():
        yield from process.problems(is_written)


def _missing_event_files(processes: Mapping[int, ProcessFile]) -> Iterator[str]:
    # Counted, not listed: a single stray file may have a number of nine digits.
    end = max(processes, default=0)
    missing = (index for index in range(end) if index not in processes)
    for index in islice(missing, _MAX_NAMED_FILES):
        yield f"{event_file_name(index)} is missing"
    if (num_more := end - (len(processes) - 1) - _MAX_NAMED_FILES) > 0:
        are = "is" if num_more == 1 else "are"
        last = next(index for index in range(end - 1, -1, -1) if index not in processes)
        yield f"{count(num_more, 'more event file')} up to {event_file_name(last)} {are} missing"
