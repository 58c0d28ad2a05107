"""The site: builds without a warning, shows everything public, has no dead link, and needs no network."""

import dataclasses
import inspect
import os
import subprocess
import sys
import types
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import trackside
from tests.report.html.browser import TIMEOUT_MS, launched_browser
from trackside.config import ConfigDict

ROOT = Path(__file__).parents[2]
MODULES = [getattr(trackside, name) for name in trackside.__all__ if inspect.ismodule(getattr(trackside, name))]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))

pytestmark = pytest.mark.slow


class Html(HTMLParser):
    """A page: its text, the ids in it, the addresses that it links to, and those that it loads by itself."""

    def __init__(self, file: Path):
        super().__init__()
        self.text = ""
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag == "link" and "href" in values:
            self.loaded.add(values["href"])
        elif "src" in values:
            self.loaded.add(values["src"])

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; building it fails at the first warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    """The pages by their files."""
    return {file: Html(file) for file in site.rglob("*.html")}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_are_in_the_reference(module: types.ModuleType, site: Path, pages: dict[Path, Html]) -> None:
    """Each public name has an anchor on the page of its package; so has each field of a config."""
    page = pages[site / "reference" / f"{module.__name__.rpartition('.')[2]}.html"]
    names = set(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, ConfigDict) and dataclasses.is_dataclass(value):
            names |= {f"{name}.{field.name}" for field in dataclasses.fields(value)}
    assert {f"{module.__name__}.{name}" for name in names} - page.ids == set()


def test_reference_shows_defaults_and_sentences(site: Path, pages: dict[Path, Html]) -> None:
    """A field has its type, its default, without `dataclasses.field`, and its sentence; so have inherited ones."""
    callbacks = pages[site / "reference" / "callbacks.html"].text
    assert "decay: float = 0.999" in callbacks
    assert "The weight of the old average in each step." in callbacks
    assert "every_n_epochs: int = 1" in callbacks
    trainer = pages[site / "reference" / "trainer.html"].text
    assert "default_train_log_modes: list[str] = ['mean']" in trainer
    assert "logger: LoggerConfig | None = LoggerConfig()" in trainer
    assert "callbacks: list[CallbackConfig] = []" in trainer


def test_reference_shows_whole_docstrings(site: Path, pages: dict[Path, Html]) -> None:
    """Arguments, errors and a returned value of several lines are shown as they were written."""
    text = " ".join(pages[site / "reference" / "config.html"].text.split())
    assert "Read None as 0 in int fields that do not allow None." in text
    assert "If the data does not fit, with the path of the field, the value and what was expected." in text
    trainer = " ".join(pages[site / "reference" / "trainer.html"].text.split())
    assert "those of each validation as val_epoch_<n> and val_step_<n>, and those of the test." in trainer


def test_members_of_bases_are_in_the_reference(site: Path, pages: dict[Path, Html]) -> None:
    """What a public class has from a private base is shown with it; what it has from a public one, only there."""
    assert "trackside.trainer.TrainerModule.loss_function" in pages[site / "reference" / "trainer.html"].ids
    callbacks = pages[site / "reference" / "callbacks.html"].ids
    assert "trackside.callbacks.Callback.on_training_start" in callbacks
    assert "trackside.callbacks.ModelCheckpoint.on_training_start" not in callbacks


def test_reference_overview_is_complete() -> None:
    """The overview links to every public package, and lists what `trackside` itself exports."""
    overview = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [module.__name__ for module in MODULES if f"[`{module.__name__}`]" not in overview] == []
    names = set(trackside.__all__) - {module.__name__.rpartition(".")[2] for module in MODULES}
    assert [name for name in sorted(names) if f"`{name}`" not in overview] == []


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Html]) -> None:
    """The front page links to every page of docs/, to the examples, and to the project's own pages."""
    docs = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    others = {"contributing.html", "changes.html", "license.html", *(f"examples/{name}.html" for name in EXAMPLES)}
    assert (docs | others) - pages[site / "index.html"].links == set()


def test_links_lead_somewhere(site: Path, pages: dict[Path, Html]) -> None:
    """Every link within the site leads to a file, and to an anchor in it if it names one."""
    dead = defaultdict(set)
    for file, page in pages.items():
        if file.name == "404.html":  # it is served in any folder, so its links are from the root
            continue
        for link in page.links | page.loaded:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (file.parent / unquote(address.path)).resolve() if address.path else file
            anchor = unquote(address.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                dead[str(file.relative_to(site))].add(link)
    assert not dead


def test_links_for_the_repository_lead_to_pages(site: Path, pages: dict[Path, Html]) -> None:
    """Links to the README's neighbors, to examples and to the source are links between pages on the site."""
    assert {"examples/own_metrics.html", "reference/errors.html"} <= pages[site / "train.html"].links
    assert {"train.html", "contributing.html", "license.html"} <= pages[site / "index.html"].links
    assert "pictures/report.png" in pages[site / "index.html"].loaded


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[Path, Html]) -> None:
    """No page and no style sheet loads anything from elsewhere."""
    assert {address for page in pages.values() for address in page.loaded if urlsplit(address).netloc} == set()
    styles = [file.read_text(encoding="utf-8") for file in site.rglob("*.css")]
    assert styles
    assert [style for style in styles if "url(http" in style or "url(//" in style or "@import" in style] == []


def test_search_works_without_a_server(site: Path) -> None:
    """In a page that is opened as a file, a search finds a config in the reference; nothing is asked of a host."""
    requests: list[str] = []
    with launched_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.locator(".md-search__input").press_sequentially("EMAConfig")
        found = page.locator(".md-search-result__link").first
        found.wait_for()
        assert "reference/callbacks.html" in found.get_attribute("href")
    assert requests
    assert [url for url in requests if not url.startswith("file:")] == []
