"""Assertions on where the time goes: how long the device idles, and what a scope takes."""

from trackside.errors import ConfigError
from trackside.profiling.ledger_text import part_name
from trackside.runs import Run
from trackside.testing.assertion_inputs import RunOrReport, check_limit, last_report, open_measured
from trackside.text import percent
from trackside.trace import TraceReport

_NUM_LISTED = 5


def assert_idle_share(measured: RunOrReport, max_share: float) -> None:
    """Fail if the device is idle for too large a share of the time.

    Args:
        measured: A run with a ledger, by its path or opened; or what `capture_function` gave, or a trace's path.
        max_share: The largest share that is fine, from 0 to 1.

    Raises:
        AssertionError: It is idle for longer. The message has the share and the reasons.
        ConfigError: The limit is not a share, or nothing shows how long the device was idle.
    """
    check_limit("max_share", max_share, 1.0)
    source = open_measured(measured)
    share, reasons = _idle_of_run(source) if isinstance(source, Run) else _idle_of_report(source)
    if share > max_share:
        raise AssertionError(
            f"the device was idle {percent(share)} of the time, at most {percent(max_share)} expected"
            + (f": {reasons}" if reasons else "")
        )


def _idle_of_run(run: Run) -> tuple[float, str]:
    ledger = run.ledger
    if ledger is None or ledger.idle_share is None:
        raise ConfigError(f"{run.path}: the run does not know how long the device was idle; it made too few steps")
    observed_s = (ledger.device_busy_s or 0.0) + (ledger.device_idle_s or 0.0)
    longest = sorted(ledger.idle_by_reason.items(), key=lambda item: -item[1])[:_NUM_LISTED]
    reasons = ", ".join(f"{part_name(part)} {percent(idle_s / observed_s)}" for part, idle_s in longest)
    return ledger.idle_share, f"meanwhile the host was in: {reasons}" if reasons else ""


def _idle_of_report(report: TraceReport) -> tuple[float, str]:
    if report.device_busy is None:
        raise ConfigError("measured: the trace holds no execution, so nothing shows how long the device was idle")
    gap = next(iter(report.gaps.largest), None)
    doing = "" if gap is None else f"the largest gap is {gap.duration_s * 1e3:.3g} ms {gap.kind}"
    return 1.0 - report.device_busy, doing + (f", host: {gap.host_activity}" if gap and gap.host_activity else "")


def assert_scope_share(measured: RunOrReport, scope: str, max_share: float, *, phase: str | None = None) -> None:
    """Fail where a scope takes too large a share of the device's busy time.

    Args:
        measured: What `capture_function` gave, or a trace's path; or a run with a capture, by its path or opened.
        scope: The scope's path, such as `loss/Net/Dense_0`, or the end of one (`Dense_0`); what is under it counts
            too.
        max_share: The largest share that is fine, from 0 to 1.
        phase: Count only this phase: `forward`, `backward`, `recompute`, `optimizer` or `other`.

    Raises:
        AssertionError: It takes more. The message has the share and the largest scopes under it.
        ConfigError: The limit is not a share, or there is no such scope; the message lists those that there are.
    """
    check_limit("max_share", max_share, 1.0)
    source = open_measured(measured)
    rows = (last_report(source) if isinstance(source, Run) else source).scopes.rows
    under = [row for row in rows if _is_under(row.scope, scope) and phase in (None, row.phase)]
    if not under:
        known = ", ".join(dict.fromkeys(row.scope for row in rows)) or "none"
        of_phase = f" in the phase {phase!r}" if phase else ""
        raise ConfigError(f"scope: there is no {scope!r}{of_phase}; scopes are {known}")
    share = sum(row.share for row in under)
    if share > max_share:
        largest = sorted(under, key=lambda row: -row.share)[:_NUM_LISTED]
        listed = ", ".join(f"{row.scope} ({row.phase}) {percent(row.share)}" for row in largest)
        raise AssertionError(
            f"{scope} took {percent(share)} of the device's busy time, at most {percent(max_share)} expected: {listed}"
        )


def _is_under(path: str, scope: str) -> bool:
    """Whether a path is the scope or is under it; the scope is given in full or by its end."""
    return f"/{scope.strip('/')}/" in f"/{path}/"
