"""A section of the page: a title, what it says, and the charts in it."""

from dataclasses import dataclass, field

from trackside.report.html.charts import Chart
from trackside.report.html.markup import Child, Html, element


@dataclass(frozen=True)
class Section:
    """A part of the page about one subject."""

    id: str
    title: str
    content: Child
    lead: Child = None
    """One or two sentences below the title: the main result."""
    charts: list[Chart] = field(default_factory=list)

    def render(self) -> Html:
        """As HTML."""
        heading = element("h2", self.title, id=f"{self.id}-title")
        lead = element("p", self.lead, class_="lead") if self.lead else None
        return element("section", heading, lead, self.content, id=self.id, aria_labelledby=f"{self.id}-title")


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
