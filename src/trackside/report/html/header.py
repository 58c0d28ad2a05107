"""The top of the report: the run, how it stands, and its main figures."""

from collections.abc import Iterator

from trackside.profiling.first_step import first_step_part_name
from trackside.profiling.ledger_text import idle_interval
from trackside.report.html.document import tile
from trackside.report.html.markup import Html, element, term
from trackside.report.loader_texts import loader_texts
from trackside.report.run_summary import RunSummary
from trackside.runs.status_words import STOPPED_EARLY, RunStatus
from trackside.text import count, duration, four_digits, moment, percent, seconds, three_digits


def render_header(summary: RunSummary) -> Html:
    """Name, status, time and place, and the main figures."""
    title = element("h1", summary.name, " ", _badge(summary.run_status))
    facts = [element("span", fact) for fact in (_when(summary), _hostname(summary), _devices(summary)) if fact]
    tiles = [
        *_progress_tiles(summary),
        *_result_tiles(summary),
        *_first_step_tile(summary),
        *_speed_tiles(summary),
    ]
    return element(
        "header",
        title,
        _stop_reason(summary),
        element("p", facts, class_="facts"),
        _loaders(summary),
        element("dl", tiles, class_="tiles"),
        class_="top",
    )


def _badge(status: RunStatus) -> Html:
    explanation = f"{status.meaning[:1].upper()}{status.meaning[1:]}."
    return element("span", term(status.word, explanation), class_=f"status {status.tone}")


def _loaders(summary: RunSummary) -> Html | None:
    """What the batches came from."""
    loaders = [element("span", text) for text in loader_texts(summary.environment)]
    return element("p", loaders, class_="facts") if loaders else None


def _stop_reason(summary: RunSummary) -> Html | None:
    if summary.status != STOPPED_EARLY:
        return None
    text = summary.run_status.text
    return element("p", f"{text[:1].upper()}{text[1:].rstrip('.')}.", class_="lead")


def _when(summary: RunSummary) -> str:
    if not summary.started_at:
        return "start time unknown"
    return f"{moment(summary.started_at)}, {duration(summary.ended_at - summary.started_at)}"


def _hostname(summary: RunSummary) -> str:
    return str(summary.environment.get("hostname") or "")


def _devices(summary: RunSummary) -> str:
    devices = summary.environment.get("devices")
    if not isinstance(devices, list) or not devices:
        return ""
    shown = count(len(devices), f"{summary.environment.get('backend', '')} device".strip())
    return f"{shown}, {summary.num_processes:,} processes" if summary.num_processes > 1 else shown


def _progress_tiles(summary: RunSummary) -> Iterator[Html]:
    goal = f"of {summary.goal:,}, " if summary.goal else ""
    yield tile("Steps", f"{summary.step:,}", f"{goal}{count(summary.epoch, 'epoch')}")
    if summary.goodput is not None:
        explanation = (
            "The share of the time since training began that was spent in training steps whose results were kept. "
            "Compilation, waiting for data, validation, checkpoints, repeated steps and pauses count against it."
        )
        yield tile(term("Goodput", explanation), percent(summary.goodput), "of the time since training began")


def _result_tiles(summary: RunSummary) -> Iterator[Html]:
    best = summary.best
    if best is not None:
        last = "not finite" if best.last is None else four_digits(best.last)
        yield tile(f"Best {best.label}", four_digits(best.value), f"at step {best.step:,}; last {last}")


def _first_step_tile(summary: RunSummary) -> Iterator[Html]:
    first = summary.time_to_first_step
    if first is not None:
        explanation = f"From the building of the trainer until its first step was called. {first.text}."
        largest = next(iter(first.parts), None)
        mostly = "" if largest is None else f"{first_step_part_name(largest)} {seconds(first.parts[largest])}"
        yield tile(term("Time to first step", explanation), seconds(first.wall_s), mostly)


def _speed_tiles(summary: RunSummary) -> Iterator[Html]:
    times, ledger = summary.step_time, summary.ledger
    if times is not None:
        explanation = "Over intervals without warm-up, compilation, captures, validation or checkpoints."
        yield tile(term("Step time", explanation), seconds(times.p50_s), f"median; p95 {seconds(times.p95_s)}")
    if ledger is not None and ledger.wall_s > 0 and ledger.num_steps:
        rates = [f"{three_digits(ledger.samples_per_second)} examples/s"] if ledger.num_samples else []
        rates += [f"{three_digits(ledger.tokens_per_second)} tokens/s"] if ledger.num_tokens else []
        explanation = "Over the whole run, including set-up, compilation and everything else that is not a step."
        steps = f"{three_digits(ledger.steps_per_second)} steps/s"
        yield tile(term("Throughput", explanation), steps, "; ".join(["overall", *rates]))
    if summary.mfu is not None:
        explanation = (
            "The model's FLOP/s as a share of the devices' peak (data sheet, or measured), in steps and while waiting "
            "for data."
        )
        within = summary.mfu_range
        of = "of the devices' peak"
        if within is not None:
            of = f"{percent(within[0])} to {percent(within[1])}, measured peak"
        yield tile(term("FLOPs utilization", explanation), percent(summary.mfu), of)
    if ledger is not None and ledger.idle_share is not None:
        explanation = "Between the first and the last step, as estimated on the host. A profile measures it."
        detail = f"of the time between steps{idle_interval(ledger, of_busy=True)}"
        yield tile(term("Device busy", explanation), percent(1 - ledger.idle_share), detail)
