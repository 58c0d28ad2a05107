"""Lines found in bulk are those that splitting finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.runs.lines import split_lines

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"", b'{"kind":"metrics",', b'{"kind":"metrics","t":1}', b'{"kind":"metrics', b'{"kind":"leg"}']
        ),
        st.binary(max_size=20).map(lambda text: text.replace(b"\n", b" ")),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(lines=LINES)
def test_lines_are_those_of_the_block(lines: list[bytes]) -> None:
    """Each line that is not empty is found, and those that begin like metrics and go on are marked."""
    block = b"".join(line + b"\n" for line in lines)
    found = split_lines(block)
    expected = [line for line in lines if line]
    assert [block[start:end] for start, end in zip(found.starts, found.ends, strict=True)] == expected
    prefix = b'{"kind":"metrics",'
    assert found.is_metrics.tolist() == [line.startswith(prefix) and len(line) > len(prefix) for line in expected]


def test_torn_rows_of_metrics() -> None:
    """Rows of metrics that do not end like a row are counted, other lines are not."""
    block = b'{"kind":"metrics","t":1}\n{"kind":"metrics","t":\n{"kind":"leg\n{"kind":"metrics","t":2}\n'
    assert split_lines(block).num_torn_metrics(block) == 1
