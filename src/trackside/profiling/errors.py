"""What measuring raises."""

from trackside.errors import TracksideError


class CaptureError(TracksideError):
    """A profile that could not be taken or written."""
