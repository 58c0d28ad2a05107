"""The documentation: every Python block runs unchanged, and the README stays short."""

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIST_IN_PARAGRAPH = re.compile(r"^(?!- |\d+\. |[ #|]|$).*\n(?:- |\d+\. ).*", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MAX_README_LINES = 150


def python_blocks(page: Path) -> Iterator[str]:
    """The blocks of a page, padded with empty lines so that tracebacks show the line numbers of the page."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield "\n" * text.count("\n", 0, match.start(1)) + match[1]


def anchors_of(page: Path) -> set[str]:
    """The names by which links reach the headings of a page."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.stem)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order in one namespace, as if a reader pasted them."""
    # A module, because dataclasses and saved configs look up classes by the name of their module.
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "argv", [page.name, str(tmp_path / "run")])
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"):  # as readers have it, whose optax could not live with the strict one
        for block in python_blocks(page):
            exec(compile(block, str(page), "exec", dont_inherit=True), vars(module))


def test_readme_shows_the_first_example() -> None:
    """The README's only Python block is examples/regression.py, word for word, which the tests of examples run."""
    (only,) = (block.lstrip("\n") for block in python_blocks(README))
    assert only == (ROOT / "examples" / "regression.py").read_text(encoding="utf-8")


def test_readme_is_short() -> None:
    """The README fits into 150 lines."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_lists_follow_an_empty_line(page: Path) -> None:
    """No list follows directly on a paragraph: the site would show it as part of that, unlike code hosts."""
    without_code = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert LIST_IN_PARAGRAPH.findall(without_code) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    """Every relative link of a page leads to an existing file, and to a heading in it if it names one."""
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors_of(file), f"{page.name} links to {target}#{anchor}"
