"""Operations by kind: what the device is doing, whatever the compiler named it."""

from collections.abc import Collection

CONTROL_FLOW = frozenset({"while", "conditional", "call", "async-start", "async-update", "async-done"})
"""What only holds other operations: its time is theirs."""

COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
    }
)

_BY_OPCODE = {
    "dot": "matmul",
    "ragged-dot": "matmul",
    "scaled-dot": "matmul",
    "convolution": "convolution",
    "custom-call": "custom-call",
    **dict.fromkeys(("reduce", "reduce-window", "select-and-scatter"), "reduce"),
    **dict.fromkeys(("gather", "scatter", "dynamic-slice", "dynamic-update-slice"), "gather/scatter"),
    **dict.fromkeys(("rng", "rng-bit-generator", "rng-get-and-update-state"), "rng"),
    **dict.fromkeys(("sort", "topk"), "sort"),
    **dict.fromkeys(("cholesky", "triangular-solve", "fft"), "linear algebra"),
    **dict.fromkeys(
        (
            "bitcast",
            "bitcast-convert",
            "broadcast",
            "concatenate",
            "copy",
            "copy-done",
            "copy-start",
            "iota",
            "pad",
            "reshape",
            "reverse",
            "slice",
            "transpose",
        ),
        "copy",
    ),
    **dict.fromkeys(("infeed", "outfeed", "recv", "recv-done", "send", "send-done"), "transfer"),
    **dict.fromkeys(CONTROL_FLOW, "control flow"),
}
_NOT_WORK = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "fusion", *CONTROL_FLOW})
_HEAVIEST_FIRST = ("convolution", "matmul", "linear algebra", "sort", "reduce", "gather/scatter", "rng", "elementwise")
_MATMUL_TARGETS = ("gemm", "matmul", "dot", "cublas")
_CONVOLUTION_TARGETS = ("conv", "cudnn")


def plain_opcode(opcode: str) -> str:
    """The opcode without the halves that an asynchronous operation is split into."""
    return opcode.removesuffix("-start").removesuffix("-done")


def is_collective(opcode: str) -> bool:
    """Whether devices talk to each other in it."""
    return plain_opcode(opcode) in COLLECTIVES


def categorise(opcode: str, fused: Collection[str] = (), target: str = "") -> str:
    """The kind of an operation.

    Args:
        opcode: Its HLO opcode.
        fused: For a fusion, the opcodes that it fuses: the heaviest of them gives the kind.
        target: For a custom call, what it calls.
    """
    if is_collective(opcode):
        return "collective"
    if opcode == "custom-call":
        return _categorise_target(target.lower())
    if opcode == "fusion" and fused:
        kinds = {categorise(inner) for inner in fused if inner not in _NOT_WORK}
        return next((kind for kind in _HEAVIEST_FIRST if kind in kinds), next(iter(sorted(kinds)), "copy"))
    return _BY_OPCODE.get(opcode, "elementwise")


def _categorise_target(target: str) -> str:
    if any(word in target for word in _CONVOLUTION_TARGETS):
        return "convolution"
    if any(word in target for word in _MATMUL_TARGETS):
        return "matmul"
    return "custom-call"


def categorise_by_name(name: str, told: str = "") -> str:
    """The kind of an operation whose program the trace does not hold.

    Args:
        name: The operation's name, which begins with its opcode for all but fusions.
        told: What the profiler itself calls its kind, where it does.
    """
    text = f"{told} {name}".lower()
    if any(collective in text for collective in COLLECTIVES):
        return "collective"
    if "convolution" in told.lower():
        # On a TPU a matrix product is called a convolution, too.
        return "matmul/convolution"
    opcode = name.partition(".")[0]
    if opcode in _BY_OPCODE:
        return _BY_OPCODE[opcode]
    return "unknown"
