"""The verdict on two runs, the numbers behind it, and what changed that may explain it."""

from collections.abc import Iterator

from trackside.compare import Cause, Comparison
from trackside.report.html.comparison.values import sign_of, signed_percent
from trackside.report.html.markup import Child, Html, element, term
from trackside.report.html.section import Section
from trackside.text import count, evidence_value, seconds

_MAX_CAUSES = 20
_MAX_EVIDENCE = 8


def build(comparison: Comparison) -> Section:
    """The section."""
    content: list[Child] = [element("div", _verdict(comparison), class_="verdicts")]
    content.append(_causes(comparison))
    if comparison.notes:
        listed = element("ul", [element("li", note) for note in comparison.notes])
        content.append(element("div", element("h3", "What is missing"), listed, class_="panel problems"))
    return Section("verdict", "Verdict", content)


def _verdict(comparison: Comparison) -> Html:
    verdict = comparison.step_time.verdict
    severity = "severe" if comparison.is_regression else "warning" if verdict in ("slower", "cannot tell") else "info"
    head = element("h3", element("span", verdict, class_="severity"), element("span", "step time", class_="rule"))
    return element(
        "article",
        head,
        element("p", _sentence(comparison), class_="title"),
        element("dl", list(_basis(comparison)), class_="evidence"),
        class_=f"verdict {severity}",
    )


def _sentence(comparison: Comparison) -> str:
    time = comparison.step_time
    if time.verdict not in ("slower", "faster") or time.change is None:
        return comparison.headline
    word = "more time" if time.verdict == "slower" else "less time"
    before, after = comparison.before.name, comparison.after.name
    article = "A step" if time.per == "step" else "An example"
    return f"{article} of {after} takes {100 * abs(time.change):.1f} % {word} than one of {before}."


def _basis(comparison: Comparison) -> Iterator[Html]:
    """The numbers behind the verdict."""
    time = comparison.step_time
    if time.before_s is not None and time.after_s is not None:
        explanation = f"What one {time.per} takes while nothing else disturbs it: less than the median."
        name = term(f"undisturbed {time.per}", explanation)
        yield _fact(name, f"{seconds(time.before_s)} before, {seconds(time.after_s)} after")
    if time.change is not None:
        interval = ""
        if time.low is not None and time.high is not None:
            interval = f", 95 % interval {signed_percent(time.low)} to {signed_percent(time.high)}"
        estimate = "estimate, too uncertain to judge" if time.problem else "change"
        yield _fact(estimate, f"{signed_percent(time.change)}{interval}")
    yield _fact(
        f"clean intervals of {count(time.steps_per_interval, 'step')}",
        f"{time.num_intervals[0]:,} before, {time.num_intervals[1]:,} after",
    )
    yield _fact("clean time", f"{seconds(time.clean_s[0])} before, {seconds(time.clean_s[1])} after")
    left_out = f"{time.num_left_out[0]:,} before, {time.num_left_out[1]:,} after"
    explanation = "Intervals with warm-up, compiles, captures, validation, checkpoints, epoch ends or memory samples."
    yield _fact(term("intervals left out", explanation), left_out)


def _fact(name: Child, value: Child) -> Html:
    return element("div", element("dt", name), element("dd", value))


def _causes(comparison: Comparison) -> Html:
    """What changed, each with its evidence."""
    heading = element("h3", "What changed in and around the program")
    if not comparison.causes:
        return element("div", heading, element("p", _nothing(comparison), class_="note"), class_="panel")
    cards = [_cause(cause) for cause in comparison.causes[:_MAX_CAUSES]]
    rest = len(comparison.causes) - len(cards)
    more = element("p", f"And {rest:,} more.", class_="note") if rest else None
    return element("div", heading, element("div", cards, class_="verdicts"), more, class_="panel")


def _nothing(comparison: Comparison) -> str:
    """That nothing was found, and what was examined."""
    sides = comparison.before, comparison.after
    is_recorded = {
        "program": all(side.trace is not None for side in sides),
        "compiles": any(side.compiles for side in sides),
        "batch size": all(side.steps.batch_size for side in sides),
        "configuration": all(side.config for side in sides),
        "environment": all(side.environment for side in sides),
    }
    known = [name for name, is_known in is_recorded.items() if is_known]
    if not known:
        return "Unknown: there are no captures, compiles, configurations or environments to compare."
    unknown = [name for name, is_known in is_recorded.items() if not is_known]
    return f"No change in {_listed(known)}." + (f" Unknown: {_listed(unknown)}." if unknown else "")


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _cause(cause: Cause) -> Html:
    head = element("h3", element("span", cause.label, class_="rule"))
    accounted = None
    if cause.change_s:
        accounted = _fact("accounts for", f"{sign_of(cause.change_s)}{seconds(abs(cause.change_s))} per step")
    told = [(name, value) for name, value in cause.evidence.items() if str(value) not in cause.title]
    shown = told[:_MAX_EVIDENCE]
    # Strings have names that the user chose, such as a path in the configuration: these stay as they are.
    facts = [
        _fact(name if isinstance(value, str) else _words(name), evidence_value(name, value)) for name, value in shown
    ]
    rest = len(told) - len(shown)
    more = element("p", f"{rest:,} more below, under Configuration and environment.", class_="note") if rest else None
    listed = element("dl", accounted, facts, class_="evidence") if facts or accounted else None
    title = element("p", element("strong", cause.title), class_="advice")
    return element("article", head, title, listed, more, class_="verdict info")


def _words(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")
