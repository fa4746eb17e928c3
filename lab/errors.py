"""The one error of the lab."""


class LabError(RuntimeError):
    """A lab operation failed; the text names it and shows the end of the log with the reason."""
