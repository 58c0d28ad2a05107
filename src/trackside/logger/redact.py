"""Secrets kept out of what a run writes: configs, environment, command line."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REDACTED = "***"

_SECRET_WORDS = {
    "accesstoken",
    "apikey",
    "authtoken",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "privatekey",
    "secret",
    "secrets",
}
# Two words in a row: alone, "key" and "token" are everyday words in a model's config.
_SECRET_PAIRS = {
    ("access", "key"),
    ("access", "token"),
    ("api", "key"),
    ("api", "keys"),
    ("api", "token"),
    ("auth", "key"),
    ("auth", "token"),
    ("bearer", "token"),
    ("deploy", "token"),
    ("encryption", "key"),
    ("github", "token"),
    ("gitlab", "token"),
    ("hf", "token"),
    ("identity", "token"),
    ("private", "key"),
    ("refresh", "token"),
    ("session", "token"),
    ("signing", "key"),
    ("wandb", "key"),
    ("wandb", "token"),
}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_URL_USER = re.compile(r"(?<=://)[^/\s@]+:[^/\s@]+(?=@)")
_ASSIGNMENT = re.compile(r"(?P<key>-*[\w.\-]+)=(?P<value>.*)", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret: `api_key` and `WANDB_API_KEY` are, `num_tokens` is not."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if words in (["token"], ["tokens"]):
        return True
    return not _SECRET_WORDS.isdisjoint(words) or any(pair in _SECRET_PAIRS for pair in itertools.pairwise(words))


def redact(value: Any) -> Any:
    """A copy of nested dicts and lists in which the text under secret names, and in URLs, reads `***`."""
    return _redact(value, is_secret=False)


def _redact(value: Any, is_secret: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _redact(entry, is_secret or (isinstance(key, str) and is_secret_name(key)))
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redact(entry, is_secret) for entry in value]
    if isinstance(value, str | bytes) and value and is_secret:
        return REDACTED
    if isinstance(value, str):
        return _URL_USER.sub(REDACTED, value)
    return value


def redact_command(arguments: Sequence[str]) -> list[str]:
    """A command line with the values of secret options and assignments replaced by `***`."""
    return list(_redact_arguments(arguments))


def _redact_arguments(arguments: Sequence[str]) -> Iterator[str]:
    follows_secret_option = False
    for argument in arguments:
        if follows_secret_option and not argument.startswith("-"):
            follows_secret_option = False
            yield REDACTED
            continue
        assignment = _ASSIGNMENT.fullmatch(argument)
        if assignment and _is_secret_option(assignment["key"]):
            yield f"{assignment['key']}={REDACTED}"
        else:
            yield _URL_USER.sub(REDACTED, argument)
        follows_secret_option = argument.startswith("-") and not assignment and _is_secret_option(argument)


def _is_secret_option(name: str) -> bool:
    # In `--logger.api_key` the last part names the value.
    return is_secret_name(name.rpartition(".")[2])
