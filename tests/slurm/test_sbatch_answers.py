"""What sbatch may answer: a site's own words around an id, half answers, late ones, none at all, and real refusals.

Texts that the real one will not give come from stand-ins for sbatch and squeue; the refusals are a real Slurm's.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from clusterrun import shell, submission
from clusterrun.cluster import Cluster
from clusterrun.errors import Ambiguous, ClusterrunError, NotDelivered, Refused
from clusterrun.fields import Value
from clusterrun.job import JobId
from clusterrun.planning import Plan
from clusterrun.request import Asked
from clusterrun.scheduler import Submission
from clusterrun.scheduler.slurm import ClusterFacts, SlurmScheduler
from clusterrun.scheduler.slurm_text import sbatch_error
from clusterrun.shell import Completed
from clusterrun.store import RunRecord
from lab.cluster import Lab
from tests.desks import Desk
from tests.submitting import fast

TOKEN = "abcdefgh22345672"
LIGHT = ("--gpus-per-node", "0", "--tasks-per-node", "1")

# -- a generated site's words, and never a wrong id ------------------------------------------------------------------

numbers = st.integers(0, 10**20).map(str)
words = st.sampled_from([
    "Welcome! job 7 credits left", "Submitted batch job 7", "job 7", "7;other", "7_1", "7+0", "", " ", "\t7\t", "７",
    "You have 7 jobs", "\x1b[1;32m7\x1b[0m", "\x1b]0;7\x07", "\x1b]8;;http://x/7\x1b\\7\x1b]8;;\x1b\\", "\x1bP7\x1b\\",
    "sbatch: error: Batch job submission failed: Invalid account", "sbatch: Submitted batch job 7", "7\r", "\x0b7\x0b",
    "\x007\x00", "-7", "0x7", "7.", "١٢", "clusterrun:abcdefgh22345672", "x.abcdefgh",
])  # fmt: skip
ends = st.sampled_from(["\n", "\r\n", "\r", "", " ", "\n\n", "\x0c", "\x1c", "\u2028"])
banners = st.lists(st.tuples(st.one_of(words, numbers, st.text(max_size=30)), ends), max_size=6).map(
    lambda parts: "".join(map("".join, parts))
)


def row(job: str, name: str, state: str = "PENDING") -> str:
    """A line of squeue in the format that it is asked for."""
    cells = (job, job, state, "None", "me", "gpu", "", "2", "0:00", "1:00", "1", "1", "1", "/x/script.sh", name)
    return "\x1f".join(cells) + "\n"


class Site:
    """A Slurm behind a site's wrapper: sbatch says what it was made with; squeue tells the truth."""

    def __init__(self, answer: Completed, jobs: Sequence[str]) -> None:
        self.answer, self.jobs = answer, jobs

    def run(self, argv: Sequence[str], **options: object) -> Completed:
        return self.answer if argv[0] == "sbatch" else Completed(0, "".join(self.jobs), "")


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> Submission:
    folder = tmp_path_factory.mktemp("run")
    (folder / "script.sh").write_text("#!/bin/bash\n")
    return Submission(run_id="r", run_dir=folder, token=TOKEN, script=folder / "script.sh", workdir=folder,
                      logs=folder, env={})  # fmt: skip


