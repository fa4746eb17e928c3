"""What stands before the view for a moment: a question, and a text to read."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from clusterrun.terminal.safe_text import safe_line
from clusterrun.top.shown import wrapped

#: What the keys do, each under its name as wide as the widest, so that a line that is broken goes on under its words.
KEYS = "\n".join(
    f"{key:>7}  {does}"
    for key, does in (
        ("arrows", "choose a job; so do page up, page down, ctrl+home and ctrl+end"),
        ("tab", "on to the job's ranks and its log, which the same keys scroll"),
        ("enter", "this job alone: its ranks and its log"),
        ("f", "the log alone, followed; again for everything"),
        ("esc", "everything again"),
        ("e", "explains the job, as `clusterrun why` does"),
        ("c", "cancels the job, once y has said so"),
        ("h", "holds a job that waits, releases one that is held"),
        ("r", "asks Slurm now, though not within ten seconds of the last time"),
        ("t", "dark or light"),
        ("?", "these keys"),
        ("q", "leaves; so does ctrl+c. Neither touches a job"),
    )
)


class Question(ModalScreen[bool]):
    """A question that only ``y`` answers with yes: no key that one presses by mistake."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]
    DEFAULT_CSS = """
    Question { align: center middle; }
    Question > Vertical { width: auto; max-width: 90%; height: auto; padding: 1 2; border: solid $warning; }
    Question Static { width: auto; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(f"{safe_line(self._text)}  y/n", markup=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Reading(ModalScreen[None]):
    """A text of several lines, which may come later than its window; the title is ours, as it is read as markup."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,e,enter,question_mark", "close", "Close")]
    DEFAULT_CSS = """
    Reading { align: center middle; }
    Reading > VerticalScroll { width: 94%; height: 90%; padding: 0 1; border: solid $primary; background: $surface; }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title, self._text = title, "asking …"

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = self._title
            box.border_subtitle = "esc closes"
            yield Static(self._text, markup=False, id="reading")

    def show(self, text: str) -> None:
        """Put the text in the window; one that was closed while the answer was on its way needs none."""
        self._text = text
        for box in self.query(VerticalScroll):
            self.query_one("#reading", Static).update(wrapped(text, box.scrollable_content_region.width))

    def on_resize(self) -> None:
        self.show(self._text)

    def action_close(self) -> None:
        self.dismiss(None)
