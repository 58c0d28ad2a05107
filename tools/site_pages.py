"""Pages of the site that are not in docs/, and links between all of them: a hook of mkdocs, see mkdocs.yml.

The README is the front page. CONTRIBUTING.md, CHANGELOG.md, LICENSE, the examples and what benchmarks have shown are
pages, too. Links are written for the repository, as code hosts show it; on the site they lead to the pages that were
made of those files.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
COPIED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/RESULTS.md": "benchmarks/results.md",
    "benchmarks/GROWTH.md": "benchmarks/growth.md",
}
# What else a link may lead to, and the page that shows it.
SHOWN = [
    (r"docs/(.+)", r"\1"),
    (r"LICENSE", "license.md"),
    (r"examples/?", "examples/regression.md"),
    (r"examples/(\w+)\.py", r"examples/\1.md"),
    (r"src/trackside/(\w+)(?:\.py|/__init__\.py)", r"reference/\1.md"),
]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages. mkdocs calls this when it has listed docs/."""
    for source, page in COPIED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for path in sorted((ROOT / "benchmarks").glob("*.png")):
        files.append(File.generated(config, f"benchmarks/{path.name}", abs_src_path=str(path)))
    for path in sorted((ROOT / "examples").glob("*.py")):
        content = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=content))
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    content = f"---\nsearch: {{exclude: true}}\n---\n# License\n\n```text\n{text}```\n"
    files.append(File.generated(config, "license.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files lead to their pages. mkdocs calls this for each page."""
    uri = page.file.src_uri
    source = next((source for source, copy in COPIED.items() if copy == uri), f"docs/{uri}")

    def rewritten(link: re.Match[str]) -> str:
        target = _page_of(posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1])))
        if target is None or files.get_file_from_path(target) is None:
            return link[1]  # mkdocs reports it, unless it is a link between two pages of docs/
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    return LINK.sub(rewritten, markdown)


def _page_of(path: str) -> str | None:
    """The page that shows a file of the repository, by mkdocs's name for it."""
    if path in COPIED:
        return COPIED[path]
    matches = ((re.fullmatch(pattern, path), page) for pattern, page in SHOWN)
    return next((match.expand(page) for match, page in matches if match), None)
