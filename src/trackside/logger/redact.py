"""Keeps secrets out of what a run writes: configs, environment, command line.

A value is secret because of its name or because of its form.

- Names are compared word by word, so that `WANDB_API_KEY`, `apiKey` and `api-key` are the same. Some words are always
  secret (`password`). A `token` is secret unless it is a token of text (`pad_token`): if in doubt it is, since a leak
  costs more than a missing value. A `key` is secret only if the word before says so (`openai_key`): most keys in a
  config are those of dictionaries and of attention.
- Forms are looked for in all text: user and password in a URL, secret parameters of a URL, `Bearer ...`, private keys,
  and tokens that begin as those of well-known services do.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

REDACTED = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = _words(
    "authorization bearer cookie cookies credential credentials dsn jwt passcode passphrase passwd "
    "password passwords pwd secret secrets"
)
_ISSUERS = _words(
    "access account anthropic api auth aws azure bearer client cohere comet deploy encryption gcp gemini "
    "gh github gitlab google hf hub huggingface identity kaggle mistral mlflow neptune openai personal "
    "private refresh replicate secret security service session signing slack ssh storage wandb"
)
"""Whose keys and tokens are secret, or what such keys and tokens are for."""
_TEXT_TOKENS = _words(
    "additional assistant audio begin blank bos by class cls decoder each encoder end eod eos eot extra "
    "fim first image last mask max middle min newline next null num pad patch per pred predicted prefix "
    "prev previous prompt register sep separator sink sos sot source space special start stop sub suffix "
    "system target text think tool unk video vocab word"
)
"""What a token of text may be called by."""
_SECRET_PAIRS = frozenset({("connection", "string"), ("webhook", "url")})
_URL_PARAMETERS = frozenset({"key", "sig", "signature", "code", "pass"})
"""Last words of parameters that are secret in a URL, and everyday words elsewhere."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ASSIGNMENT = re.compile(r"(?P<key>-*[\w.\-]+)=(?P<value>.*)", re.DOTALL)
_PARAMETER = re.compile(r"(?<=[?&;])(?P<name>[\w.\-]+)=(?P<value>[^&;\s#'\"]+)")
_FORMS = (
    re.compile(r"(?<=://)[^/\s@?#]+:[^/\s?#]+(?=@)"),  # user:password@
    re.compile(r"(?<=http://)(?!git@)[^/\s?#]+(?=@)|(?<=https://)(?!git@)[^/\s?#]+(?=@)"),  # token@
    re.compile(r"(?<=\bbearer )[\w.~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"(?<=\bbasic )[\w+/=]{16,}", re.IGNORECASE),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(
        r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}"
        r"|sk-(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{20,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}"
        r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
    ),
)


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret: `api_key` and `WANDB_API_KEY` are, `num_tokens` is not."""
    words = [word.lower() for word in _WORDS.findall(name) if not word.isdigit()]
    if not _SECRET_WORDS.isdisjoint(words) or any(_is_joined(word) for word in words):
        return True
    pairs = list(itertools.pairwise(words))
    if any(pair in _SECRET_PAIRS or _is_issued(*pair) for pair in pairs):
        return True
    if words and words[-1] == "token":
        return len(words) == 1 or words[-2] not in _TEXT_TOKENS
    return words == ["tokens"]


def _is_issued(owner: str, thing: str) -> bool:
    return owner in _ISSUERS and thing in ("key", "keys", "token", "tokens")


def _is_joined(word: str) -> bool:
    """Whether a word is made of two, such as `apikey`."""
    return any(word.endswith(thing) and word.removesuffix(thing) in _ISSUERS for thing in ("key", "keys", "token"))


def redact(value: Any) -> Any:
    """A copy of nested dicts and lists in which secrets read `***`."""
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
    return _redact_text(value) if isinstance(value, str) else value


def _redact_text(text: str) -> str:
    """A text without what has the form of a secret."""
    for form in _FORMS:
        text = form.sub(REDACTED, text)
    return _PARAMETER.sub(_redact_parameter, text)


def _redact_parameter(found: re.Match[str]) -> str:
    words = [word.lower() for word in _WORDS.findall(found["name"])]
    is_secret = is_secret_name(found["name"]) or (bool(words) and words[-1] in _URL_PARAMETERS)
    return f"{found['name']}={REDACTED}" if is_secret else found[0]


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
            yield _redact_text(argument)
        follows_secret_option = argument.startswith("-") and not assignment and _is_secret_option(argument)


def _is_secret_option(name: str) -> bool:
    # In `--logger.api_key` the last part names the value.
    return is_secret_name(name.rpartition(".")[2])
