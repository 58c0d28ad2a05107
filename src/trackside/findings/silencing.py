"""Which findings there are, by id, and leaving out those that a user does not want to hear of."""

from collections.abc import Collection, Iterable, Sequence

from trackside.config.wording import did_you_mean
from trackside.errors import ConfigError
from trackside.findings.finding import Finding, label_of
from trackside.text import count

FINDING_IDS: tuple[str, ...] = (
    "input_bound",
    "dispatch_bound",
    "logging_too_often",
    "slow_logging_tool",
    "validation_dominates",
    "checkpointing_dominates",
    "callback_dominates",
    "callback_stalls",
    "step_not_compiled",
    "part_dominates",
    "own_code_dominates",
    "waits_between_steps",
    "idle_after_epoch",
    "garbage_collection",
    "recompiling",
    "ragged_last_batch",
    "slow_compile",
    "host_memory_growth",
    "device_memory_growth",
    "memory_not_reused",
    "optimizer_share_high",
    "recompute_share",
    "low_coverage",
    "high_data_batch_production",
    "high_loss_fn_computation",
    "high_make_step_total",
    "slow_host",
    "silent_host",
)
"""The ids of all findings that trackside makes."""


def checked_ids(names: Iterable[str], where: str) -> tuple[str, ...]:
    """The ids that names stand for: `input-bound`, as it is shown, and `input_bound` are the same.

    Args:
        names: The names.
        where: What they were given as, for the error.

    Raises:
        ConfigError: There is no such finding.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"{where}: expected a list of ids, got {names!r}; write [{names!r}]")
    ids = []
    for name in names:
        given = str(name).replace("-", "_")
        if given not in FINDING_IDS:
            labels = [label_of(one) for one in FINDING_IDS]
            hint = did_you_mean(label_of(given), labels) or f" The ids are {', '.join(labels)}."
            raise ConfigError(f"{where}: expected the id of a finding, got {name!r}.{hint}")
        ids.append(given)
    return tuple(dict.fromkeys(ids))


def split_silenced(findings: Iterable[Finding], ids: Collection[str]) -> tuple[list[Finding], list[Finding]]:
    """The findings to show, and those that are silenced.

    Args:
        findings: All findings.
        ids: The ids of those to leave out.
    """
    shown, silenced = [], []
    for finding in findings:
        (silenced if finding.id in ids else shown).append(finding)
    return shown, silenced


def silenced_text(silenced: Sequence[Finding]) -> str:
    """What a reader is shown instead of them: `1 finding silenced (input-bound)`; empty if there is none."""
    if not silenced:
        return ""
    labels = dict.fromkeys(finding.label for finding in silenced)
    return f"{count(len(silenced), 'finding')} silenced ({', '.join(labels)})"
