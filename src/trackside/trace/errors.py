"""What reading a trace raises."""

from trackside.errors import TracksideError


class TraceError(TracksideError):
    """A trace that cannot be found or read. The message names the file, what is wrong with it and what to do."""
