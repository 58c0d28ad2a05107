"""The signal between a value's codec, which knows what it expects, and its caller, which knows the field."""


class Mismatch(Exception):  # noqa: N818 - never seen by users: it becomes a ConfigError with the field's path
    """A value that is not what an annotation asks for.

    Args:
        expected: What would have been right, as it should read after "expected".
    """

    def __init__(self, expected: str):
        super().__init__(expected)
        self.expected = expected
