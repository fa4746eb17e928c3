"""The command line: parse options, call :class:`clusterrun.cluster.Cluster`, print the result with ``ui``.

Errors are printed here and nowhere else: one line, Slurm's own message, a hint, and the exit code of the class.
"""

from __future__ import annotations

import atexit
import gc
import os
import stat
import sys
from collections.abc import Sequence
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

gc.set_threshold(100_000)  # imports make many objects and no garbage: this saves 6 % of the start-up time
atexit.register(gc.freeze)  # nor does the end look for garbage in what ends with the process
try:
    import click

    from clusterrun import __version__
    from clusterrun.base.errors import Ambiguous, ClusterrunError, RequestError
    from clusterrun.cli.common.session import (
        AGENT,
        COMPLETE,
        Session,
        is_full,
        repair_streams,
        silence_output,
        use_utf8,
    )
except KeyboardInterrupt:  # on a slow file system these lines take seconds
    raise SystemExit(130) from None

HELP_WIDTH = 100
REMOTE = "CLUSTERRUN_REMOTE"
"""Set where a command of ``--remote`` runs: ``link`` if it gets more on standard input, else ``end``."""


#: The sections of ``--help``: each command, defined in the module of its name (``list``: listing.py), and its line.
SECTIONS = {
    "Run jobs": {
        "submit": "Submit a job file, your own script, or the default job.",
        "sweep": "Submit a job once for each set of parameters, as one array.",
        "resubmit": "Submit a job again as a new run, optionally with changes.",
        "resume": "Continue a stopped, cancelled or failed run from its checkpoints.",
        "cancel": "Cancel jobs by id, name or state.",
    },
    "Watch them": {
        "list": "List active jobs.",
        "status": "Show the state of jobs in detail.",
        "logs": "Show or follow the output of the ranks.",
        "top": "Show a full-screen live view of jobs, ranks and logs.",
        "wait": "Wait for jobs to end; exit 0 if all succeed.",
        "exec": "Run a command or a shell on a node of a running job.",
    },
    "Understand what happens": {
        "why": "Explain why a job is pending or how it ended.",
        "diff": "Compare two jobs: options, code, environment, metrics.",
        "push": "Upload the finished model of a run to the Hugging Face Hub.",
        "report": "Write an HTML page about a run, or plot its curves in the terminal.",
        "check": "Check nodes and links with a short job, or check that a run got what it requested.",
    },
    "Plan and set up": {
        "plan": "Plan steps, learning rates, memory and speed for several GPU counts.",
        "free": "Show free GPUs, your limits, and where a job would start soonest.",
        "render": "Print the sbatch script.",
        "mcp": "Serve these commands to a coding agent over the Model Context Protocol.",
        "clean": "Delete checkpoints, caches and saved code that no run needs any more.",
        "init": "Write a commented clusterrun.toml, or with NAME a commented job file.",
        "tasks": "List the built-in tasks, or the settings of one.",
        "completion": "Print or install the shell's completion.",
        "remote": "Install clusterrun on another machine for --remote.",
    },
}
VERBS = tuple(verb for summaries in SECTIONS.values() for verb in summaries)
TAKE_SCRIPT = frozenset({"submit", "resubmit", "render", "free", "exec", "sweep"})
"""The verbs with words of the user's after ``--``."""


class ReaderLeft(Exception):
    """The reader of our output has closed the pipe (``| head``); click would report a BrokenPipeError as a failure."""


