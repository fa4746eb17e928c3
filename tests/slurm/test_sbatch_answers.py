"""Answers that the real sbatch will not give, from stand-ins for sbatch and squeue: half, late, none at all."""

from __future__ import annotations

import functools
import os
import time

import pytest

from clusterrun.base.errors import Ambiguous, Refused
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.submit import protocol
from clusterrun.submit.plan import Plan
from clusterrun.submit.request import SubmitArgs
from clusterrun.system import shell
from tests.support.command_desk import Desk
from tests.support.patience import HUNG
from tests.support.submit_tools import fast

LIGHT = ("--gpus-per-node", "0", "--tasks-per-node", "1")
SBATCH = """#!/bin/bash
# `made` makes the job: number 41, then 42, …
here=${0%/*}
[ "$1" != --test-only ] || exit 0
name=$(sed -n 's/^#SBATCH --job-name="\\(.*\\)"$/\\1/p' "${@: -1}")
made() {
    id=$((41 + $(find "$here" -name 'job-*' | wc -l)))
    printf '%s\\n' "$name" >"$here/job-$id"
}
"""
SQUEUE = """#!/bin/bash
here=${0%/*}
s=$'\\x1f'
for file in "$here"/job-*; do
    [ -e "$file" ] || continue
    id=${file##*-}
    printf '%s' "$id$s$id${s}PENDING${s}None${s}me${s}gpu$s${s}1${s}0:00${s}1:00${s}1${s}1${s}1${s}/x/script.sh$s"
    cat "$file"
done
"""


@pytest.fixture
def desk(desk: Desk) -> Desk:
    place(desk, "squeue", SQUEUE)
    return desk


def place(desk: Desk, name: str, text: str) -> None:
    path = desk.slurm.folder / name
    path.write_text(text)
    path.chmod(0o755)


def jobs(desk: Desk) -> list[str]:
    return sorted(path.name.removeprefix("job-") for path in desk.slurm.folder.glob("job-*"))


@pytest.mark.parametrize(
    "body",
    [
        "echo 'Welcome! job 7 credits left'; made; echo $id",
        "echo 7; made; echo $id; echo 8",
        "made; echo $id; echo 'Welcome! job 7 credits left'",
        r"made; printf '\e[1;32mhello\e[0m\n\e[36m%s\e[0m\n' $id",
        r"made; printf '\e]0;7\a\e]8;;http://site/7\e\\%s\e]8;;\e\\\n' $id",
        "yes 'job 7 of 8' | head -c 1000000; made; echo $id; yes 7 | head -c 1000000",
        r"made; printf 'hello\r\n%s\r\n' $id",
        "made; echo \"$id;desk\"",
        "made; echo 7 >&2; yes noise | head -c 200000 >&2; echo $id",
        "made; echo Submitted batch job 7",
        "made",
        "made; echo oops >&2; exit 1",
        "made; echo $id; kill -9 $$",
        "made; echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
        r"made; head -c 3000 /dev/urandom; printf '\n%s\n' $id",
    ],
)  # fmt: skip
def test_the_command_line_names_the_right_job(desk: Desk, body: str) -> None:
    place(desk, "sbatch", SBATCH + "id=40; made\n" + body)  # somebody's job of before has the first id
    (desk.slurm.folder / "job-7").write_text("other.zzzzzzzz\n")
    text = SBATCH + body
    place(desk, "sbatch", text)
    said = desk.type("submit", "--json", *LIGHT, "--", "train.py")
    assert said.status == 0, said.err
    (job,) = set(jobs(desk)) - {"7"}
    assert said.data["job_id"] == job
    (state,) = (row for row in desk.type("list", "--json").data if row["run_id"])
    assert (state["job_id"], state["state"]) == (job, "PENDING")


def test_a_job_that_sbatch_sent_to_another_cluster_is_listed_as_that_clusters(desk: Desk) -> None:
    place(desk, "sbatch", SBATCH + 'made; echo "$id;site"')
    assert desk.type("submit", "--json", *LIGHT, "--", "train.py").data["job_id"] == "41"
    assert not [row for row in desk.type("list", "--json").data if row["run_id"]]
    (state,) = (row for row in desk.type("list", "--all-clusters", "--json").data if row["run_id"])
    assert (state["job_id"], state["cluster"]) == ("41", "site")


