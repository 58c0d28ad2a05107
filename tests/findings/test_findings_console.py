"""Findings on a console."""

import pytest
from rich.console import Console

from trackside.findings import Finding, render_findings

SEVERE = Finding(
    "input_bound",
    "severe",
    "training waits for data (62 % of wall time)",
    {"data_wait_share": 0.62, "data_wait_s": 37.2, "num_steps": 1000},
    "raise workers or prefetch, or prepare the data offline",
)
WARNING = Finding(
    "callback_dominates", "warning", "the callback A takes 15 % of wall time", {}, "run A less often " * 8
)


def test_verdict_then_evidence_then_advice():
    """A finding reads from what is the matter to what to do, its figures with their units in between."""
    assert render_findings([SEVERE]).plain.splitlines() == [
        "1 finding: 1 severe",
        "",
        "severe   input-bound: training waits for data (62 % of wall time)",
        "         data wait share 62 %, data wait 37.2 s, num steps 1,000",
        "         -> raise workers or prefetch, or prepare the data offline",
    ]


def test_headline_counts_by_severity():
    """The first line says how many there are, of which severity."""
    assert render_findings([SEVERE, WARNING, WARNING]).plain.splitlines()[0] == "3 findings: 1 severe, 2 warnings"


def test_no_findings_are_said():
    """That nothing was found is a line as well."""
    assert render_findings([]).plain == "No findings"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_it_fits_the_width(width):
    """No line is wider than asked for, in the text and on a console."""
    text = render_findings([SEVERE, WARNING], width)
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(text)
    assert all(len(line) <= width for line in text.plain.splitlines())
    assert capture.get().rstrip("\n") == text.plain


def test_figures_are_not_torn():
    """A line ends between two figures of the evidence, never within one."""
    lines = render_findings([SEVERE], 50).plain.splitlines()
    assert "         data wait share 62 %, data wait 37.2 s," in lines
    assert "         num steps 1,000" in lines


def test_severity_has_a_colour():
    """A console that can, shows the severity in its colour."""
    console = Console(width=80, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        console.print(render_findings([SEVERE]))
    assert "\x1b[1;31msevere" in capture.get()
