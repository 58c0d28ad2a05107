"""The report of a run, and the comparison of two runs, each as one self-contained HTML page.

`report_page` assembles the report from sections, one module per subject. A section renders the summary of the run, and
draws charts from the run's series. `comparison` does the same for two runs. Sections are made of `markup` and `charts`,
which make sure that nothing a run wrote becomes code; `document` puts them into a page.
"""

from trackside.report.html.comparison.page import render_comparison_html, write_comparison_html
from trackside.report.html.report_page import render_html, write_html_report

__all__ = ["render_comparison_html", "render_html", "write_comparison_html", "write_html_report"]
