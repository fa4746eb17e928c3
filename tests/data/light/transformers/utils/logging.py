"""The switches of transformers' own output, of which the stand-in has none."""


def get_verbosity() -> int:
    return 0


def set_verbosity(_: int) -> None:
    pass


def set_verbosity_error() -> None:
    pass


def is_progress_bar_enabled() -> bool:
    return False


def disable_progress_bar() -> None:
    pass


def enable_progress_bar() -> None:
    pass
