"""What every page contains: plotly.js, our own script and style, and the policy that allows only these.

The policy has the hash of each script and style, so that nothing else runs even if it got into the page. It forbids all
loading, so that the page looks the same without a network. plotly.js, by far the largest part, is compressed; the
page's script unpacks it to the text whose hash the policy has.
"""

import base64
import gzip
import hashlib
import importlib.resources
import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Library:
    """plotly.js."""

    packed: str
    """Compressed by gzip, as base64."""
    source_hash: str
    """What the policy calls it."""
    version: str
    style_ids: tuple[str, ...]
    """Ids of style elements that it adds for maps; it adds none where an element has the id already."""


@lru_cache(maxsize=1)
def plotly_library() -> Library:
    """plotly.js as the installed plotly package has it."""
    file = importlib.resources.files("plotly") / "package_data" / "plotly.min.js"
    source = file.read_bytes()
    text = source.decode("utf-8")
    version = re.search(r"plotly\.js v([\d.]+)", text[:400])
    return Library(
        base64.b64encode(gzip.compress(source, mtime=0)).decode("ascii"),
        policy_hash(text),
        version.group(1) if version else "of unknown version",
        tuple(sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', text)))),
    )


@lru_cache(maxsize=8)
def asset(name: str) -> str:
    """A script or style of ours, by its file name."""
    return (importlib.resources.files(__package__ or __name__) / name).read_text(encoding="utf-8")


def policy_hash(source: str) -> str:
    """How a content security policy names a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode('utf-8')).digest()).decode('ascii')}'"


def content_policy(scripts: list[str], styles: list[str]) -> str:
    """The policy of a page.

    Args:
        scripts: The hashes of its scripts.
        styles: The hashes of its styles.
    """
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src {' '.join(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
