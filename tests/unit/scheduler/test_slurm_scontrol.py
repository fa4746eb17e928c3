"""`scontrol show`, the whole queue and the limits, over text recorded from Slurm 22.05.8 (names replaced)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.scheduler.slurm.limits import LimitScope, parse_limits
from clusterrun.scheduler.slurm.scontrol import parse_jobs, parse_show, show_argv
from clusterrun.scheduler.slurm.sprio import Priority, parse_priority, priority_argv
from clusterrun.scheduler.slurm.squeue import Queued, parse_licenses, parse_queue, parse_tres, queue_argv
from clusterrun.scheduler.slurm.values import SEP
from clusterrun.system import shell
from tests.support.folders import DATA

SLURM_TEXTS = DATA / "slurm"
TEXTS = [shell._text(path.read_bytes()) for path in sorted(SLURM_TEXTS.glob("why-*.txt"))]


def recorded(name: str) -> str:
    return shell._text((SLURM_TEXTS / f"why-{name}.txt").read_bytes())


def job(number: str) -> dict[str, str]:
    (block,) = (b for b in parse_jobs(recorded("show-jobs")) if b["JobId"] == number)
    return block


# -- scontrol show -------------------------------------------------------------------------------------------------


def test_what_is_asked() -> None:
    assert show_argv("job", ["17_3"]) == ["scontrol", "show", "job", "17_3"]
    assert show_argv("node", cluster="big") == ["scontrol", "--clusters=big", "show", "node"]


def test_a_jobs_request() -> None:
    asked = job("18")
    assert (asked["JobState"], asked["Reason"]) == ("PENDING", "DependencyNeverSatisfied")
    assert asked["Dependency"] == "afterok:17(failed)"
    assert asked["ReqNodeList"] == "" and asked["Features"] == "", "(null) is nothing"
    assert asked["TRES"] == "cpu=1,mem=2000M,node=1,billing=1"


def test_free_text_in_a_job_makes_no_keys() -> None:
    asked = job("21")
    assert asked["JobName"] == "a b=c Dependency=none"
    assert asked["Dependency"] == "" and asked["Comment"] == "Reason=Foo Priority=3 x=y"
    assert asked["Reason"] == "QOSMaxGRESPerUser" and asked["Priority"] == "4294901743"
    assert asked["StdOut"] == "/tmp/o ut 21"


#: what a text may imitate
IMITATIONS = (
    "JobState=CANCELLED", "Restarts=3", " ExitCode=9:0", "=", " ", "\n", "\n   JobState=FAKE Reason=Foo", "\n\n",
    "\n\nJobId=5 JobName=x", "\n   TresPerNode=gpu:8", "\n   StdOut=/x", "\n   Comment=b",
)  # fmt: skip
FREE_TEXT = st.lists(st.sampled_from(IMITATIONS) | st.text(st.characters(codec="utf-8", exclude_characters="\0\r")))


def job_answer(jobs: list[dict[str, str]], version: str) -> str:
    """What `scontrol show job` prints of jobs with these free texts, which are in braces here."""
    late = "\n   Extra={Extra}\n   StdErr={StdErr}" if version != "22.05" else "\n   StdErr={StdErr}"
    line = "\n   SubmitLine={SubmitLine}" if version == "26.05" else ""
    form = (
        "JobId={JobId} JobName={JobName}\n   UserId=ann(1001) GroupId=domain users(1001) MCS_label=N/A\n"
        "   Priority=1 Nice=0 Account=lab QOS=normal\n   JobState=RUNNING Reason=None Dependency=(null)\n"
        "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n   Features=a&b DelayBoot=00:00:00\n"
        f"   Command={{Command}}{line}\n   WorkDir={{WorkDir}}\n   AdminComment={{AdminComment}}\n"
        f"   Comment={{Comment}}{late}\n   StdIn=/dev/null\n   StdOut=/tmp/out\n   Power=\n   TresPerNode=gres/gpu:2\n"
    )
    return "\n".join(form.format(**job) for job in jobs)


TEXTS_OF_A_JOB = ("JobName", "Command", "SubmitLine", "WorkDir", "AdminComment", "Comment", "Extra", "StdErr")
FIELDS_OF_A_JOB = {
    "UserId": "ann(1001)", "GroupId": "domain users(1001)", "Account": "lab", "QOS": "normal", "JobState": "RUNNING",
    "Reason": "None", "Dependency": "", "Requeue": "1", "Restarts": "0", "BatchFlag": "1", "ExitCode": "0:0",
    "Features": "a&b", "StdIn": "/dev/null", "TresPerNode": "gres/gpu:2",
}  # fmt: skip


def check_jobs(jobs: list[dict[str, str]], version: str) -> None:
    blocks = parse_jobs(job_answer(jobs, version))
    assert [block["JobId"] for block in blocks] == [asked["JobId"] for asked in jobs]
    for block in blocks:
        assert {key: block.get(key) for key in FIELDS_OF_A_JOB} == FIELDS_OF_A_JOB
        assert block.get("StdOut") in ("/tmp/out", None), "a text that imitates it leaves it out"


JOB = st.fixed_dictionaries(dict.fromkeys(TEXTS_OF_A_JOB, FREE_TEXT.map("".join)))
VERSIONS = st.sampled_from(("22.05", "24.11", "26.05"))


@given(JOB, VERSIONS)
def test_no_free_text_changes_another_field(texts: dict[str, str], version: str) -> None:
    check_jobs([{"JobId": "17"} | texts], version)


@given(st.lists(JOB, min_size=2, max_size=3), VERSIONS)
def test_no_free_text_changes_another_job(texts: list[dict[str, str]], version: str) -> None:
    """Unless it imitates the end of a job and the begin of the next."""
    shown = [{key: text.replace("StdOut", "StdErr") for key, text in job.items()} for job in texts]
    check_jobs([{"JobId": str(17 + i)} | job for i, job in enumerate(shown)], version)


def test_a_free_text_is_read_whole() -> None:
    texts = dict.fromkeys(TEXTS_OF_A_JOB, "a\n\nJobId=5 JobName=x\n   Restarts=7")
    (block,) = parse_jobs(job_answer([{"JobId": "17"} | texts], "26.05"))
    assert {key: block[key] for key in TEXTS_OF_A_JOB} == texts


def test_a_text_that_imitates_a_whole_job_leaves_the_job_out() -> None:
    plain = dict.fromkeys(TEXTS_OF_A_JOB, "x")
    forged = job_answer([{"JobId": "17"} | plain], "22.05")
    assert parse_jobs(job_answer([{"JobId": "17"} | plain | {"Comment": f"x\n\n{forged}"}], "22.05")) == []
    assert parse_jobs(job_answer([{"JobId": "17"} | plain | {"JobName": f"x\n\n{forged}"}], "22.05")) == []


def test_an_arrays_blocks_have_its_tasks() -> None:
    blocks = [b for b in parse_jobs(recorded("show-jobs")) if b.get("ArrayJobId") == "11"]
    tasks = {block["ArrayTaskId"]: block["JobState"] for block in blocks}
    assert tasks["2-3%1"] == "PENDING" and tasks["1"] == "RUNNING"
    assert {block["ArrayTaskThrottle"] for block in blocks} == {"1"}


def test_a_nodes_reason_may_hold_anything() -> None:
    nodes = parse_show(recorded("show-nodes"))
    assert [node["NodeName"] for node in nodes] == ["node1", "node2"]
    assert nodes[1]["Reason"] == "bad fan [left = 2] [root@1795257866]"
    assert nodes[1]["OS"].startswith("Linux 6") and nodes[1]["State"] == "MIXED+DRAIN"


def test_partitions_and_reservations() -> None:
    by_name = {p["PartitionName"]: p for p in parse_show(recorded("show-partitions"))}
    assert (by_name["tiny"]["MaxTime"], by_name["tiny"]["MaxNodes"]) == ("00:30:00", "1")
    assert by_name["gpu"]["PriorityTier"] == "10" and by_name["gpu"]["QoS"] == ""
    (maint,) = parse_show(recorded("show-reservations"))
    assert (maint["ReservationName"], maint["Nodes"], maint["Flags"]) == ("maint", "node1", "MAINT,SPEC_NODES")


@given(st.text())
def test_no_answer_breaks_it(text: str) -> None:
    for block in [*parse_show(text), *parse_jobs(text)]:
        assert block and all(isinstance(value, str) for value in block.values())


@given(st.sampled_from(TEXTS), st.integers(0, 20_000), st.text(max_size=20))
def test_an_answer_that_is_cut_or_spoilt_is_read_as_far_as_it_goes(text: str, at: int, dirt: str) -> None:
    spoilt = text[:at] + dirt + text[at + 3 :]
    parse_show(spoilt)
    parse_jobs(spoilt)
    parse_limits(spoilt)
    parse_queue(spoilt)


KEYS, VALUES = (st.from_regex(form, fullmatch=True) for form in (r"[A-Z][a-z]{2,8}", r"[a-z0-9,:/.-]{1,12}"))


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=8))
def test_what_is_written_is_read(words: dict[str, str]) -> None:
    if set(words) & {"Reason", "Comment", "Command", "Extra"}:
        return
    assert parse_show("   ".join(f"{key}={value}" for key, value in words.items())) == [words]


# -- the queue -----------------------------------------------------------------------------------------------------


def test_the_queue_is_asked_for_whole() -> None:
    argv = queue_argv()
    assert argv[0] == "squeue" and "--states=all" in argv and not any(a.startswith("--me") for a in argv)


def test_the_queue() -> None:
    rows = {row.id: row for row in parse_queue(recorded("squeue-whole"))}
    assert rows["3"].state == "RUNNING" and rows["3"].holds("gres/gpu") == 2 and rows["3"].holds("mem") == 2000
    assert (rows["3"].user, rows["3"].account, rows["3"].qos, rows["3"].partitions) == (
        "root",
        "physics",
        "tight",
        ("gpu",),
    )
    assert rows["3"].left is not None and 0 < rows["3"].left < 3600
    assert rows["11"].state == "PENDING" and rows["11"].reason == "JobArrayTaskLimit"
    assert rows["11_1"].state == "RUNNING"
    assert rows["13"].licenses == (("matlab", 1),)
    assert rows["16"].priority == 0
    assert rows["22"].reason == "ReqNodeNotAvail, UnavailableNodes:node2"


@given(st.text())
def test_no_queue_breaks_it(text: str) -> None:
    assert parse_queue(text) == []


@given(st.lists(st.text(alphabet=st.characters(blacklist_characters=f"\n{SEP}")), min_size=14, max_size=14))
def test_no_cell_breaks_it(cells: list[str]) -> None:
    cells[1] = "7"
    (row,) = parse_queue(SEP.join(cells) + SEP)
    assert isinstance(row, Queued) and row.raw == 7


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("cpu=8,mem=2000M,node=1,gres/gpu=4", (("cpu", 8.0), ("mem", 2000.0), ("node", 1.0), ("gres/gpu", 4.0))),
        ("mem=62.50G", (("mem", 64000.0),)),
        ("mem=1T,billing=3", (("mem", 1024.0**2), ("billing", 3.0))),
        ("", ()),
        ("N/A", ()),
        ("cpu=many,=3,mem", ()),
    ],
)
def test_a_tres_list(text: str, pairs: tuple[tuple[str, float], ...]) -> None:
    assert parse_tres(text) == pairs


def test_licenses() -> None:
    assert parse_licenses("matlab:2,ansys") == (("matlab", 2), ("ansys", 1))
    assert parse_licenses("(null)") == ()


def test_priorities() -> None:
    assert priority_argv(["7"])[:3] == ["sprio", "--noheader", "--jobs=7"]
    assert priority_argv(["7", "3"])[2].startswith("--format="), "24.11 takes no list of jobs"
    (one,) = parse_priority("7|500|1|0|499|0|0|0|0\n9|many|1|0|499|0|0|0|0\nshort|7\n")
    assert one == Priority(7, 500, (("fair share", 499), ("age", 1)))


@given(st.text())
def test_no_priority_breaks_it(text: str) -> None:
    parse_priority(text)


# -- limits --------------------------------------------------------------------------------------------------------


def holder(kind: str, **want: str) -> LimitScope:
    rows = parse_limits(recorded("show-qos")) + parse_limits(recorded("show-assoc"))
    (found,) = (r for r in rows if r.kind == kind and all(getattr(r, key) == value for key, value in want.items()))
    return found


def test_a_users_share_of_a_qos() -> None:
    mine = holder("qos user", qos="tight", user="0")
    assert mine.bounds("MaxTRESPU", "gres") == [("gres/gpu", 2, 2)]
    assert mine.bounds("MaxJobsPU") == [("", 5, 1)]
    assert mine.bounds("MaxTRESPU", "cpu") == [("cpu", None, 1)], "N is no limit"


def test_newer_slurm_names_the_user_beside_the_number() -> None:
    rows = parse_limits(recorded("show-qos").replace("\n      0\n", "\n      kim(0)\n"))
    assert [row.user for row in rows if row.kind == "qos user" and row.qos == "tight"] == ["0"]


def test_an_accounts_own_association_and_its_parent() -> None:
    account = holder("association", account="chem", user="")
    assert account.parent == "root"
    assert account.bounds("GrpTRES", "cpu") == [("cpu", 2, 2)]
    assert account.bounds("MaxJobs") == [], "an empty value is no limit"
    assert holder("association", account="chem", user="root").bounds("GrpTRES", "cpu")[0][1] is None


@given(st.text())
def test_no_limits_break_it(text: str) -> None:
    for row in parse_limits(text):
        row.bounds("GrpTRES", "cpu")
