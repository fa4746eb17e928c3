"""The one error of the lab."""


class LabError(RuntimeError):
    """The lab could not do what was asked; the text says what failed and shows the tail of the log that knows why."""
