"""Dialogs over the view: a yes/no question, and a text to read."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from clusterrun.terminal.safe_text import safe_line
from clusterrun.top.shown import painted, wrapped

#: The help on keys; labels have one width, so that wrapped lines can be indented under their text.
KEYS = "\n".join(
    f"{key:>7}  {does}"
    for key, does in (
        ("arrows", "select a job (also page up, page down, ctrl+home and ctrl+end)"),
        ("tab", "move to the ranks, then to the job's log; the arrow keys scroll"),
        ("enter", "show only this job: its ranks and its log"),
        ("f", "show only the log and follow it; press again to show everything"),
        ("esc", "show everything"),
        ("e", "explain the job, like `clusterrun why`"),
        ("c", "cancel the job (asks first)"),
        ("h", "hold a pending job, or release a held job"),
        ("r", "query Slurm now (at most once every ten seconds)"),
        ("t", "switch between dark and light colors"),
        ("?", "show these keys"),
        ("q", "quit (also ctrl+c); jobs are not affected"),
    )
)


class Question(ModalScreen[bool]):
    """A question; only the key ``y`` means yes, so that no job is cancelled by mistake."""

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


class Page(Static):
    """A text, wrapped again whenever its width changes."""

    def __init__(self, text: str) -> None:
        super().__init__(text, markup=False)
        self._text = text

    def show(self, text: str) -> None:
        self._text = text
        self.on_resize()

    def on_resize(self) -> None:
        if width := self.size.width:  # none before it is mounted; then it gets one
            self.update(Text("\n").join(map(painted, wrapped(self._text, width).splitlines())))


class TextWindow(ModalScreen[None]):
    """A text of several lines, which may arrive after its window opens; ``title`` is read as markup."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,e,enter,question_mark", "close", "Close")]
    DEFAULT_CSS = """
    TextWindow { align: center middle; }
    TextWindow > VerticalScroll { width: 94%; height: 90%; padding: 0 1; border: solid $primary; background: $surface; }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._page = Page("loading …")

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = self._title
            box.border_subtitle = "esc to close"
            yield self._page

    def show(self, text: str) -> None:
        """Show the text; the window may not be there yet, or be closed again."""
        self._page.show(text)

    def action_close(self) -> None:
        self.dismiss(None)
