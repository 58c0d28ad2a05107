"""A JSON list on disk that is whole at every moment: a reader, or a kill, finds all entries that were appended.

JSON has to be closed, so a list that grows at its end is broken whenever the closing bracket is on its way. Linux may
end a write between two pages of a process that is being killed, so one write of `, entry ]` is not enough. Here the
bracket stands still: the file is made with room to spare, as white space before the bracket, and an entry is one write
inside one page of it. When the room is used up, a file twice as large is made next to it and renamed over it.
"""

import contextlib
import fcntl
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from trackside.errors import ConfigError

LOGGER = logging.getLogger(__name__)

PAGE_BYTES = 4096
"""What a write never ends within: the page size, or on some machines a part of it."""
FIRST_BYTES = 4 * PAGE_BYTES
_COPY_BYTES = 1 << 20
_OPENING, _CLOSING = b"[", b"\n]\n"
_ROOM = b" " * (PAGE_BYTES - 1) + b"\n"


class JsonListWriter:
    """Writes a list and appends to it. A file that is there is replaced, at once and as a whole.

    One entry per line, so that `read_json_list` need not hold more than one of them.

    Args:
        path: The file. A hidden lock file is next to it.
        entries: What the list begins with; may be read from the file that is replaced.

    Raises:
        ConfigError: Another writer has the file open.
        OSError: The file cannot be written.
        ValueError: Raised by `entries`; then nothing is replaced.
    """

    def __init__(self, path: str | os.PathLike[str], entries: Iterable[Any] = ()):
        self.path = Path(path)
        self._is_empty = True
        self._lock = _lock(self.path)
        try:
            self._file: BinaryIO | None = self._replace(itertools.chain([_OPENING], self._encode_all(entries)))
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, entry: Any) -> None:
        """Append an entry, which is in the file when this returns.

        Args:
            entry: Anything that JSON can hold.

        Raises:
            OSError: The disk is full, or gone. The file is as it was.
        """
        assert self._file is not None, "append after close"
        piece = self._encode(entry)
        start = self._used_bytes
        if start % PAGE_BYTES + len(piece) > PAGE_BYTES:
            start += -start % PAGE_BYTES  # white space up to the next page is there already
        if len(piece) > PAGE_BYTES or start + len(piece) > self._room_ends_at:
            self._grow(piece)
        else:
            os.pwrite(self._file.fileno(), piece, start)
            self._used_bytes = start + len(piece)
        self._is_empty = False

    def close(self) -> None:
        """Close the file, without the room that is left. Calling it again does nothing."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(OSError):  # room that stays is only white space
            self._replace(self._content(file), is_final=True).close()
        file.close()
        os.close(self._lock)

    def _encode(self, entry: Any) -> bytes:
        return (b"\n" if self._is_empty else b",\n") + msgspec.json.encode(entry)

    def _encode_all(self, entries: Iterable[Any]) -> Iterator[bytes]:
        for entry in entries:
            yield self._encode(entry)
            self._is_empty = False

    def _grow(self, piece: bytes) -> None:
        assert self._file is not None
        larger = self._replace(itertools.chain(self._content(self._file), [piece]))
        self._file.close()
        self._file = larger

    def _content(self, file: BinaryIO) -> Iterator[bytes]:
        for start in range(0, self._used_bytes, _COPY_BYTES):
            yield os.pread(file.fileno(), min(_COPY_BYTES, self._used_bytes - start), start)

    def _replace(self, chunks: Iterable[bytes], is_final: bool = False) -> BinaryIO:
        """Make a file of the chunks, with room after them, and put it in place of the one that is there."""
        draft = self.path.with_name(f".{self.path.name}.draft")
        file = draft.open("w+b")
        try:
            used_bytes = sum(file.write(chunk) for chunk in chunks)
            room_ends_at = used_bytes if is_final else max(FIRST_BYTES, 2 * used_bytes)
            num_pages, rest = divmod(room_ends_at - used_bytes, PAGE_BYTES)
            for _ in range(num_pages):
                file.write(_ROOM)
            file.write(b" " * rest + _CLOSING)
            file.flush()
            draft.replace(self.path)
        except BaseException:
            file.close()
            draft.unlink(missing_ok=True)
            raise
        self._used_bytes, self._room_ends_at = used_bytes, room_ends_at
        return file


def read_json_list(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Go through a list of objects as `JsonListWriter` writes it, one by one.

    Args:
        path: The file, also one that is being written.

    Yields:
        The entries.

    Raises:
        ValueError: The file is damaged, or is not laid out as this package lays it out.
    """
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    with Path(path).open("rb") as file:
        if file.read(len(_OPENING)) != _OPENING:
            raise ValueError(f"{path} does not begin with a list")
        is_closed = False
        for line in file:
            text = line.strip(b" ,\n")
            if is_closed and text:
                raise ValueError(f"{path} continues after its list")
            if text == b"]":
                is_closed = True
            elif text:
                yield decode(text)
        if not is_closed:
            raise ValueError(f"{path} ends within its list")


def continue_json_list(path: Path, keep: Callable[[dict[str, Any]], bool]) -> JsonListWriter:
    """Go on with a list that may be there already.

    A list of which nothing is kept, and a file that is not a list of this layout, are set aside under another name:
    nothing that others have written is overwritten.

    Args:
        path: The file.
        keep: Which of the entries that are there stay.

    Returns:
        The writer.

    Raises:
        ConfigError: Another writer has the file open.
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return JsonListWriter(path)
    reason = "nothing of it belongs to this training"
    try:
        if any(keep(entry) for entry in read_json_list(path)):
            return JsonListWriter(path, (entry for entry in read_json_list(path) if keep(entry)))
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error)
    os.close(_lock(path))  # the file of a running training must not be moved
    aside = next(name for name in _names_aside(path) if not name.exists())
    path.rename(aside)
    LOGGER.warning("%s was there already and is now %s: %s", path, aside.name, reason)
    return JsonListWriter(path)


def _names_aside(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.stem}.old-{number}{path.suffix}") for number in itertools.count(1))


def _lock(path: Path) -> int:
    """Lock a file for one writer; the system lets go of it with the process, however that ends."""
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            f"{path} is being written by a training that is still running; wait for it, stop it, or choose another "
            "folder"
        ) from None
    except OSError:
        LOGGER.warning("%s cannot be locked: see to it that no other training writes there", path)
    return descriptor
