"""``--remote HOST`` and ``remote``: run a command on a cluster's login node, and install clusterrun there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from clusterrun import __version__
from clusterrun.base.errors import Ambiguous, RequestError, SchedulerError
from clusterrun.cli.common.session import json_option
from clusterrun.config.files import current_folder
from clusterrun.records.agreed import agree
from clusterrun.remote import files
from clusterrun.remote.run import INSTALLED, NOT_INSTALLED, Session
from clusterrun.remote.ssh import LOST, Host, Unreachable, find_host, find_target, require_agreement
from clusterrun.run_folder.files import state_folder
from clusterrun.run_folder.identity import new_identity
from clusterrun.terminal.ui import Ui

#: Commands that read the project's files, which are sent before.
READ_FILES = frozenset({"submit", "resubmit", "render", "plan", "check", "sweep", "free"})
#: Commands that change nothing: after a lost connection they can be run again.
CHANGE_NOTHING = frozenset(
    {"list", "status", "logs", "top", "wait", "why", "free", "render", "plan", "diff", "report", "init", ""}
)
#: Commands that submit jobs, and may get secrets.
SUBMIT = frozenset({"submit", "resubmit", "resume", "sweep"})
#: Commands about this machine or this installation.
STAY_HERE = frozenset({"remote", "tasks", "completion"})
#: Options of ``submit`` and ``resubmit`` that mean no new run, or several.
_NOT_ONE = frozenset({"--dry-run", "--recover", "--chain", "--ladder", "--array", "--failed"})


def dispatch(
    host: str | None, verb: str, words: Sequence[str], script: Sequence[str] | None, *, as_json: bool
) -> int | None:
    """Run a command line on another host and return its exit code, None if it is to run here.

    ``host`` is that of ``--remote``, None if only a profile names it. Raises ClusterrunError.
    """
    environ, cwd = dict(os.environ), current_folder(None)
    profile = _value_of("--profile", words)
    target = find_target(host, cwd, environ, profile)
    if target is None or _stays_here(verb, words):
        return None
    _refuse_files_there(verb, words, target.host)
    state = state_folder(environ)
    require_agreement(target, state)
    session = Session(target, find_host(target.host, state), Ui(verb, as_json=as_json), environ)
    session.host.connect()
    if verb in READ_FILES:
        with _working(session.ui, session.host, f"sending the project's files to {target.host}"):
            files.send(target, session.host, state)
    typed = [*words, *(() if script is None else ("--", *script))]
    status = _run(session, verb, list(words), typed)
    if status == NOT_INSTALLED and verb != "exec":
        raise SchedulerError(f"{target.host} has no clusterrun", hint=f"clusterrun remote setup {target.host}")
    return status


def _stays_here(verb: str, words: Sequence[str]) -> bool:
    """Return whether a command is about this machine; ``init`` with a name writes a job file, which is sent later."""
    has_name = len([word for word in words if not word.startswith("-")]) > 1
    return verb in STAY_HERE or (verb == "init" and has_name)


def _working(ui: Ui, host: Host, what: str) -> AbstractContextManager[None]:
    """Show what takes long, unless ssh may ask for a password meanwhile."""
    return ui.working(what) if host.socket is not None else nullcontext()


def _refuse_files_there(verb: str, words: Sequence[str], host: str) -> None:
    """Raise RequestError for a command that would write its result into a file on the other host."""
    if verb == "init" and "--print" not in words:
        hint = f"clusterrun --remote {host} init --print >clusterrun.toml"
        raise RequestError("init with --remote needs --print", hint=hint)
    if verb == "report" and not {"-", "-o-", "--output=-", "--terminal", "--json"} & {*words}:
        jobs = " ".join(word for word in words[1:] if word.isalnum())
        hint = f"clusterrun --remote {host} report {jobs or 'JOBID'} -o - >report.html"
        raise RequestError("report with --remote needs -o -, --terminal or --json", hint=hint)


def _run(session: Session, verb: str, words: list[str], typed: list[str]) -> int:
    if verb == "logs" and _follows(words):
        return _interruptible(session, typed)
    if verb in ("submit", "resubmit") and _is_one_run(words):
        return _submit(session, words, typed)
    status = _run_there(session, verb, typed)
    if status != LOST or (verb == "exec" and session.host.is_connected()):
        return status
    lost = f"cannot connect to {session.host.name}, or the connection was lost"
    if verb in CHANGE_NOTHING:
        raise Unreachable(lost, hint="run the command again")
    raise Ambiguous(
        f"{lost}; the command may have taken effect",
        hint=f"check with `clusterrun --remote {session.host.name} list` before you run the command again",
    )


def _run_there(session: Session, verb: str, typed: list[str]) -> int:
    """Run a command there, and ``wait`` again after each lost connection."""
    status = session.run_fed(typed) if verb in SUBMIT else session.run(typed)
    while status == LOST and verb == "wait":
        session.reconnect()
        status = session.run(typed)
    return status


def _is_one_run(words: list[str]) -> bool:
    return _NOT_ONE.isdisjoint(word.partition("=")[0] for word in words)


def _submit(session: Session, words: list[str], typed: list[str]) -> int:
    """Submit one run, once: it has an identity, by which it is looked up after a lost connection."""
    identity = new_identity()
    follow = "--follow" in words and "--json" not in words
    if follow:
        typed.remove("--follow")
    json = ["--json"] * ("--json" in words)
    try:
        status = session.run_fed(typed, identity)
        if status == LOST:
            printed = session.find_submission(words, identity)
            if "--wait" not in words:
                session.ui.raw(printed)
                status = 0
        while status == LOST:
            status = session.run_fed(["submit", "--recover", identity.run_id, "--wait", *json])
            if status == LOST:
                session.reconnect()
    except KeyboardInterrupt:
        session.ui.note(
            f"the submission may continue on {session.host.name}; run"
            f" `clusterrun --remote {session.host.name} submit --recover {identity.run_id}` to find or finish it"
        )
        raise
    return _interruptible(session, ["logs", identity.run_id, "-f"]) if follow and status == 0 else status


def _interruptible(session: Session, words: Sequence[str]) -> int:
    try:
        return session.follow(words)
    except KeyboardInterrupt:
        session.ui.note(
            f"the job was not cancelled; to cancel it, run `clusterrun --remote {session.host.name} cancel JOBID`"
        )
        raise


def _follows(words: Sequence[str]) -> bool:
    from clusterrun.cli.logs import logs

    try:
        typed = [word for word in words if word not in ("logs", "--debug")]
        context = logs.make_context("logs", typed, resilient_parsing=True, help_option_names=["-h", "--help"])
    except click.ClickException:
        return False  # the command there reports the error
    return bool(context.params.get("follow"))


def _value_of(option: str, words: Sequence[str]) -> str | None:
    for at, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and at + 1 < len(words):
            return words[at + 1]
    return None


@click.group()
def remote() -> None:
    """Set up another machine for `--remote HOST` (docs/remote.md)."""


@remote.command()
@click.argument("host")
@click.option("--python", metavar="PATH", help="Python to use on HOST, 3.11 or later; default: the first found.")
@click.option("--wheels", metavar="DIR", help="Install from the wheels in the local folder DIR; HOST needs no network.")
@click.option("--profile", metavar="NAME", help="Agree to the host and folder of [profile.NAME] in clusterrun.toml.")
@json_option
def setup(host: str, python: str | None, wheels: str | None, profile: str | None, as_json: bool) -> None:
    """Install this version of clusterrun on HOST, in ~/.local/share/clusterrun.

    If clusterrun.toml names HOST, or a folder there, commands in this project may use it from now on.

    \b
      clusterrun remote setup login.cluster.example
      clusterrun remote setup ann@cluster --python /opt/python3.12/bin/python3
    """
    from clusterrun.remote.setup import install

    state = state_folder(os.environ)
    there = find_host(host, state)
    target = find_target(host, current_folder(None), os.environ, profile)
    there.connect()
    ui = Ui("remote", as_json=as_json)
    with _working(ui, there, f"installing on {host}"):
        for line in install(there, python, Path(wheels) if wheels is not None else None, ui.note):
            ui.say(line)
    agreed = None
    if target is not None and target.profiles.remote_of_project:
        agree(state, *target.agreement)
        agreed = {"project": str(target.root), "folder": target.folder}
        ui.say(f"  project {target.root} is sent to {host}, in {target.folder} there")
    ui.data({"host": host, "version": __version__, "installed": f"~/{INSTALLED}", "agreed": agreed})