class Verbs(click.Group):
    """The commands of ``VERBS``, each imported when it is used, so that ``--help`` stays quick."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        # clusterrun.cli.list would hide `list` in this module
        module = {"list": "listing", "resume": "resubmit"}.get(cmd_name, cmd_name)
        for value in vars(import_module(f"clusterrun.cli.{module}")).values():
            if isinstance(value, click.Command) and value.name == cmd_name:
                return value
        raise LookupError(f"clusterrun/cli/{module}.py defines no command {cmd_name}")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        from clusterrun.cli.common.complete import described  # without an import of each command

        return [item for summaries in SECTIONS.values() for item in described(summaries.items())]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, summaries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(summaries.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = args[0] if args else ""
        if verb and verb not in VERBS and not verb.startswith("-"):
            raise click.UsageError(f"no such command: {verb}\x00{_meant_command(verb)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH})
@click.version_option(__version__, prog_name="clusterrun")
@click.option("--debug", is_flag=True, help="Show a traceback on error.")
@click.option(
    "--remote", metavar="HOST", help="Run the command on the login node HOST over ssh; allowed anywhere before `--`."
)
@click.option("--color", metavar="WHEN", help="Use colors always, never or auto (on a terminal, without NO_COLOR).")
def cli(debug: bool, remote: str | None, color: str | None) -> None:
    """Launch, follow and debug multi-node PyTorch training on Slurm, or on this machine.

    \b
      clusterrun submit --nodes 2 --gpus-per-node 4                  the default job
      clusterrun submit --nodes 2 --gpus-per-node 4 -- train.py --lr 1e-4
      clusterrun logs JOBID -f
      clusterrun cancel JOBID

    Exit codes: 0 done, 1 the job failed, 2 invalid request, 3 the scheduler refused or did not respond,
    4 no such job, 75 outcome unknown (the message says what to do), 130 Ctrl-C (jobs that you submitted keep running).
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code; the only place that turns errors into text."""
    if argv is None:
        use_utf8()
        argv = sys.argv[1:]
    host, words = _take("--remote", list(argv))
    command = next((word for word in words if word in VERBS), "")
    words, script = _split_script(words, takes_script=command in TAKE_SCRIPT)
    debug, as_json = "--debug" in words, "--json" in words
    repair_streams()
    try:
        status = _run(host, command, words, script, as_json)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = 130
    except (ReaderLeft, BrokenPipeError):
        silence_output()
        status = 0
    except Exception as error:
        if debug and not isinstance(error, click.ClickException):
            raise
        status = _report(error, command, as_json)
    sys.exit(status)


def _split_script(words: list[str], *, takes_script: bool) -> tuple[list[str], list[str] | None]:
    """Return the words for click, and those after ``--``, which click must not parse; None without ``--``."""
    if not takes_script or "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _run(host: str | None, command: str, words: list[str], script: list[str] | None, as_json: bool) -> int:
    """Run a command, here or on another host, and return its exit code."""
    if COMPLETE in os.environ:
        from clusterrun.cli.common.complete import answer

        answer(cli)
        return 0
    if not _stays_here(host, words):
        status = _run_remote(host, command, words, script, as_json)
        if status is not None:
            return status
    words = _choose_colors([word for word in words if word != "--debug"])
    result = cli.main(
        words, prog_name="clusterrun", standalone_mode=False, obj=_session(script), terminal_width=_help_width()
    )
    return result if isinstance(result, int) else 0


def _session(script: list[str] | None) -> Session:
    if os.environ.get(REMOTE) != "link":
        return Session(script)
    from clusterrun.cli.common.link import read_link

    return Session(script, *read_link(sys.stdin.read(), os.environ))


def _take(option: str, words: list[str]) -> tuple[str | None, list[str]]:
    """Return the value of an option (None without it), and the words without it; what follows ``--`` stays."""
    for at, word in enumerate(words):
        if word == "--":
            break
        if word.startswith(f"{option}="):
            return word.partition("=")[2], words[:at] + words[at + 1 :]
        if word == option and words[at + 1 : at + 2] not in ([], ["--"]):
            return words[at + 1], words[:at] + words[at + 2 :]
    return None, words  # an option without a value is reported later


def _choose_colors(words: list[str]) -> list[str]:
    """Return the words without ``--color``, which applies from now on. Raises RequestError."""
    when, words = _take("--color", words)
    if when is not None:
        from clusterrun.terminal import paint

        if when not in paint.CHOICES:
            raise RequestError(f"--color: not a choice: {when[:40]!r}", hint=f"use {', '.join(paint.CHOICES)}")
        paint.Colours.chosen = when
    return words


def _profile_names_remote() -> bool:
    """Return whether a profile that may apply contains the word ``remote``; reads a few small files."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.environ.get("HOME", ""), ".config")  # noqa: PTH118
    try:
        folder = os.getcwd()  # noqa: PTH109
    except OSError:  # it was deleted
        folder = ""
    if _has_word(os.path.join(base, "clusterrun", "config.toml")):  # noqa: PTH118
        return True
    while folder:
        if _has_word(os.path.join(folder, "clusterrun.toml")):  # noqa: PTH118
            return True
        folder = folder.rpartition("/")[0]
    return False


