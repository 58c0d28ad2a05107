"""The findings: what is wrong with the run, the evidence, and what to do."""

from trackside.findings import Finding
from trackside.findings.silencing import silenced_text
from trackside.report.html.markup import Html, element, missing, with_code
from trackside.report.html.section import Section
from trackside.report.run_summary import RunSummary
from trackside.text import evidence_value


def build(summary: RunSummary) -> Section:
    """The findings, the most severe first, and what is wrong with the run's files."""
    content = [element("div", [_card(finding) for finding in summary.findings], class_="verdicts")]
    if not summary.findings:
        content = [_all_clear(summary)]
    if summary.silenced:
        content.append(element("p", f"{silenced_text(summary.silenced)}.", class_="note"))
    if summary.problems:
        listed = element("ul", [element("li", problem) for problem in summary.problems])
        content.append(element("div", element("h3", "Problems with the run's files"), listed, class_="panel problems"))
    return Section("verdicts", "Findings", content)


def _all_clear(summary: RunSummary) -> Html:
    if summary.ledger is None or not summary.ledger.num_steps:
        return missing("No training step has been measured yet, so there is nothing to judge.")
    text = "No other findings." if summary.silenced else "No findings: no rule found anything to improve."
    return element("p", text, class_="all-clear")


def _card(finding: Finding) -> Html:
    head = element(
        "h3",
        element("span", finding.severity, class_="severity"),
        element("span", finding.label, class_="rule"),
    )
    evidence = [
        element("div", element("dt", _words(name)), element("dd", evidence_value(name, value)))
        for name, value in finding.evidence.items()
    ]
    return element(
        "article",
        head,
        element("p", finding.title, class_="title"),
        element("dl", evidence, class_="evidence") if evidence else None,
        element("p", element("strong", "What to do: "), with_code(finding.advice), class_="advice"),
        class_=f"verdict {finding.severity}",
    )


def _words(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")
