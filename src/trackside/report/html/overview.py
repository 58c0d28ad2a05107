"""The top of the page: what the run is, how it stands, and the figures that sum it up."""

from collections.abc import Iterator

from trackside.report.best_metric import best_metric
from trackside.report.html.markup import Child, Html, element, term
from trackside.report.html.wording import plain_number
from trackside.report.moments import duration, moment
from trackside.report.step_time import summarise_step_times
from trackside.runs import Run
from trackside.text import count, percent, seconds, three_digits

_STATUS = {
    "success": ("good", "finished", "The training reached its goal, or was stopped as planned."),
    "running": ("live", "running", "A process is training this run; the page shows what it had written by now."),
    "dead": (
        "bad",
        "died",
        "It has no final status and no process trains it: it was killed, or its machine went away.",
    ),
    "interrupted": ("fair", "interrupted", "It was stopped by a signal before its goal."),
    "nan": ("bad", "not finite", "The loss or the gradient norm was not finite, and training stopped."),
    "error": ("bad", "failed", "An error ended the training."),
}


def render_header(run: Run) -> Html:
    """Name, status and when."""
    kind, word, explanation = _STATUS.get(run.status, ("fair", run.status, "How the run ended, in its own word."))
    when = f"{moment(run.started_at)}, {duration(run.ended_at - run.started_at)}" if run.started_at else "not known"
    environment = run.environment
    where = [when, environment.get("hostname"), _devices(run)]
    facts = [element("span", fact) for fact in where if fact]
    title = element("h1", run.name, " ", element("span", term(word, explanation), class_=f"status {kind}"))
    return element("header", title, element("p", facts, class_="facts"), _tiles(run), class_="top")


def _devices(run: Run) -> str:
    devices = run.environment.get("devices")
    if not isinstance(devices, list) or not devices:
        return ""
    shown = count(len(devices), f"{run.environment.get('backend', '')} device".strip())
    num_processes = len(run.process_indices)
    return f"{shown}, {num_processes:,} processes" if num_processes > 1 else shown


def _tiles(run: Run) -> Html:
    tiles = [*_progress_tiles(run), *_speed_tiles(run), *_result_tiles(run)]
    return element("dl", tiles, class_="tiles")


def _tile(title: Child, value: str, detail: str = "") -> Html:
    shown = element("dd", value, element("small", detail) if detail else None)
    return element("div", element("dt", title), shown)


def _progress_tiles(run: Run) -> Iterator[Html]:
    goal = f"of {run.goal:,}, " if run.goal else ""
    yield _tile("Steps", f"{run.step:,}", f"{goal}{count(run.epoch, 'epoch')}")
    if run.goodput is not None:
        explanation = (
            "Of the time since the training first began, the share that went into training steps whose results were "
            "kept. Compilation, waiting for data, validation, checkpoints, lost steps and pauses count against it."
        )
        yield _tile(term("Goodput", explanation), percent(run.goodput), "of the time since it began")


def _speed_tiles(run: Run) -> Iterator[Html]:
    times = summarise_step_times(run.step_times)
    if times is not None:
        explanation = "Of intervals without warm-up, compilation, captures, validation and checkpoints."
        yield _tile(term("Step time", explanation), seconds(times.p50_s), f"median; p95 {seconds(times.p95_s)}")
    ledger = run.ledger
    if ledger is not None and ledger.wall_s > 0 and ledger.num_steps:
        rates = [f"{three_digits(ledger.samples_per_second)} examples/s"] if ledger.num_samples else []
        rates += [f"{three_digits(ledger.tokens_per_second)} tokens/s"] if ledger.num_tokens else []
        explanation = "Over the whole time of the training, with everything that is no step."
        steps = f"{three_digits(ledger.steps_per_second)} steps/s"
        yield _tile(term("Throughput", explanation), steps, ", ".join(rates))
    if run.mfu is not None:
        explanation = (
            "What the model's own FLOPs make use of, of what the devices can do at most by their data sheets, or by "
            "measurement where none is known; of the time in steps and waiting for data."
        )
        yield _tile(term("FLOPs utilisation", explanation), percent(run.mfu), "of the devices' peak")
    if ledger is not None and ledger.idle_share is not None:
        explanation = "Between the first and the last step, as the host saw it; an estimate. A profile measures it."
        yield _tile(term("Device busy", explanation), percent(1 - ledger.idle_share), "of the time between steps")


def _result_tiles(run: Run) -> Iterator[Html]:
    best = best_metric(run)
    if best is not None:
        detail = f"at step {best.step:,}; last {plain_number(best.last)}"
        yield _tile(f"Best {best.label}", plain_number(best.value), detail)
