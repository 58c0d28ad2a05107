"""A section of the page: a title, what it says, and the charts in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trackside.report.html.charts import Chart
from trackside.report.html.markup import Child, Html, element


@dataclass(frozen=True)
class Section:
    """A part of the page about one subject."""

    id: str
    title: str
    content: Child = None
    """What it shows; None if there is nothing, and then it takes no room."""
    lead: Child = None
    """One or two sentences below the title: the main result."""
    charts: list[Chart] = field(default_factory=list)
    missing: list[Html] = field(default_factory=list)
    """What was not measured and how to get it, one sentence or two each; the page lists all of them at its end."""

    def render(self) -> Html:
        """As HTML."""
        heading = element("h2", self.title, id=f"{self.id}-title")
        lead = element("p", self.lead, class_="lead") if self.lead else None
        return element("section", heading, lead, self.content, id=self.id, aria_labelledby=f"{self.id}-title")


def not_measured(sections: Sequence[Section]) -> Section:
    """What the sections miss, in one list; without content if nothing is missing."""
    hints = [
        element("li", element("strong", section.title), ": ", sentence)
        for section in sections
        for sentence in section.missing
    ]
    return Section("not-measured", "Not measured", element("ul", hints, class_="hints") if hints else None)


def panel(
    title: Child, *content: Child, chart: Chart | None = None, note: Child = None, has_buttons: bool = True
) -> Html:
    """A titled box.

    Args:
        title: Its title.
        *content: What comes below the chart.
        chart: A chart.
        note: Small print at the end.
        has_buttons: Whether to show buttons for the views of the chart next to the title.
    """
    buttons = chart.buttons() if chart and has_buttons else None
    head = element("div", element("h3", title), buttons, class_="panel-head")
    drawn = chart.place() if chart else None
    explained = element("p", note, class_="note") if note else None
    return element("div", head, drawn, *content, explained, class_="panel")
