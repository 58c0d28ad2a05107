"""Parts of config error messages: field paths, shortened values and suggestions."""

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 120
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = 8


def shown(value: Any) -> str:
    """`repr(value)`, shortened to one line."""
    return _REPR.repr(value)


def join(path: str, key: Any) -> str:
    """The path of the field or mapping entry `key` below `path`: `a.b`, or `a['my key']` where a dot cannot."""
    if not isinstance(key, str) or not key.isidentifier():
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key


def listed(names: Iterable[str]) -> str:
    """Names in one line, or "none"."""
    return ", ".join(names) or "none"


def did_you_mean(name: Any, names: Iterable[str]) -> str:
    """A sentence with the closest of `names`, with a leading space; empty if none is close. Case counts last."""
    by_folded: dict[str, str] = {}
    for known in names:
        by_folded.setdefault(known.casefold(), known)
    close = difflib.get_close_matches(str(name).casefold(), by_folded, n=1)
    return f" Did you mean {by_folded[close[0]]!r}?" if close else ""