def test_a_refusal_is_shown_once_word_for_word_with_a_hint(desk: Desk) -> None:
    words = (
        "sbatch: error: Sorry — 'all' of it: is $full\nsbatch: error: Batch job submission failed: Unspecified error"
    )
    desk.slurm.folder.joinpath("words").write_text(words + "\n")
    place(desk, "sbatch", SBATCH + 'cat "$here/words" >&2; exit 1')
    said = desk.type("submit", *LIGHT, "--", "train.py")
    assert said.status == 3 and said.out == ""
    assert said.err.splitlines()[-4:] == [
        "clusterrun: Slurm refused the job",
        *(f"  | {line}" for line in words.splitlines()),
        "  hint: Slurm's reason is on the line above",
    ]
    assert not list(desk.project.glob(".clusterrun/runs/*"))


def staged(desk: Desk, timeout: float = 1.0) -> tuple[Cluster, SlurmScheduler, Plan]:
    """A run written down, and a scheduler whose commands have `timeout` seconds."""
    cluster = Cluster()
    flags = {"scheduler": "slurm", "gpus-per-node": 0, "tasks-per-node": 1}
    plan = cluster.plan(SubmitArgs(command=("train.py",), flags={k: Value(v, "test") for k, v in flags.items()}))
    cluster.store().prepare(False)
    cluster.store().stage(plan.record, plan.spec_json(), plan.script)
    facts = cluster.facts()
    assert facts is not None
    # the stand-ins start slower than the real ones where much else runs
    run = functools.partial(shell.run, timeout=timeout)
    return cluster, SlurmScheduler(facts, os.environ, run=run), plan


def send(desk: Desk, timeout: float = 1.0, factor: float = 5.0) -> RunRecord:
    cluster, scheduler, plan = staged(desk, timeout)
    return protocol.submit(cluster.store(), scheduler, plan.record, plan.submission, notify=str, clock=fast(factor))


@pytest.mark.parametrize(
    "body",
    [
        "made; sleep 600",
        "made; echo $id; exec sleep 600",
        "made; (sleep 600) & echo $id; exit 0",  # a child keeps the pipe open
        "trap '' TERM; made; while :; do sleep 1; done",
        "setsid bash -c \"sleep 10.5; echo '$name' >'$here/job-41'\" & sleep 600",  # after sbatch was killed
    ],
)
def test_an_sbatch_that_hangs_is_ended_and_its_job_found(desk: Desk, body: str) -> None:
    place(desk, "sbatch", SBATCH + 'echo >>"$here/sent"\n' + body)
    began = time.monotonic()
    run = send(desk, timeout=10.0, factor=2.0)
    assert str(run.job_id) == "41" == jobs(desk)[0]
    assert (desk.slurm.folder / "sent").read_text() == "\n", "sent once"
    assert time.monotonic() - began < 2 * HUNG


def test_a_yes_without_a_job_is_not_sent_again_and_can_be_settled(desk: Desk) -> None:
    place(desk, "sbatch", SBATCH + 'echo >>"$here/sent"; echo "Queued for approval"')
    with pytest.raises(Ambiguous, match="sbatch succeeded, but Slurm shows no job") as caught:
        send(desk, timeout=10, factor=20)
    assert "Queued for approval" in caught.value.detail
    assert (desk.slurm.folder / "sent").read_text() == "\n", "sent once"
    (run,) = desk.project.glob(".clusterrun/runs/*")
    assert f"submit --recover {run.name}`" in caught.value.hint
    # approved: the job that the site made of it meanwhile
    token = next(run.glob("submissions/*.json")).stem
    (desk.slurm.folder / "job-50").write_text(f"train.{token[:8]}\n")
    assert desk.type("submit", "--recover", run.name, "--json").data["job_id"] == "50"


def test_words_that_nobody_knows_and_no_job_are_a_refusal(desk: Desk) -> None:
    place(desk, "sbatch", SBATCH + 'echo >>"$here/sent"; echo "Der Antrag wurde abgelehnt" >&2; exit 1')
    with pytest.raises(Refused, match="no job was created") as caught:
        send(desk, timeout=10, factor=20)
    assert caught.value.detail == "Der Antrag wurde abgelehnt"
    assert (desk.slurm.folder / "sent").read_text() == "\n", "sent once"
    assert not list(desk.project.glob(".clusterrun/runs/*"))
