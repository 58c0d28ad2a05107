"""Silencing findings: by which names, what is then shown, and that the list of ids is complete."""

import ast
import re
from pathlib import Path

import pytest

import trackside
from tests.findings.made_up import run_with
from trackside.errors import ConfigError
from trackside.findings import FINDING_IDS, Finding, RunFacts, find, find_all, render_findings, split_silenced
from trackside.findings.silencing import checked_ids, silenced_text
from trackside.trainer import TrainerConfig

SOURCES = Path(trackside.__file__).parent
DOCS = SOURCES.parents[1] / "docs"


def made_ids() -> set[str]:
    """The ids of all findings that the sources make: the first argument of each `Finding(...)`."""
    ids = set()
    sources = (source.read_text(encoding="utf-8") for source in SOURCES.rglob("*.py"))
    for source in (source for source in sources if "Finding(" in source):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and node.args:
                constants = (one for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant))
                ids |= {str(one.value) for one in constants}
    return ids


def test_the_list_of_ids_is_complete() -> None:
    """It has the id of every finding that is made, and no other."""
    assert made_ids() == set(FINDING_IDS)


def test_the_page_lists_every_id() -> None:
    """So does the table of the page on findings."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", (DOCS / "findings.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed >= set(FINDING_IDS)
    assert listed - set(FINDING_IDS) <= {"ledger", "metrics", "between_epochs", "compile", "profiling", "config"} | {
        "capture",
        "memory_leak",
        "fresh_memory",
        "environment",
        "checkpoint",
        "first_step",
        "logging_tool",
        "silence",
    }


def test_ids_are_read_as_they_are_shown() -> None:
    """With hyphens or underscores; each once."""
    assert checked_ids(["input-bound", "slow_compile", "input_bound"], "x") == ("input_bound", "slow_compile")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["inptu-bound"], r"silence_findings: expected the id of a finding, got 'inptu-bound'\. Did you mean 'input-"),
        (["nonsense"], r"got 'nonsense'\. The ids are input-bound, "),
        ("input-bound", r"silence_findings: expected a list of ids, got 'input-bound'; write \['input-bound'\]"),
    ],
)
def test_a_typo_is_refused_when_the_config_is_made(names: list[str] | str, message: str) -> None:
    """With the nearest id, before anything is trained."""
    with pytest.raises(ConfigError, match=message):
        TrainerConfig(silence_findings=names)  # pyright: ignore[reportArgumentType]


def test_the_config_comes_back() -> None:
    """From plain values comes the config that they were made of."""
    config = TrainerConfig(silence_findings=("input-bound",))  # pyright: ignore[reportArgumentType]
    assert config.silence_findings == ["input_bound"]
    assert TrainerConfig.from_dict(TrainerConfig, config.to_dict()) == config


def test_silenced_findings_are_left_out_and_counted_apart() -> None:
    """What the facts silence is not found; all findings still are, for those who ask."""
    facts = run_with({"validation": 60.0, "callback/A": 20.0, "callback/B": 20.0})
    assert [finding.id for finding in find(facts)] == ["validation_dominates", *2 * ["callback_dominates"]]
    silenced = RunFacts(**{**vars(facts), "silenced": ("callback_dominates",)})
    assert [finding.id for finding in find(silenced)] == ["validation_dominates"]
    shown, left_out = split_silenced(find_all(silenced), silenced.silenced)
    assert len(shown) == 1
    assert silenced_text(left_out) == "2 findings silenced (callback-dominates)"


def test_the_console_says_what_is_silenced() -> None:
    """With findings and without; nothing where nothing is silenced."""
    one, other = (Finding(name, "info", "title", {}, "advice") for name in ("input_bound", "slow_host"))
    assert render_findings([one], silenced=[other]).plain.endswith("\n\n1 finding silenced (slow-host)")
    assert render_findings([], silenced=[other]).plain == "No findings\n1 finding silenced (slow-host)"
    assert "silenced" not in render_findings([one]).plain
