"""What reading a run raises."""

from trackside.errors import TracksideError


class RunError(TracksideError):
    """A run that cannot be found or read. The message names the path, what is wrong with it and what to do."""
