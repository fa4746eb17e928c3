"""The screen of ``top``: the user's jobs, the ranks and log of the selected one, and the keys that act on it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Resize
from textual.widgets import DataTable, Footer, RichLog, Static

from clusterrun.base.errors import ClusterrunError
from clusterrun.logs.show import live_lines
from clusterrun.state.pace import Pace
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import LIST_COLUMNS, handle
from clusterrun.terminal.plot import can_plot
from clusterrun.terminal.safe_text import safe_line
from clusterrun.terminal.tables import fit
from clusterrun.top import shown
from clusterrun.top.dialogs import KEYS, Question, TextWindow
from clusterrun.top.feeds import LOG_LINES, Jobs, LogFeed, QueueFeed, RanksFeed, Rows, RowsFeed
from clusterrun.top.source import Ranks, TopData, is_over

LEAVE_S = 20.0  # longer than a busy machine takes to restore a terminal
TICK = 0.5
MANY = 500
"""Number of ranks above which their ages are updated only with new answers."""
THEMES = {"dark": "textual-dark", "light": "textual-light"}


class Grid(DataTable[Text]):
    """Rows of plain text, each with a key; ``paint`` gives a cell its colour, and nothing in it is read as markup.

    Column widths are computed here: textual measures new rows only once it is idle, and a cell that is drawn before
    that stays cut to the old width.
    """

    def __init__(self, columns: Sequence[str], *, id: str, paint: Callable[[str], Text] = Text) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=True)
        self._names, self._paint = list(columns), paint
        self._rows: dict[str, tuple[str, ...]] = {}
        self._widths = [cell_len(name) for name in columns]

    def on_mount(self) -> None:
        for name, width in zip(self._names, self._widths, strict=True):
            self.add_column(name, width=width, key=name)

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        keys = list(self._rows)
        return keys[self.cursor_row] if 0 <= self.cursor_row < len(keys) else None

    def show(self, rows: Sequence[tuple[str, Sequence[str]]], columns: Sequence[str] | None = None) -> None:
        """Show these rows in this order, with new column headings if given."""
        new = {key: tuple(cells) for key, cells in rows}
        names = list(columns) if columns is not None else self._names
        widths = [max(map(cell_len, column)) for column in zip(names, *new.values(), strict=True)]
        if names == self._names and list(new) == list(self._rows) and _fit(widths, self._widths):
            self._update(new)
            return
        key, at = self.selected, self.cursor_row
        # rebuild the table if a column gets wider: to widen a column, textual measures every row for each cell
        self._names, self._widths, self._rows = names, widths, new
        self.clear(columns=True)
        self.on_mount()
        for row, cells in new.items():
            self.add_row(*map(self._paint, cells), key=row)
        keys = list(new)
        if keys:
            self.move_cursor(row=keys.index(key) if key in new else min(at, len(keys) - 1))

    def select(self, key: str) -> None:
        """Move the cursor to a row, if it exists."""
        if key in self._rows:
            self.move_cursor(row=list(self._rows).index(key))

    def _update(self, new: dict[str, tuple[str, ...]]) -> None:
        for key, cells in new.items():
            before = self._rows[key]
            for name, cell, old in zip(self._names, cells, before, strict=True):
                if cell != old:
                    self.update_cell(key, name, self._paint(cell))
        self._rows = new


def _fit(widths: Sequence[int], columns: Sequence[int]) -> bool:
    return all(width <= known for width, known in zip(widths, columns, strict=True))


class Tail(RichLog):
    """The end of a log in the colours of `logs`; a scrolled view stays in place until the window is resized."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, max_lines=LOG_LINES, min_width=0)

    def add(self, lines: Sequence[str]) -> None:
        """Show these lines below the others."""
        at_end = self.is_vertical_scroll_end
        for line in lines:
            self.write(Text.from_ansi(line), shrink=False, scroll_end=at_end)

    @on(Resize)
    def _show_end(self) -> None:
        self.scroll_end(animate=False, x_axis=False)


