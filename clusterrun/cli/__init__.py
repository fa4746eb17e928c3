"""The command line: options in, one call of :class:`clusterrun.cluster.Cluster`, the result to ``ui``.

Every error ends here, and only here: one line, Slurm's own words, a hint, the exit code of its class.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

try:
    import click

    from clusterrun import __version__
    from clusterrun.cli import streams
    from clusterrun.errors import Ambiguous, ClusterrunError
except KeyboardInterrupt:  # on a slow file system these lines take seconds
    raise SystemExit(130) from None

#: verb -> the module that holds it: a verb is imported when it is typed, so that --help stays quick
VERBS: dict[str, str] = {
    "submit": "submit",
    "render": "submit",
    "logs": "logs",
    "status": "jobs",
    "list": "jobs",
    "wait": "jobs",
    "why": "why",
    "top": "top",
    "free": "free",
    "cancel": "cancel",
    "init": "init",
}
SUMMARIES: dict[str, str] = {
    "submit": "Start a run: a job file, your own script, or the default job.",
    "render": "Print the sbatch script and nothing else.",
    "logs": "Show or follow what the ranks print.",
    "status": "How jobs stand, and who says so.",
    "list": "The jobs that are not over.",
    "wait": "Wait for jobs; exit 0 when all are done.",
    "why": "Why a job waits, or what ended it.",
    "top": "A full-screen live view of jobs, ranks and logs.",
    "free": "What is free now, my limits, and where a job would start soonest.",
    "cancel": "Cancel jobs by id, name or state.",
    "init": "Look at the cluster and write a commented clusterrun.toml.",
}


class ReaderLeft(Exception):
    """Who read our output has gone (``| head``), which is no failure; click would make one of a BrokenPipeError."""


class Verbs(click.Group):
    """A group whose commands are imported when they are used."""

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
        command = getattr(import_module(f"clusterrun.cli.{VERBS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            raise click.UsageError(
                f"no such command: {args[0]}" + (f"\x00did you mean {near[0]}?" if near else ""), ctx
            )
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="clusterrun")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """From a training script to a finished multi-node PyTorch run on Slurm, or on this machine.

    \b
      clusterrun submit --nodes 2 --gpus-per-node 4                  the default job
      clusterrun submit --nodes 2 --gpus-per-node 4 -- train.py --lr 1e-4
      clusterrun logs JOBID -f
      clusterrun cancel JOBID

    Exit codes: 0 done, 1 the job failed, 2 the request is wrong, 3 the scheduler said no or did not answer,
    4 no such job, 75 not known (the line says how to settle it), 130 Ctrl-C, which never cancels a job.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: run a command and exit with its code; the one place where errors become text."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((w for w in words if w in VERBS), "")
    script: list[str] | None = None
    if command in ("submit", "render", "free") and "--" in words:
        # what follows is the user's script and its arguments: click never sees them
        at = words.index("--")
        words, script = words[:at], words[at + 1 :]
    debug, as_json = "--debug" in words, "--json" in words
    words = [word for word in words if word != "--debug"]
    streams.stand_ready()
    try:
        status = cli.main(words, prog_name="clusterrun", standalone_mode=False, obj=script)
    except click.exceptions.Exit as stop:
        status = stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx else "", file=sys.stderr)
        status = 2
    except click.ClickException as error:
        status = _report(_usage(error, command), command, as_json)
    except click.Abort:
        status = 130
    except KeyboardInterrupt:
        status = 130
    except (ReaderLeft, BrokenPipeError):
        streams.silence_output()
        status = 0
    except ClusterrunError as error:
        if debug:
            raise
        status = _report(error, command, as_json)
    except Exception as error:
        if debug:
            raise
        status = _last_resort(error, command, as_json)
    sys.exit(status if isinstance(status, int) else 0)


def _last_resort(error: Exception, command: str, as_json: bool) -> int:
    """What is no error of ours: no room for the output, or a mistake in clusterrun itself."""
    if streams.is_full(error):
        streams.silence_output()
        no_room = Ambiguous(
            f"the output cannot be written: {getattr(error, 'strerror', '')}",
            hint="what was asked may have been done all the same: look with `clusterrun list`",
        )
        return _report(no_room, command, False)  # an envelope would go where there is no room
    unforeseen = ClusterrunError(
        f"an error that clusterrun did not foresee: {type(error).__name__}: {error}",
        hint="the same command with --debug shows where; please report it",
    )
    return _report(unforeseen, command, as_json)


def _usage(error: click.ClickException, command: str) -> ClusterrunError:
    """click's error in our form: one line and a hint, exit 2."""
    from clusterrun.errors import RequestError

    message, _, hint = error.format_message().partition("\x00")
    if isinstance(error, click.NoSuchOption):
        message = f"no such option: {error.option_name}"
        near = difflib.get_close_matches(error.option_name, _options(error.ctx), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else ""
    known = isinstance(error, click.UsageError) and error.ctx is not None
    path = error.ctx.command_path if known else f"clusterrun {command}".rstrip()  # type: ignore[attr-defined]
    first = message.strip().splitlines()[0] if message.strip() else "wrong usage"
    return RequestError(first[0].lower() + first[1:].rstrip("."), hint=hint or f"{path} --help")


def _options(ctx: click.Context | None) -> list[str]:
    return [o for p in ctx.command.params for o in (*p.opts, *p.secondary_opts)] if ctx else []


def _report(error: ClusterrunError, command: str, as_json: bool) -> int:
    from clusterrun.terminal.ui import Ui

    Ui(command, as_json=as_json).error(error)
    return error.exit_code
