"""The report of a run, and the comparison of two, each as one self-contained HTML page.

`page` assembles the report from sections, one module per subject: each takes a run and gives text, tables and charts.
`comparison_page` does the same for two runs, with the modules `comparison_*`. `charts` and `markup` are what sections
are made of, and see to it that nothing from the run becomes code.
"""

from trackside.report.html.comparison_page import render_comparison_html, write_comparison_html
from trackside.report.html.page import render_html, write_html_report

__all__ = ["render_comparison_html", "render_html", "write_comparison_html", "write_html_report"]
