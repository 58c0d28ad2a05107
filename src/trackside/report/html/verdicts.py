"""Verdicts: what is the matter with the run, on what evidence, and what to do."""

from trackside.findings import Finding
from trackside.report.html.markup import Html, element, missing, with_code
from trackside.report.html.section import Section
from trackside.runs import Run
from trackside.text import evidence_value


def build(run: Run) -> Section:
    """The verdicts, the most severe first, and what was wrong with the run's files."""
    content = [element("div", [_card(finding) for finding in run.findings], class_="verdicts")]
    if not run.findings:
        content = [_all_clear(run)]
    if run.problems:
        listed = element("ul", [element("li", problem) for problem in run.problems])
        content.append(element("div", element("h3", "What the files lack"), listed, class_="panel problems"))
    return Section("verdicts", "Verdicts", content)


def _all_clear(run: Run) -> Html:
    if run.ledger is None or not run.ledger.num_steps:
        return missing("No training step was measured yet, so there is nothing to judge.")
    return element("p", "No rule found anything to change.", class_="all-clear")


def _card(finding: Finding) -> Html:
    head = element(
        "h3",
        element("span", finding.severity, class_="severity"),
        element("span", finding.label, class_="rule"),
    )
    evidence = [
        element("div", element("dt", _name(name)), element("dd", evidence_value(name, value)))
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


def _name(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")