def _has_word(path: str) -> bool:
    """Return whether a plain file contains ``remote``; a FIFO or a device must not block the command."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and b"remote" in os.read(descriptor, 256_000)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _stays_here(host: str | None, words: list[str]) -> bool:
    """Return whether a command runs on this machine whatever a profile names. Raises RequestError."""
    if AGENT not in os.environ:
        return REMOTE in os.environ or "--help" in words or "-h" in words
    if host is not None:
        raise RequestError("an agent's command runs on this machine, without --remote")
    return True


def _run_remote(
    host: str | None, command: str, words: list[str], script: list[str] | None, as_json: bool
) -> int | None:
    """Run the command on another host and return its exit code; None if it is to run here, which costs no import."""
    if "--remote" in words:
        raise RequestError("--remote needs a host", hint="clusterrun --remote USER@HOST list")
    if host == "":
        return None
    if host is None and not (command and _profile_names_remote()):
        return None
    from clusterrun.cli.remote import dispatch

    return dispatch(host, command, words, script, as_json=as_json)


def _report(error: Exception, command: str, as_json: bool) -> int:
    """Print an error of any class, and return its exit code."""
    from clusterrun.terminal.ui import Ui

    if isinstance(error, click.exceptions.NoArgsIsHelpError) and error.ctx is not None:
        print(error.ctx.get_help(), file=sys.stderr)
        return 2
    if is_full(error):
        silence_output()
        as_json = False  # there is no space for an envelope either
    reported = _as_own_error(error, command)
    Ui(command, as_json=as_json).error(reported)
    return reported.exit_code


def _as_own_error(error: Exception, command: str) -> ClusterrunError:
    """Return an error as one of the project's, with a hint and an exit code."""
    if isinstance(error, ClusterrunError):
        return error
    if isinstance(error, click.ClickException):
        return _usage(error, command)
    if is_full(error):
        return Ambiguous(
            f"cannot write the output: {getattr(error, 'strerror', '')}",
            hint="the command may have taken effect; check with `clusterrun list`",
        )
    return ClusterrunError(
        f"unexpected error: {type(error).__name__}: {error}",
        hint="run the command again with --debug and report the traceback",
    )


def _usage(error: click.ClickException, command: str) -> RequestError:
    """Return click's error as a RequestError: one line and a hint, exit 2."""
    ctx: click.Context | None = getattr(error, "ctx", None)  # of a UsageError
    message, _, hint = error.format_message().partition("\x00")
    if isinstance(error, click.NoSuchOption):
        message = f"no such option: {error.option_name}"
        hint = _meant_option(error.option_name, ctx)
    if not hint:
        path = ctx.command_path if ctx is not None else f"clusterrun {command}".rstrip()
        hint = f"{path} last" if _lacks_job(error) else f"{path} --help"
    first = (message.strip() or "wrong usage").splitlines()[0]
    return RequestError(first[0].lower() + first[1:].rstrip("."), hint=hint)


def _lacks_job(error: click.ClickException) -> bool:
    """Return whether the only job that a command takes was not typed."""
    return isinstance(error, click.MissingParameter) and error.param is not None and error.param.name == "job_id"


def _meant_command(typed: str) -> str:
    from clusterrun.cli.common.meanings import meant_command

    return meant_command(typed, VERBS)


def _meant_option(typed: str, ctx: click.Context | None) -> str:
    from clusterrun.cli.common.meanings import meant_option

    return meant_option(typed, _options(ctx), sys.argv[1:])


def _options(ctx: click.Context | None) -> list[str]:
    return [o for p in ctx.command.params for o in (*p.opts, *p.secondary_opts)] if ctx else []


def _help_width() -> int:
    """Return the width of help texts, as click computes it but without importing shutil and its archive formats."""
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size().columns
    except (ValueError, OSError):
        columns = 0
    return max(min(columns or 80, HELP_WIDTH) - 2, 50)
