"""A skipped test of the matrix over libraries and features fails, unless the reason is listed."""

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a skip that is not in `LACKING` fail."""
    report = yield
    module = getattr(item, "module", None)
    if report.skipped and hasattr(module, "LACKING"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(listed in reason for listed in module.LACKING.values()):
            report.outcome = "failed"
            report.longrepr = f"{item.name} was skipped, and LACKING does not list it: {reason}"
    return report
