"""A page: a header and sections in a document that needs nothing but itself."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from trackside.errors import ConfigError
from trackside.files import write_atomically
from trackside.report.html.assets import asset, content_policy, plotly_library, policy_hash
from trackside.report.html.charts import Chart
from trackside.report.html.markup import Child, Html, element, joined
from trackside.report.html.section import Section, not_measured


def write_document(document: str, path: Path, what: str) -> Path:
    """Write a document to a file, which is replaced whole or not at all.

    Args:
        document: The document.
        path: The file. Its folder is created if needed.
        what: What the document is, for the error.

    Returns:
        The file.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        write_atomically(path, document)
    except OSError as error:
        raise ConfigError(
            f"path: cannot write {what} to {str(path)!r} ({error.strerror}); choose another file"
        ) from error
    return path


def render_document(title: str, header: Html, sections: Sequence[Section]) -> str:
    """A document with its sections, charts, scripts and styles.

    Args:
        title: The title of the browser's tab.
        header: What comes above the sections.
        sections: The sections, in order. Those without content are left out.
    """
    library = plotly_library()
    sections = [section for section in (*sections, not_measured(sections)) if section.content is not None]
    theme, script, style = asset("theme.js"), asset("page.js"), asset("page.css")
    scripts = [policy_hash(theme), policy_hash(script), library.source_hash]
    policy = content_policy(scripts, [policy_hash(style)])
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("script", Html(theme)),
        # plotly adds no rules of its own where it finds a style of this name and class; page.css has them.
        element("style", Html(style), id="plotly.js-style-global", class_="no-inline-styles"),
        [element("meta", id=style_id) for style_id in library.style_ids],
    )
    charts = {chart.id: chart for section in sections for chart in section.charts}
    body = element(
        "body",
        _bar(sections),
        element("main", header, [section.render() for section in sections]),
        _footer(),
        element("script", _chart_data(charts.values()), type="application/json", id="chart-data"),
        element("script", library.packed, type="application/octet-stream", id="plotly-packed"),
        element("script", Html(script)),
    )
    # The license notice of plotly.js has to stay readable; in the page its source is compressed.
    notice = f"<!-- Contains plotly.js v{library.version}, copyright Plotly, Inc., under the MIT license. -->"
    return f"<!doctype html>\n{notice}\n{element('html', head, body, lang='en')}\n"


def tile(title: Child, value: str, detail: str = "") -> Html:
    """One of the figures at the top of a page.

    Args:
        title: What it is.
        value: The figure.
        detail: Small print below it.
    """
    shown = element("dd", value, element("small", detail) if detail else None)
    return element("div", element("dt", title), shown)


def _bar(sections: Sequence[Section]) -> Html:
    links = [element("a", section.title, href=f"#{section.id}") for section in sections]
    toggle = element("button", "Auto", type="button", id="theme", aria_label="Colors: as the system")
    return element("nav", element("div", links, class_="links"), toggle, aria_label="Sections")


def _footer() -> Html:
    hint: Child = element("noscript", element("p", "Charts need JavaScript; everything else works without it."))
    return element("footer", hint, element("p", "Written by trackside. This file needs no network."))


def _chart_data(charts: Iterable[Chart]) -> Html:
    """The charts as JSON that cannot end its script element: no `<` is left in it."""
    encoded = msgspec.json.encode({chart.id: chart.to_dict() for chart in charts}).decode("utf-8")
    return joined(Html(encoded.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")))
