from benchmarks.peers.check import compare, is_slower
from benchmarks.peers.results import TARGETS, Ratio, Result, Results, to_markdown

BEFORE = [1.00, 1.02, 0.99, 1.05, 1.01, 0.98, 1.03, 1.00, 1.04, 1.01, 0.99]


def test_a_slowdown_beyond_the_limit_fails():
    """A ratio that rose by 30 % in all rounds is slower than a limit of 10 % allows."""
    (found,) = compare({"mlp: trackside": BEFORE}, {"mlp: trackside": [1.3 * ratio for ratio in BEFORE]})
    assert is_slower(found, 0.1)


def test_noise_does_not_fail():
    """The same ratios in another order, with one round that was disturbed, are no slowdown."""
    (found,) = compare({"mlp: trackside": BEFORE}, {"mlp: trackside": [*reversed(BEFORE[1:]), 3.0]})
    assert not is_slower(found, 0.1)


def test_a_faster_loop_does_not_fail():
    """Half of the time is no slowdown."""
    (found,) = compare({"mlp: trackside": BEFORE}, {"mlp: trackside": [0.5 * ratio for ratio in BEFORE]})
    assert not is_slower(found, 0.1)


def test_ratios_are_taken_within_a_round():
    """A round that slows down everyone does not show in the ratio."""
    one, other = Result("mlp-1", "trackside", (2e-4, 8e-4, 2e-4)), Result("mlp-1", "same work", (1e-4, 4e-4, 1e-4))
    assert Ratio.of(one, other) == Ratio(2.0, 2.0, 2.0)


def test_a_missed_target_is_named_with_its_size():
    """The page says which target was missed on which task, and by how much; one that was held is said to be."""
    results = Results(
        [
            Result("mlp-1", "same work", (1e-4, 1e-4)),
            Result("mlp-1", "K=1", (2.3e-4, 2.3e-4)),
            Result("mlp-1", "trackside", (0.4e-4, 0.4e-4)),
            Result("mlp-1", "loss only", (0.8e-4, 0.8e-4)),
        ]
    )
    lines = to_markdown(results, 2).splitlines()
    rows = [line for line in lines if line.startswith("|") and any(target.title in line for target in TARGETS)]
    assert [row.split(" | ")[-1].rstrip(" |") for row in rows] == ["missed by 100%", "held", "held"]
    explained = [line for line in lines if line.startswith("- ")]
    assert len(explained) == 1
    assert explained[0].startswith(f"- {TARGETS[0].title}: ")
