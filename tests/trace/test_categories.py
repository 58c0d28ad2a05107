"""Operations by kind."""

import pytest

from trackside.trace.categories import categorise, categorise_by_name, is_collective, plain_opcode


@pytest.mark.parametrize(
    ("opcode", "category"),
    [
        ("dot", "matmul"),
        ("convolution", "convolution"),
        ("add", "elementwise"),
        ("reduce", "reduce"),
        ("transpose", "copy"),
        ("copy", "copy"),
        ("scatter", "gather/scatter"),
        ("all-reduce", "collective"),
        ("all-gather-start", "collective"),
        ("collective-permute-done", "collective"),
        ("rng-bit-generator", "rng"),
        ("sort", "sort"),
        ("while", "control flow"),
        ("infeed", "transfer"),
    ],
)
def test_opcode_gives_the_kind(opcode, category):
    """Every opcode has a kind."""
    assert categorise(opcode) == category


@pytest.mark.parametrize(
    ("fused", "category"),
    [
        (["parameter", "add", "dot"], "matmul"),
        (["parameter", "multiply", "reduce"], "reduce"),
        (["parameter", "broadcast", "add"], "elementwise"),
        (["parameter", "transpose", "bitcast"], "copy"),
        (["parameter"], "copy"),
    ],
)
def test_fusion_is_what_its_heaviest_part_is(fused, category):
    """A fusion that holds a matrix product is one, whatever else it does."""
    assert categorise("fusion", fused) == category


@pytest.mark.parametrize(
    ("target", "category"),
    [("__cublas$gemm", "matmul"), ("__cudnn$convForward", "convolution"), ("my_kernel", "custom-call")],
)
def test_custom_call_by_its_target(target, category):
    """Libraries' matrix products and convolutions are known by name."""
    assert categorise("custom-call", target=target) == category


def test_collectives_go_by_opcode():
    """The halves of an asynchronous collective are one; a name does not make a collective."""
    assert is_collective("reduce-scatter")
    assert plain_opcode("all-reduce-start") == "all-reduce"
    assert not is_collective("reduce")


@pytest.mark.parametrize(
    ("name", "told", "category"),
    [
        ("all-reduce.3", "", "collective"),
        ("fusion.2", "convolution fusion", "matmul/convolution"),
        ("copy.1", "", "copy"),
        ("void kernel<float>()", "", "unknown"),
    ],
)
def test_kind_without_the_program(name, told, category):
    """Without HLO, name and the profiler's own word must do, and what neither tells is unknown."""
    assert categorise_by_name(name, told) == category
