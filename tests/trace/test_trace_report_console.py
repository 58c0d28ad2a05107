"""The report on a console."""

import pytest
from rich.console import Console

from tests.trace.synthetic import (
    PlaneWriter,
    computation,
    cpu_op,
    fused_chain,
    hlo_proto,
    instruction,
    metadata_plane,
    space,
)
from tests.trace.test_analyse import COSTS, cpu_space, fused_space, gpu_space, two_programs
from trackside.trace import analyse_trace, render_report


def shown(data: bytes, width: int = 80, **options) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(render_report(analyse_trace(data, **options), width))
    return capture.get()


def test_it_says_what_matters():
    """Step time, busy share, scopes by phase, operations and coverage are shown."""
    text = shown(cpu_space())
    for expected in (
        "jit_step, 2 steps in 0.34 us on 1 device",
        "mean 0.2 us",
        "76.5 %",
        "loss/Net/Dense_0",
        "dot.2",
        "100.0 %",
    ):
        assert expected in text


def test_what_was_split_by_estimate_is_marked():
    """A kernel over four scopes: each has its share with a mark, and the coverage says how much was split."""
    lines = shown(fused_space(fused_chain(COSTS))).splitlines()
    text = " ".join(" ".join(lines).split())
    assert "100.0 % of busy time resolved (100.0 % split by estimate)" in text
    for scope, share in (("a", "~6."), ("b", "~13."), ("c", "~26."), ("d", "~53.")):
        row = next(line for line in lines if line.startswith(f"{scope} "))
        assert share in row
    assert "fusion.2 elementwise d +3" in text


def test_what_cannot_be_split_is_said():
    """Fused kernels without their program are not resolved, and the coverage says how much they are."""
    text = " ".join(shown(gpu_space(with_hlo=False)).split())
    assert "cannot be split" not in text
    plane = PlaneWriter("/device:GPU:0")
    plane.describe("loop_fusion", tf_op="jit(f)/a/mul;jit(f)/b/tanh")
    plane.event("Stream #1(Compute)", "loop_fusion", 0, 100)
    text = " ".join(shown(space(plane)).split())
    assert "0.0 % of busy time resolved" in text
    assert "100.0 % in fused kernels that cannot be split" in text
    assert "(one kernel over 2 scopes)" in text


def test_path_is_shown_whole(tmp_path):
    """The file is named so that it can be copied, however long its path is."""
    folder = tmp_path / ("deep" * 25)
    folder.mkdir()
    (folder / "h.xplane.pb").write_bytes(cpu_space())
    console = Console(width=400, color_system=None)
    with console.capture() as capture:
        console.print(render_report(analyse_trace(folder)))
    assert str(folder / "h.xplane.pb") in capture.get()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_tables_fit_the_width(width):
    """No line of the tables is wider than asked for."""
    report = analyse_trace(gpu_space())
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(render_report(report, width))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    assert any(line.startswith("loss/Net/Dense_0") for line in lines)


def test_what_is_missing_is_said():
    """What the trace lacks is shown, and no figure stands in for it."""
    text = shown(gpu_space(with_hlo=False))
    assert "Missing: HLO programs" in text


def test_window_without_operations():
    """A report without operations is shown without tables."""
    plane = PlaneWriter("/host:CPU")
    plane.event("python", "train", 0, 5, step_num=1)
    text = shown(space(plane))
    assert "not known" in text
    assert "Missing: operations of a device" in text


def test_programs_that_are_left_out():
    """Programs that the tables leave out are named with their time."""
    assert "Not in the tables: jit_eval" in shown(two_programs(), program="jit_step")


@pytest.mark.parametrize("name", ["[dense]", "[/x]", ":smile:"])
def test_names_are_shown_as_they_are(name: str):
    """A scope and an operation whose names look like rich's markup are neither swallowed nor an error."""
    scope = name.replace("/", "")  # a slash parts scopes
    program = hlo_proto("jit_step", computation(1, instruction(1, name, "dot", f"jit(step)/{scope}/dot_general")))
    plane = PlaneWriter("/host:CPU")
    cpu_op(plane, "tf_XLAEigen/1", name, 0, 30)
    lines = shown(space(metadata_plane({7: ("jit_step", program)}), plane)).splitlines()
    assert any(line.startswith(f"{scope} ") for line in lines)
    assert any(line.startswith(f"{name} ") for line in lines)
