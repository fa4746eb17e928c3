"""Save the code of a job at its submission, so that the job runs this code whatever is edited afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterrun.base.errors import CommandError, RequestError
from clusterrun.base.units import format_bytes
from clusterrun.config.files import is_file
from clusterrun.jobspec.spec import Command, JobSpec, Module, Script, Work
from clusterrun.records import code_store
from clusterrun.records.code_store import DIFF, RECORD, Snapshot, TooLarge, load_snapshot, tree_of
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.submit import staged_environment
from clusterrun.submit.plan import Plan
from clusterrun.system import work_tree
from clusterrun.system.work_tree import WorkTree

_SHOWN = 3  # submodules in a line
_OWN_CODE = (Script, Module, Command)


def stage(
    plan: Plan, store: Store, lines: Iterable[str], environ: Mapping[str, str], notify: Callable[[str], None]
) -> None:  # fmt: skip
    """Write a run to disk with its code before it is submitted; ``lines`` are those of the checks.

    Raises RequestError, after which the run does not exist.
    """
    check_option(plan.spec, plan.submission.workdir)
    store.prepare(plan.spec.shared)
    about_code: list[str] = []
    code = save_code(plan.spec, plan.submission.workdir, plan.record.root, environ, about_code.append)
    for line in (*lines, *about_code):
        notify(line)
    code |= staged_environment.pack(plan, environ, notify)
    store.stage(plan.record, plan.spec_json(), plan.script, plan.notify, code)


def check_option(spec: JobSpec, workdir: Path) -> None:
    """Raise RequestError for a --snapshot without code that can be saved."""
    if not spec.snapshot:
        return
    if isinstance(spec.work, _OWN_CODE):
        if not work_tree.is_inside(workdir):
            hint = f"run `git init` in {workdir}, or remove --snapshot"
            raise RequestError(f"--snapshot: {workdir} is not in a git work tree", hint=hint)
    elif spec.sources["snapshot"].source == "--snapshot":
        raise RequestError(f"--snapshot is only for your own code, not {spec.work.name}", hint="remove --snapshot")


def save_code(
    spec: JobSpec, workdir: Path, base: Path, environ: Mapping[str, str], notify: Callable[[str], None]
) -> dict[str, str]:  # fmt: skip
    """Save the code of a script, module or command, and return the files for the run's folder; none without code.

    ``base`` holds ``.clusterrun``; ``notify`` gets a line about what was saved. Without --snapshot, code that is not in
    a git work tree, or that git cannot list, is not saved. Raises RequestError for code that cannot be saved.
    """
    if not _is_saved(spec, workdir) or not isinstance(spec.work, _OWN_CODE):
        return {}
    try:
        tree = work_tree.load_work_tree(workdir, environ)
        saved = _save(tree, spec.work, base)
    except (CommandError, RequestError) as error:
        if not spec.snapshot:
            why = (error.detail.splitlines() or [error.message])[0]
            notify(f"code not saved: {why}; the job will run the files as they are when it starts")
            return {}
        if isinstance(error, RequestError):
            raise
        raise RequestError(
            f"--snapshot: git cannot list the files: {error.message}", detail=error.detail,
            hint=f"run `git status` in {workdir}, or remove --snapshot",
        ) from error  # fmt: skip
    notify(f"code: {saved.line}, saved")
    for line in _not_saved(spec.work, saved, tree.submodules):
        notify(f"not saved: {line}")
    diff = work_tree.diff(tree, environ)
    record = {RECORD: json.dumps(saved.to_json(), indent=1)}
    return {**record, DIFF: diff} if diff else record


def save_again(
    run: RunRecord, spec: JobSpec, workdir: Path, environ: Mapping[str, str], notify: Callable[[str], None]
) -> dict[str, str]:  # fmt: skip
    """Save the current code for a run that is resumed, and return the files for its folder; an empty one is to go.

    ``notify`` gets a line about what was saved. Raises RequestError for a built-in task, and as :func:`save_code` does.
    """
    if not isinstance(spec.work, _OWN_CODE):
        raise RequestError(
            f"--current-code is only for your own code, not {spec.work.name}", hint="remove --current-code"
        )
    check_option(spec, workdir)
    if not _is_saved(spec, workdir):
        notify("code not saved; the job will run the files as they are when it starts")
    return {RECORD: "", DIFF: "", **save_code(spec, workdir, run.root, environ, notify)}


def _is_saved(spec: JobSpec, workdir: Path) -> bool:
    """Return whether a job's own code is saved if that is possible."""
    return spec.snapshot is not False and work_tree.is_inside(workdir)


