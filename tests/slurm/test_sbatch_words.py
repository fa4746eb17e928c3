"""A generated site's words around sbatch's answer never give a wrong id, and what a failure means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from clusterrun.base.errors import Ambiguous, ClusterrunError, CommandError, NotDelivered, Refused
from clusterrun.base.job import JobId
from clusterrun.scheduler import Submission
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.sbatch import sbatch_error
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.submit import protocol
from clusterrun.system.shell import Completed

ONE_FIXTURE = [HealthCheck.function_scoped_fixture]  # all examples submit the same order
TOKEN = "abcdefgh22345672"
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
        found = scheduler.find(TOKEN, 0, order.script)
        return protocol.choose_job(scheduler, found.jobs, None, str)
    except ClusterrunError as error:
        return error


@settings(max_examples=5 * settings().max_examples, deadline=None, suppress_health_check=ONE_FIXTURE)
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


@settings(max_examples=3 * settings().max_examples, deadline=None, suppress_health_check=ONE_FIXTURE)
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
    assert len(scheduler.find(TOKEN, 0, Path("/run/script.sh")).jobs) == found


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
        assert error.detail.strip() in (said, "Hello") or said in error.detail
        if isinstance(error, Ambiguous):
            assert error.cut_off is again


@pytest.mark.parametrize(
    ("said", "sentence"),
    [  # the first was seen on 22.05 at MaxJobCount, the others are in its sbatch.c
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", True),
        ("sbatch: error: Slurm job queue full, sleeping and retrying", True),
        ("sbatch: Job creation temporarily disabled, retrying", True),
        ("Tip of the day: Slurm job queue full, sleeping and retrying", False),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", False),
    ],
)
def test_an_sbatch_that_timed_out_while_it_waited_is_known_by_its_words(
    order: Submission, said: str, sentence: bool
) -> None:
    def run(argv: Sequence[str], **options: object) -> Completed:
        raise CommandError(argv, status=None, stderr=f"Hello\n{said}\n", timed_out=True)

    with pytest.raises(Ambiguous) as caught:
        SlurmScheduler(ClusterFacts("site", accounting=False, gpus=False), {}, run=run).submit(order)
    assert caught.value.cut_off and caught.value.busy == (re.sub("sbatch: (error: )?", "", said) if sentence else "")