class Top(App[int]):
    """Show what the feeds have. Returns 0 for ``q``, 130 for Ctrl-C, 128+n for a signal."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave(0)", "Quit"),
        Binding("ctrl+c", "leave(130)", "Quit", show=False, priority=True),
        Binding("escape", "whole", "Back", show=False),
        Binding("enter", "job", "Job"),
        Binding("f", "log", "Log"),
        Binding("e", "explain", "Explain"),
        Binding("c", "cancel", "Cancel"),
        Binding("h", "hold", "Hold"),
        Binding("r", "refresh_now", "Refresh"),
        Binding("t", "theme", "Theme"),
        Binding("question_mark", "keys", "Keys"),
    ]
    CSS = """
    #top, #job, #message { height: 1; }
    #line, #job, #message, #bars { text-wrap: nowrap; text-overflow: ellipsis; }
    #line, #queue, #job, #message, #chart, #bars { padding: 0 1; }
    #top { background: $primary; color: $text; }
    #top.-problem { background: $error; }
    #line { width: 1fr; }
    #queue { width: auto; }
    #job, #message { background: $panel; }
    #chart { background: $surface; color: $text-muted; }
    #message, #chart { display: none; }
    #message.-some { display: block; }
    Grid { height: auto; scrollbar-size-horizontal: 0; }
    #jobs { max-height: 40%; }
    #below { height: 1fr; }
    #upper { height: auto; max-height: 50%; }
    #ranks { width: 1fr; max-height: 100%; }
    #log { height: 1fr; scrollbar-size-horizontal: 0; padding: 0 1; }
    #bars { height: auto; max-height: 40%; color: $text-muted; }
    .-wide.-high.-losses #upper { height: 50%; }
    .-wide.-high.-losses #ranks { width: 80; height: 100%; }
    .-wide.-high.-losses #chart { display: block; width: 1fr; height: 100%; }
    .-job #jobs, .-log #jobs, .-log #upper { display: none; }
    """

    def __init__(
        self,
        source: TopData,
        *,
        theme: str = "dark",
        selected: str = "",
        pace: Pace | None = None,
        notes: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.theme = THEMES[theme]
        self._source, self._notes = source, notes if notes is not None else []
        self._queue = QueueFeed(source.jobs, pace)
        self._rows = RowsFeed(self._queue, shown.job_rows)
        self._ranks = RanksFeed()
        self._tail: LogFeed | None = None
        self._tail_seen = 0
        self._first = selected  # the key of the row to select first
        self._states: dict[str, RunState] = {}
        self._key: str | None = None
        self._drawn: dict[str, tuple[object, ...]] = {}  # what a part of the screen was last drawn from
        self._end_seen: tuple[str, int] = ("", 0)
        self._loading_plots = threading.Thread(target=can_plot, name="top-plots", daemon=True)
        self._answers: SimpleQueue[Callable[[], None]] = SimpleQueue()

    # -- the screen ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield Static(id="line", markup=False)
            yield Static(id="queue", markup=False)
        yield Grid(["JOBID"], id="jobs", paint=shown.painted)
        yield Static(id="job", markup=False)
        with Vertical(id="below"):
            with Horizontal(id="upper"):
                yield Grid(shown.RANK_COLUMNS, id="ranks", paint=shown.painted_rank)
                yield Static(id="chart", markup=False)
            yield Tail(id="log")
            yield Static(id="bars", markup=False)
        yield Static(id="message", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        if threading.current_thread() is threading.main_thread():  # only this thread receives signals
            for number in (signal.SIGTERM, signal.SIGHUP):  # restore the terminal when killed
                asyncio.get_running_loop().add_signal_handler(number, self._leave_when_killed, 128 + number)
        self.query_one("#jobs", Grid).focus()
        for feed in (self._queue, self._rows, self._ranks):
            feed.start()
        self._loading_plots.start()
        self.set_interval(TICK, self.tick)
        if self._first:
            self.screen.add_class("-job")
        self.tick()

    def on_unmount(self) -> None:
        for feed in (self._queue, self._rows, self._ranks, self._tail):
            if feed is not None:
                feed.close()

    def tick(self) -> None:
        """Show what is new, and the age of the rest."""
        if not self.is_running:  # closing: the timer outlives the widgets for a moment
            return
        jobs, now = self._queue.latest, time.monotonic()
        self._static("queue").update(shown.queue_line(jobs, now))
        self._show_jobs(self._rows.latest)
        self._show_job(jobs)
        self._show_log()
        if self._notes:
            self._message(self._notes.pop(0))
        while True:
            try:
                self._answers.get_nowait()()
            except Empty:
                break

    def _show_jobs(self, rows: Rows) -> None:
        grid = self._grid("jobs")
        width = (grid.scrollable_content_region.width or self.size.width) - 2  # zero while hidden
        if not self._is_new("jobs", rows, width):
            return
        jobs, cells = rows
        self._states = dict(zip(cells, jobs.states, strict=True))
        # laid out as `list` does, each row one cell: a narrow terminal loses the least important columns first
        heading, *lines = fit(LIST_COLUMNS, list(cells.values()), width)
        grid.show([(key, [line]) for key, line in zip(cells, lines, strict=True)], [heading])
        if self._first in self._states:
            grid.select(self._first)
            self._first = ""

    def _show_job(self, jobs: Jobs) -> None:
        key = self._grid("jobs").selected
        state = self._selected_job()
        self._select(key, state)
        of, ranks = self._ranks.latest
        ranks = ranks if of == key else Ranks()
        now, over = time.time(), state is not None and is_over(state)
        self._show_lines(jobs, state, ranks, now)
        second = int(now) if len(ranks.ranks) <= MANY else 0
        if self._is_new("ranks", ranks, second, over):
            self._grid("ranks").show(shown.rank_rows(ranks, now, over))
        self._show_chart(state.name if state is not None else "", ranks)
        if ranks.ended and not over:
            self._query_end((of, ranks.attempt))

    def _show_lines(self, jobs: Jobs, state: RunState | None, ranks: Ranks, now: float) -> None:
        """Show what matters most in the first line, and the figures of the job above its ranks."""
        if jobs.problem:
            first = f"NO ANSWER: {safe_line(jobs.problem)}"
        elif state is not None:
            first = shown.what_matters(state, ranks, now)
        else:
            first = "no active jobs; `clusterrun submit` starts one" if jobs.at is not None and not jobs.states else ""
        self._static("line").update(first)
        self.screen_stack[0].query_one("#top").set_class(bool(jobs.problem), "-problem")
        self._static("job").update(shown.job_line(ranks, now, state is not None and is_over(state)))

    def _show_chart(self, name: str, ranks: Ranks) -> None:
        """Draw the losses, where there is room; the library loads in a thread, as its files may be far away."""
        is_loaded = not self._loading_plots.is_alive() and can_plot()
        self.screen_stack[0].set_class(is_loaded and len(ranks.losses[0]) > 1, "-losses")
        chart = self._static("chart")
        has_room = chart.display and min(chart.content_size) > 0
        if has_room and self._is_new("chart", ranks, *chart.content_size):
            text = Text(shown.loss_chart(name, ranks, *chart.content_size))
            text.highlight_regex(r"[\u2801-\u28ff]+", "cyan")
            chart.update(text)

    def _is_new(self, part: str, *values: object) -> bool:
        """Return whether a part of the screen was last drawn from other values; it is drawn from these now."""
        is_new = self._drawn.get(part) != values
        self._drawn[part] = values
        return is_new

    def _query_end(self, attempt: tuple[str, int]) -> None:
        """Query the scheduler, once, about a job whose end record says that it has ended."""
        if self._end_seen != attempt:
            self._end_seen = attempt
            self._queue.query_soon()

    def _close_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
        self._tail, self._tail_seen = None, 0
        self._log_pane().clear()
        self._show_bars([])

    def _select(self, key: str | None, state: RunState | None) -> None:
        """Follow another job: its files, and its log once it has one."""
        logs = None
        if state is None:
            self._ranks.select(key or "", None)
        else:
            self._ranks.select(key or "", partial(self._source.ranks, state))
            logs = self._source.logs(state)
        if key == self._key and (self._tail is not None or logs is None):
            return
        self._key = key
        self._close_tail()
        if logs is not None:
            self._tail = LogFeed(logs)
            self._tail.start()
        elif state is not None and state.record is None:
            self._log_pane().add(
                [f"-- submitted with another tool; run `clusterrun logs {handle(state)}` to see the log"]
            )

    def _show_log(self) -> None:
        if self._tail is None:
            return
        self._tail_seen, lines = self._tail.new(self._tail_seen)
        if self._tail.problem:
            lines.append(f"-- {safe_line(self._tail.problem)}")
            self._tail.problem = ""
        if lines:
            self._log_pane().add(lines)
        self._show_bars(live_lines(self._tail.bars))

    def _show_bars(self, lines: Sequence[str]) -> None:
        """Show below the log the progress bars that ranks draw now."""
        pane = self._static("bars")
        pane.update("\n".join(lines))
        pane.display = bool(lines)

    def _static(self, name: str) -> Static:
        return self.screen_stack[0].query_one(f"#{name}", Static)

    def _log_pane(self) -> Tail:
        return self.screen_stack[0].query_one("#log", Tail)

    def _grid(self, name: str) -> Grid:
        return self.screen_stack[0].query_one(f"#{name}", Grid)  # a dialog may cover it

    # -- the keys --------------------------------------------------------------------------------------------------

    def action_leave(self, status: int) -> None:
        self.exit(status)

    def _leave_when_killed(self, status: int) -> None:
        """Leave; if the driver of a lost terminal does not end within LEAVE_S, end the process anyway."""
        last = threading.Timer(LEAVE_S, os._exit, [status])
        last.daemon = True
        last.start()
        self.action_leave(status)

    def action_whole(self) -> None:
        self.screen.remove_class("-job", "-log")
        self._grid("jobs").focus()

    def action_job(self) -> None:
        self.screen.remove_class("-log")
        self.screen.add_class("-job")
        self._grid("ranks").focus()

    @on(DataTable.RowSelected, "#jobs")
    def _row_selected(self) -> None:
        self.action_job()  # the table handles the enter key itself

    def action_log(self) -> None:
        self.screen.remove_class("-job")
        if self.screen.toggle_class("-log").has_class("-log"):
            self.query_one("#log", Tail).focus()
        else:
            self._grid("jobs").focus()

    def action_refresh_now(self) -> None:
        self._queue.query_soon()

    def action_theme(self) -> None:
        self.theme = THEMES["light" if self.theme == THEMES["dark"] else "dark"]

    def action_keys(self) -> None:
        window = TextWindow("keys")
        window.show(KEYS)
        self.push_screen(window)

    def action_explain(self) -> None:
        if (state := self._selected_job()) is None:
            return
        window = TextWindow(handle(state))
        self.push_screen(window)
        self._do(lambda: "\n".join(self._source.explain(state)), window.show)

    def action_cancel(self) -> None:
        if (state := self._selected_job()) is not None:
            named = f"{handle(state)} ({state.record.name})" if state.record is not None else handle(state)
            self._confirm(f"Cancel {named}?", lambda: self._source.cancel(state))

    def action_hold(self) -> None:
        if (state := self._selected_job()) is not None:
            self._message(f"querying Slurm about {handle(state)} …")
            self._do(lambda: self._source.hold(state), self._done)

    def _confirm(self, question: str, act: Callable[[], str]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._message("…")
                self._do(act, self._done)

        self.push_screen(Question(question), answered)

    def _selected_job(self) -> RunState | None:
        key = self._grid("jobs").selected
        return self._states.get(key) if key is not None else None

    def _do(self, act: Callable[[], str], then: Callable[[str], None]) -> None:
        """Run an action in a thread, and pass its message to ``then`` at a later tick."""

        def work() -> None:
            try:
                text = act()
            except ClusterrunError as error:
                text = "  ".join(part for part in (error.message, error.detail, error.hint) if part)
            except Exception as error:  # show the error and keep the view alive
                text = f"{type(error).__name__}: {error}"
            self._answers.put(lambda: then(text))

        threading.Thread(target=work, name="top-act", daemon=True).start()

    def _done(self, text: str) -> None:
        self._message(text)
        self._queue.query_soon()

    def _message(self, text: str) -> None:
        line = self._static("message")
        line.update(safe_line(" ".join(text.split())))
        line.add_class("-some")