def _not_saved(work: Work, saved: Snapshot, submodules: Sequence[str]) -> Iterator[str]:
    """Yield what the saved code lacks, and what the job does instead."""
    if isinstance(work, Script) and not saved_path(work.path, saved.root):
        yield f"{work.path} is outside {saved.root}; the job will run the file as it is when the job starts"
    if submodules:
        shown = ", ".join(submodules[:_SHOWN]) + (", …" if len(submodules) > _SHOWN else "")
        yield f"git submodules ({shown}); the job will use their files as they are when it starts"


def saved_spec(run: RunRecord, spec: JobSpec, notify: Callable[[str], None]) -> JobSpec:
    """Return the specification of a run that is resumed, with the saved copy of its script.

    ``notify`` gets a line about the code that the run continues with. Raises RequestError if it has been deleted.
    """
    snapshot = load_snapshot(run)
    if snapshot is None:
        return spec
    current = f"clusterrun resume {run.job_id or run.run_id} --current-code"
    files = tree_of(run, snapshot) / code_store.FILES
    try:
        os.utime(files.parent)  # `clean` keeps recently used folders
    except OSError:
        message = f"the saved code of run {run.run_id} has been deleted"
        raise RequestError(message, hint=f"to continue with the current code: {current}") from None
    notify(f"code: {snapshot.line}, as saved at submission; to run the current code, use `{current}`")
    if not isinstance(spec.work, Script):
        return spec
    saved = files / saved_path(spec.work.path, snapshot.root)
    return replace(spec, work=replace(spec.work, path=str(saved))) if is_file(saved) else spec


def saved_path(path: str, root: str) -> str:
    """Return a path relative to the work tree ``root``, empty if it is outside."""
    real = os.path.realpath(path)
    return real.removeprefix(f"{root}/") if real.startswith(f"{root}/") else ""


def has_changed(run: RunRecord, work: Work, environ: Mapping[str, str]) -> bool:
    """Return whether the code that a run has saved is no longer that of its work tree; False if that is unknown."""
    snapshot = load_snapshot(run)
    if snapshot is None or not isinstance(work, _OWN_CODE):
        return False
    try:
        tree = work_tree.load_work_tree(Path(snapshot.root), environ)
        return code_store.digest_of(tree.root, _files(tree, work).items()) != snapshot.digest
    except (CommandError, OSError, TooLarge):
        return False


def _files(tree: WorkTree, work: Script | Module | Command) -> dict[str, str]:
    """Return the paths of the files to save, with git's ids of their content."""
    files = dict(tree.files)
    if not isinstance(work, Module) and (script := saved_path(work.path, str(tree.root))):
        files.setdefault(script, "")  # also a script that git ignores
    return files


def _save(tree: WorkTree, work: Script | Module | Command, base: Path) -> Snapshot:
    files = _files(tree, work)
    try:
        digest = code_store.save(base, tree.root, files.items())
    except TooLarge as error:
        largest = ", ".join(f"{path} ({format_bytes(size)})" for size, path in error.largest)
        raise RequestError(
            f"the code in {tree.root} is too large: {format_bytes(error.size)}; the limit is"
            f" {format_bytes(code_store.LIMIT)}; largest files: {largest}",
            hint="run `git rm --cached FILE` for large data files, or use --no-snapshot",
        ) from error
    except OSError as error:
        raise RequestError(
            f"cannot save the code: {error.filename2 or error.filename or base}: {error.strerror}",
            hint="nothing was submitted; if the disk is full, free some space, or use --no-snapshot",
        ) from error
    return Snapshot(
        root=str(tree.root), digest=digest, commit=tree.commit, branch=tree.branch, changed=tree.changed,
        files=len(files),
    )  # fmt: skip