def ask(site: Site, order: Submission) -> JobId | ClusterrunError | None:
    """The id that a submission comes to, by sbatch's answer and the look-up after an unclear one; or the error."""
    scheduler = SlurmScheduler(ClusterFacts("site", accounting=False, gpus=False), {}, run=site.run)
    try:
        return scheduler.submit(order)
    except Ambiguous:
        found = scheduler.find(TOKEN, 0)
        return submission.adopt(scheduler, found.jobs, None, str)
    except ClusterrunError as error:
        return error


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=banners, after=banners, err=banners, cluster=st.booleans(), status=st.sampled_from([0, 0, 1, 137]))
def test_no_words_around_the_answer_give_a_wrong_id(
    order: Submission, before: str, after: str, err: str, cluster: bool, status: int
) -> None:
    # Digits that a wrapper prints right before the id, on the same line and alone, make another id for all that anyone
    # can tell from the text; the token tells at the next question.
    assume(not re.search(r"[1-9][0-9]*$", before))
    others = [row("7", "other.zzzzzzzz"), row("8", "x.abcdefgx", "RUNNING"), row("9", "abcdefgh")]
    told = f"{before}4711{';site' * cluster}\n{after}"
    result = ask(Site(Completed(status, told, err), [*others, row("4711", "a,b.abcdefgh")]), order)
    if status == 0:
        assert isinstance(result, JobId) and result.base == "4711", result
    else:  # it failed, by its own words; only sbatch's own lines may be taken for a refusal
        assert not isinstance(result, JobId) or result.base == "4711"
        assert not isinstance(result, Refused) or ("sbatch: error: " in told + err and status < 128)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(out=banners, err=banners)
def test_a_yes_that_names_no_job_gives_none(order: Submission, out: str, err: str) -> None:
    others = [row("7", "other.zzzzzzzz"), row("8", "x.abcdefgx", "RUNNING")]
    result = ask(Site(Completed(0, f"{out}no id here\n", err), others), order)
    assert result is None


def test_a_megabyte_of_words(order: Submission) -> None:
    text = "job 7 of 8\n" * 100_000
    assert ask(Site(Completed(0, text + "4711\n" + text, text), [row("4711", "a.abcdefgh")]), order) == JobId("4711")


@pytest.mark.parametrize(("state", "found"), [("PENDING", 0), ("RUNNING", 0), ("COMPLETED", 1), ("CANCELLED by 0", 1)])
def test_an_open_row_of_accounting_is_no_job(state: str, found: int) -> None:
    """A controller that crashed leaves such rows behind; the queue, asked first, would have shown a living job."""
    cells = ("4711", "4711", state, "0:0", "me", "gpu", "", "1", "0", "1", "1", "1", "1", "a.abcdefgh")

    def run(argv: Sequence[str], **options: object) -> Completed:
        return Completed(0, "\x1f".join(cells) + "\n" if argv[0] == "sacct" else "", "")

    scheduler = SlurmScheduler(ClusterFacts("site", accounting=True, gpus=False), {}, run=run)
    assert len(scheduler.find(TOKEN, 0).jobs) == found


FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("status", "said", "kind", "again"),
    [
        (1, FAILED + "Unable to contact slurm controller (connect failure)", NotDelivered, None),
        (1, FAILED + "Unable to contact slurm controller (send failure)", Ambiguous, True),
        (1, FAILED + "Unable to contact slurm controller (receive failure)", Ambiguous, True),
        (1, FAILED + "Message send failure", Ambiguous, True),
        # both: one of two tries may have arrived
        (1, "sbatch: error: Zero Bytes were transmitted or received\n" + FAILED
            + "Unable to contact slurm controller (connect failure)", Ambiguous, True),
        # an error that the client itself may have, after the request has gone
        (1, FAILED + "Protocol authentication error", Ambiguous, False),
        (1, FAILED + "Communication shutdown failure", Ambiguous, False),
        # a job_submit plugin's no
        (1, "sbatch: error: ask for fewer nodes\n" + FAILED + "Unspecified error", Refused, None),
        # a refusal is believed from sbatch alone, and from one that ended by itself
        (1, "Tip of the day: Invalid account names hold a space", Ambiguous, False),
        (1, "Unable to contact slurm controller (connect failure): see our wiki", Ambiguous, False),
        (137, FAILED + "Invalid account or account/partition combination specified", Ambiguous, False),
        (1, "sbatch.real: error: Batch job submission failed: Invalid qos specification", Refused, None),
        (127, "sbatch: command not found in container", Ambiguous, False),
    ],
)  # fmt: skip
def test_what_a_failure_means(status: int, said: str, kind: type, again: bool | None) -> None:
    for done in (Completed(status, "", said), Completed(status, said, ""), Completed(status, "Hello\n", said + "\r\n")):
        error = sbatch_error(done)
        assert type(error) is kind, done
        assert error.said.strip() in (said, "Hello") or said in error.said
        if isinstance(error, Ambiguous):
            assert error.wire is again


