"""The page: sections one below the other, in a document that needs nothing but itself."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from trackside.errors import ConfigError
from trackside.files import write_atomically
from trackside.report.html import (
    compiles,
    configs,
    device,
    memory,
    metrics,
    overview,
    processes,
    profile,
    step_time,
    time_ledger,
    verdicts,
)
from trackside.report.html.assets import asset, content_policy, plotly_library, policy_hash
from trackside.report.html.charts import Chart
from trackside.report.html.markup import Child, Html, element, joined
from trackside.report.html.section import Section
from trackside.runs import Run

FILE_NAME = "report.html"


def write_html_report(run: Run, path: Path | None = None) -> Path:
    """Write the report of a run as one HTML file.

    Args:
        run: The run, as `trackside.open_run` gives it.
        path: The file; `report.html` in the run's folder if left out. It is replaced whole or not at all; its folder is
            made if it is not there.

    Returns:
        The file.

    Raises:
        ConfigError: The file cannot be written.
    """
    target = run.path / FILE_NAME if path is None else Path(path)
    page = render_html(run)
    try:
        write_atomically(target, page)
    except OSError as error:
        raise ConfigError(
            f"path: the report cannot be written to {str(target)!r} ({error.strerror}); give another file, or none"
        ) from error
    return target


def render_html(run: Run) -> str:
    """The report of a run as an HTML document.

    Args:
        run: The run, as `trackside.open_run` gives it.
    """
    builders = (
        verdicts.build,
        step_time.build,
        time_ledger.build,
        device.build,
        profile.build,
        memory.build,
        metrics.build,
        compiles.build,
        processes.build,
        configs.build_timers,
        configs.build,
    )
    sections = [section for build in builders if (section := build(run)) is not None]
    return render_document(f"{run.name} · trackside", overview.render_header(run), sections)


def render_document(title: str, header: Html, sections: Sequence[Section]) -> str:
    """A document of sections, with its charts, scripts and styles.

    Args:
        title: The title of the browser's tab.
        header: What stands above the sections.
        sections: The sections, in order.
    """
    library = plotly_library()
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
    # The notice that plotly.js asks to be kept is packed away with its source.
    notice = f"<!-- Contains plotly.js v{library.version}, copyright Plotly, Inc., under the MIT license. -->"
    return f"<!doctype html>\n{notice}\n{element('html', head, body, lang='en')}\n"


def _bar(sections: Sequence[Section]) -> Html:
    links = [element("a", section.title, href=f"#{section.id}") for section in sections]
    toggle = element("button", "Auto", type="button", id="theme", aria_label="Colours: as the system")
    return element("nav", element("div", links, class_="links"), toggle, aria_label="Sections")


def _footer() -> Html:
    hint: Child = element("noscript", element("p", "Charts need JavaScript; all else on this page does not."))
    return element("footer", hint, element("p", "Written by trackside. This file needs no network."))


def _chart_data(charts: Iterable[Chart]) -> Html:
    """The charts as JSON that cannot end its script element: no `<` is left in it."""
    encoded = msgspec.json.encode({chart.id: chart.to_dict() for chart in charts}).decode("utf-8")
    return joined(Html(encoded.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")))
