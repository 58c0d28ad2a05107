"""The section of captures."""

from pathlib import Path

from tests.report.made_up import write_run
from trackside.report.html import profile
from trackside.report.html.markup import joined
from trackside.runs import open_run


def test_what_is_estimated_is_marked(tmp_path: Path) -> None:
    """The page says how much was split by estimate and how much cannot be, and marks lines and kernels."""
    section = profile.build(open_run(write_run(tmp_path / "run", "net")))
    text = str(joined(section.content))
    assert "split by estimate</span></dt><dd>50 %" in text
    assert "not split</span></dt><dd>25 %" in text
    assert "~50.0 %" in text
    assert "net and 1 more scope" in text