# -- stand-ins on PATH -----------------------------------------------------------------------------------------------

SBATCH = """#!/bin/bash
# `made` makes the job: number 41, then 42, …
here=${0%/*}
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
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Desk:
    desk = Desk(tmp_path, monkeypatch, capfd)
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
        "made; echo \"$id;site\"",
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
    (state,) = desk.type("list", "--json").data
    assert (state["job_id"], state["state"]) == (job, "PENDING")


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
        "  hint: Slurm said no; the line above is its reason",
    ]
    assert not list(desk.project.glob(".clusterrun/runs/*"))


def staged(desk: Desk, timeout: float = 1.0) -> tuple[Cluster, SlurmScheduler, Plan]:
    """A run written down, and a scheduler whose commands have `timeout` seconds."""
    cluster = Cluster()
    flags = {"scheduler": "slurm", "gpus-per-node": 0, "tasks-per-node": 1}
    plan = cluster.plan(Asked(words=("train.py",), flags={k: Value(v, "test") for k, v in flags.items()}))
    cluster.store().prepare_logs(False)
    cluster.store().stage(plan.record, plan.spec_json(), plan.script)
    facts = cluster.facts()
    assert facts is not None
    # the stand-ins start slower than the real ones where much else runs
    run = functools.partial(shell.run, timeout=timeout)
    return cluster, SlurmScheduler(facts, os.environ, run=run), plan


def send(desk: Desk, timeout: float = 1.0, factor: float = 5.0) -> RunRecord:
    cluster, scheduler, plan = staged(desk, timeout)
    return submission.submit(cluster.store(), scheduler, plan.record, plan.order, tell=str, clock=fast(factor))


@pytest.mark.parametrize(
    "body",
    [
        "made; sleep 600",
        "made; echo $id; exec sleep 600",
        "made; (sleep 600) & echo $id; exit 0",  # a child keeps the pipe open
        "trap '' TERM; made; while :; do sleep 1; done",
        "setsid bash -c \"sleep 2.5; echo '$name' >'$here/job-41'\" & sleep 600",  # after sbatch was killed
    ],
)
def test_an_sbatch_that_hangs_is_ended_and_its_job_found(desk: Desk, body: str) -> None:
    place(desk, "sbatch", SBATCH + 'echo >>"$here/sent"\n' + body)
    began = time.monotonic()
    run = send(desk, timeout=2.0, factor=5.0)
    assert str(run.job_id) == "41" == jobs(desk)[0]
    assert (desk.slurm.folder / "sent").read_text() == "\n", "sent once"
    assert time.monotonic() - began < 30


def test_a_yes_without_a_job_is_not_sent_again_and_can_be_settled(desk: Desk) -> None:
    place(desk, "sbatch", SBATCH + 'echo >>"$here/sent"; echo "Queued for approval"')
    with pytest.raises(Ambiguous, match="said yes, but no job of run") as caught:
        send(desk, timeout=10, factor=20)
    assert "Queued for approval" in caught.value.said
    assert (desk.slurm.folder / "sent").read_text() == "\n", "sent once"
    (run,) = desk.project.glob(".clusterrun/runs/*")
    assert caught.value.hint.endswith(f"--recover {run.name}")
    # approved: the job that the site made of it meanwhile
    token = next(run.glob("submissions/*.json")).stem
    (desk.slurm.folder / "job-50").write_text(f"train.{token[:8]}\n")
    assert desk.type("submit", "--recover", run.name, "--json").data["job_id"] == "50"


def test_words_that_nobody_knows_and_no_job_are_a_refusal(desk: Desk) -> None:
    place(desk, "sbatch", SBATCH + 'echo >>"$here/sent"; echo "Der Antrag wurde abgelehnt" >&2; exit 1')
    with pytest.raises(Refused, match="made no job") as caught:
        send(desk, timeout=10, factor=20)
    assert caught.value.said == "Der Antrag wurde abgelehnt"
    assert (desk.slurm.folder / "sent").read_text() == "\n", "sent once"
    assert not list(desk.project.glob(".clusterrun/runs/*"))


# -- a real Slurm's refusals -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_lab() -> Iterator[Lab]:
    """A small cluster that enforces accounts, limits and what its partitions allow."""
    from lab.fixtures import require_lab  # not at the top: pytest wants to see the plugin's import itself

    require_lab()
    enforced = {"AccountingStorageEnforce": "associations,limits,qos", "EnforcePartLimits": "ALL"}
    with Lab(name=f"t{os.getpid()}q", nodes=2, settings=enforced) as lab:
        for words in (("account", "physics"), ("user", "root", "account=physics"), ("qos", "tight")):
            done = lab.run(["sacctmgr", "-i", "add", *words])
            assert done.returncode == 0, done.stdout + done.stderr
        for words in (("qos", "tight", "set", "MaxSubmitJobsPerUser=0"), ("user", "root", "set", "qos+=tight")):
            done = lab.run(["sacctmgr", "-i", "modify", *words])
            assert done.returncode == 0, done.stdout + done.stderr
        yield lab


REFUSALS = {
    "partition": (["--partition", "nope"], "Invalid partition name specified", "sinfo -s"),
    "account": (["--account", "nope"], "Invalid account", "sacctmgr"),
    "qos": (["--qos", "nope"], "Invalid qos specification", "sacctmgr"),
    "limit": (["--qos", "tight"], "Job violates accounting/QOS policy", "limit"),
    "constraint": (["--constraint", "nope"], "Invalid feature specification", "sinfo"),
    "nodes": (["--nodes", "99"], "More processors requested than permitted", "--nodes"),
    "memory": (["--mem", "900G"], "Memory specification can not be satisfied", "--mem"),
    "gpus": (["--gpus-per-node", "64"], "Requested node configuration is not available", "sinfo"),
    "gres": (["--gres", "nope:1"], "Invalid generic resource (gres) specification", "sinfo"),
    "nodelist": (["--nodelist", "nope"], "Invalid node name specified", "sinfo -N"),
    "reservation": (["--reservation", "nope"], "Requested reservation is invalid", "reservation"),
    "dependency": (["--dependency", "nosuch:1"], "Job dependency problem", "dependency"),
    "time": (["--partition", "short", "--time", "1-00:00:00"], "Requested time limit is invalid", "sinfo"),
    "cpus": (["--cpus-per-task", "500"], "More processors requested than permitted", "--cpus-per-task"),
    "option": (["--sbatch-arg=--no-such-option"], "unrecognized option '--no-such-option'", "sbatch --help"),
    "begin": (["--sbatch-arg=--begin=yestermorrow"], "Invalid --begin specification", "man sbatch"),
    "mail": (["--mail-type", "SOMETIMES"], "Invalid --mail-type specification", "man sbatch"),
}


@pytest.mark.parametrize("options, words, hint", REFUSALS.values(), ids=REFUSALS)
def test_a_real_refusal(
    strict_lab: Lab, desk: Desk, options: list[str], words: str, hint: str
) -> None:  # fmt: skip
    path = os.environ["PATH"].partition(":")[2]
    desk.set(PATH=f"{path}:{strict_lab.full_env()['PATH']}", SLURM_CONF=strict_lab.env["SLURM_CONF"])
    said = desk.type("submit", *LIGHT, *options, "--", "train.py")
    assert said.status == 3, said
    assert said.err.count(words) == 1 and f"  | sbatch: {'error: ' * ('error: ' in said.err)}" in said.err, said.err
    lines = said.err.splitlines()
    assert lines[-1].startswith("  hint: ") and hint in lines[-1], said.err
    assert said.out == "" and not list(desk.project.glob(".clusterrun/runs/*"))
    # Slurm itself shows some refusals as jobs for a while: FAILED (BadConstraints)
    assert set(strict_lab.run(["squeue", "-h", "--states=all", "-o", "%T"]).stdout.split()) <= {"FAILED"}
