"""Each command that clusterrun prints or documents is one that its own command line takes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterrun.cli import VERBS, cli, main
from clusterrun.records.store import Store
from clusterrun.scheduler.slurm.reasons import find_reason
from clusterrun.why.causes import Cause
from clusterrun.why.causes.match import TABLE, fill_template
from clusterrun.why.causes.model import CauseRow
from clusterrun.why.ended.resubmit import with_command
from tests.support.printed_commands import SLURM, in_code, in_documents
from tests.support.run_records import submitted

#: Sentences that begin with our name, and the parts that `why` puts together.
PROSE = ("clusterrun reads the job id", "clusterrun top needs", "clusterrun does not recognize",
         "clusterrun then", "clusterrun starts", "clusterrun {}")  # fmt: skip
PUT_TOGETHER = ("clusterrun/why/causes/", "clusterrun/why/ended/")


def printed() -> list[tuple[str, str]]:
    return [
        (place, command)
        for place, command in [*in_code(), *in_documents()]
        if command.startswith("clusterrun ") and not command.startswith(PROSE) and not place.startswith(PUT_TOGETHER)
    ]


@pytest.fixture(autouse=True)
def verbs_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options and arguments of a verb are read, and nothing is done."""
    for verb in VERBS:
        command = cli.get_command(None, verb)  # type: ignore[arg-type]
        assert command is not None
        for one in (command, *getattr(command, "commands", {}).values()):
            monkeypatch.setattr(one, "callback", lambda **_: None)
    monkeypatch.setattr("clusterrun.cli._run_remote", lambda *_: None)


def type_it(command: str, capsys: pytest.CaptureFixture[str], place: str = "") -> None:
    """Paste a command up to a pipe; its parts known only when it is printed are 1."""
    words = shlex.split(re.split(r" (?:\||&&|>)", command.replace("{}", "1").replace("…", "").replace("{job}", "1"))[0])
    assert words[0] == "clusterrun"
    with pytest.raises(SystemExit) as stop:
        main(words[1:])
    assert not stop.value.code, f"{place} {command}: {capsys.readouterr().err}"


def test_the_command_line_takes_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = printed()
    assert len(found) > 100
    for place, command in found:
        type_it(command, capsys, place)


def test_a_wrong_command_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("clusterrun rerun 5", "clusterrun logs 5 --folow", "clusterrun submit --node 2 -- train.py"):
        with pytest.raises(AssertionError, match="no such"):
            type_it(wrong, capsys)


WORDS = {
    "rank": "1", "node": "node2", "module": "yaml", "folder": "/data", "path": "'/data/a b'", "other": "7",
    "python": "/venv/bin/python",
}  # fmt: skip
WORKS: dict[str, Any] = {
    "task": {"kind": "task", "name": "lm", "settings": [["steps", 300]]},
    "script": {"kind": "script", "path": "/p/train.py", "args": ["--lr", "1"]},
    "module": {"kind": "module", "name": "pkg.train", "args": ["--name", "a b"]},
}


@pytest.mark.parametrize("kind", WORKS)
@pytest.mark.parametrize("words", [WORDS, {}], ids=["known", "unknown"])
def test_a_command_of_the_tables_can_be_pasted(
    kind: str, words: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"), sources={"time": ("2:00:00", "--time")})
    (run.run_dir / "spec.json").write_text(json.dumps({"work": WORKS[kind], "workdir": "/p"}))
    pasted = {}
    for row in TABLE:
        for template in dict.fromkeys([row.command, row.command.replace("JOB", "101")]):
            told = with_command(Cause(kind=row.kind, sentence="", command=fill_template(template, words)), run)
            assert told.command or told.advice or not fill_template(template, words)
            pasted[told.command] = row
    for command, row in pasted.items():
        check_pasted(row, command, capsys)
    read = subprocess.run(["bash", "-n"], input="\n".join(pasted), capture_output=True, text=True)
    assert (read.returncode, read.stderr) == (0, "")


def check_pasted(row: CauseRow, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not re.search(r"…|[{}\[\]?\n]|   |\b(?:SIZE|LONGER|LOWER|NODE|NAME|PATH|SCRIPT)\b", command), (row, command)
    assert shlex.split(command) or not command, "its quotes are closed"
    line = command.removeprefix("cd /p && ")
    if line.startswith("clusterrun "):
        type_it(line, capsys)


def test_reasons_tell_commands_with_the_jobs_id() -> None:
    from clusterrun.scheduler.slurm.reasons import words

    for row in words.ROWS:
        told = row.what_to_do("123")
        assert "{" not in told and find_reason(row.word) is not None
        for command in re.findall(r"`([^`]+)`", told):
            assert command.split()[0] in ("clusterrun", "sshare", *SLURM), (row.word, command)
