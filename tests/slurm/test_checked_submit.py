"""Requests that can never start or would fail at once are refused at submit; others are not.

On a real Slurm that accepts most of the former and lets them wait for ever (EnforcePartLimits=NO).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from clusterrun.preflight import checks
from lab import releases
from lab.cluster import Lab
from tests.support.command_desk import Desk
from tests.support.installed_command import until
from tests.support.submit_tools import light_template

LIGHT = ("--gpus-per-node", "0", "--tasks-per-node", "1")
PARTITIONS = {
    "closed": "MaxTime=INFINITE AllowAccounts=chemistry",
    "small": "MaxTime=INFINITE MaxNodes=1",
    "big": "MaxTime=INFINITE MinNodes=3",
    "capped": "MaxTime=INFINITE",
}
RULES = (
    "add account physics", "add qos tight", "add qos long", "add qos cap", "add qos wide",
    "add user root account=physics",
    "modify qos tight set MaxTRESPerUser=gres/gpu=6 MaxWall=2-0", "modify qos long set Flags=PartitionTimeLimit",
    "modify qos cap set MaxTRESPerJob=gres/gpu=2",
    "modify qos wide set GrpTRES=gres/gpu=16",
    "modify user root where account=physics set qos+=tight,long,wide DefaultAccount=physics GrpTRES=gres/gpu=10",
)  # fmt: skip


@pytest.fixture(scope="module")
def strict() -> Iterator[Lab]:
    """4 nodes with 4 a100 each; a node is drained."""
    from lab.fixtures import require_lab  # not at the top: pytest wants to see the plugin's import itself

    require_lab()
    name = f"t{os.getpid()}c"
    settings = {"AccountingStorageEnforce": "associations,limits,qos"}
    where = f"Nodes={name}-node[1-4] State=UP"
    settings |= {f"PartitionName={key}": f"{where} {rules}" for key, rules in PARTITIONS.items()}
    with Lab(name=name, gpu_type="a100", settings=settings) as lab:
        for words in RULES:
            run(lab, "sacctmgr", "-i", *words.split())
        run(lab, "scontrol", "update", "PartitionName=capped", "QOS=cap")
        run(lab, "scontrol", "update", f"nodename={name}-node4", "state=drain", "reason=test")
        yield lab


def run(lab: Lab, *words: str) -> str:
    done = lab.run(words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture
def typed(strict: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A user of the lab, with some data; a check may take long on a busy machine."""
    path = releases.search_path(strict.slurm, f"{releases.SEARCH_PATH}:{os.environ['PATH'].partition(':')[2]}")
    desk.set(PATH=path, SLURM_CONF=strict.env["SLURM_CONF"])
    monkeypatch.setattr(checks, "LIMIT", 60.0)
    desk.write("table.csv", "body,kind\nhello,a\nworld,b\n")
    desk.write("chats.jsonl", '{"prompt": "a", "completion": "b"}\n')
    desk.write("broken.jsonl", '{"prompt": "a", \n{"prompt": "a", "completion": "b"}\n')
    desk.write("bad.py", "if True print(1)\n")
    desk.write("text.txt", "hello\n")
    return desk


def setting(task: str, *pairs: str) -> tuple[str, ...]:
    return (task, *LIGHT, "--nodes", "2", *(word for pair in pairs for word in ("--set", pair)))


def script(*options: str, cpu: bool = True) -> tuple[str, ...]:
    return (*(LIGHT if cpu else ()), *options, "--", "train.py")


NEVER = {
    "key": (setting("lm", "stepz=4"), "did you mean 'steps'?"),
    "key of another task": (setting("lm", "packing=true"), "unknown key 'packing'"),
    "type": (setting("lm", "steps=abc"), "steps must be a whole number"),
    "flag": (setting("sft", "packing=maybe"), "packing must be true or false"),
    "choice": (setting("lm", "precision=fp17"), "did you mean 'fp16'?"),
    "range": (setting("lm", "lr=-1"), "lr must be above 0"),
    "least": (setting("lm", "vocab=10"), "vocab must be at least 300"),
    "share": (setting("lm", "held_out=1.5"), "held_out must be greater than 0 and less than 1"),
    "global batch": (setting("lm", "global_batch_size=5"), "cannot be split evenly over 2 ranks"),
    "three batches": (setting("lm", "global_batch_size=16", "micro_batch_size=3", "grad_accum_steps=2"), "= 12"),
    "scaling": (setting("lm", "lr_scaling=linear"), "needs base_batch_size"),
    "file": (setting("lm", "data=txet.txt"), "did you mean 'text.txt'?"),
    "glob": (setting("sft", "data=*.ndjson"), "no file matches *.ndjson"),
    "column": (setting("lm", "data=table.csv"), "no column 'text' in table.csv; columns: body, kind"),
    "chats": (setting("sft", "data=table.csv"), "no conversations in table.csv"),
    "broken row": (setting("sft", "data=broken.jsonl"), "broken.jsonl:1: broken JSON"),
    "target": (setting("classify", "data=table.csv", "target_cols=kid", "text_cols=body"), "did you mean 'kind'?"),
    "no target": (setting("classify", "data=table.csv", "text_cols=body"), "set target_cols to the columns of"),
    "model": (setting("lm", "model=tinny"), "did you mean 'tiny'?"),
    "checkpoint": (setting("lm", "resume=/no/such"), "no such checkpoint"),
    "token": (setting("lm", "push_to_hub=me/model"), "HF_TOKEN is not set"),
    "nodes": (script("--nodes", "99"), "the partition has only 4 nodes"),
    "gpus": (script("--gpus-per-node", "1000", cpu=False), "no node has 1,000 GPUs (at most 4)"),
    "ranks": (
        script("--gpus-per-node", "0", "--tasks-per-node", "99", cpu=False),
        "no node has enough CPUs for 99 ranks",
    ),
    "gpu type": (
        script("--gres", "gpu:a1000:1", cpu=False),
        "did you mean a100? on nodes of this partition, use --gres gpu:a100:4",
    ),
    "gres": (script("--gres", "gpus:1"), "Invalid generic resource"),
    "time": (
        script("--time", "90-0", "--partition", "short"),
        "the job's time limit exceeds the partition's limit of 1:00",
    ),
    "partition": (script("--partition", "gpus"), "did you mean gpu?"),
    "account of a partition": (script("--partition", "closed"), "AllowAccounts=chemistry"),
    "most nodes": (script("--nodes", "2", "--partition", "small"), "the partition allows at most 1 node"),
    "fewest nodes": (script("--nodes", "2", "--partition", "big"), "the partition requires at least 3 nodes"),
    "limit on GPUs": (script("--qos", "tight", "--nodes", "2", "--gpus-per-node", "4", cpu=False), "limit of 6"),
    "limit on time": (script("--qos", "tight", "--time", "3-0"), "exceeds the maximum of 2-00:00:00"),
    "limit of an account": (script("--nodes", "3", "--gpus-per-node", "4", cpu=False), "exceed the limit of 10"),
    "QOS of a partition": (script("--gpus-per-node", "4", "--partition", "capped", cpu=False), "limit of 2"),
    "account": (script("--account", "nope"), "your accounts: physics"),
    "QOS": (script("--qos", "nope"), "your QOS: "),
    "feature": (script("--constraint", "nope"), "Invalid feature specification"),
    "memory": (script("--mem", "900G"), "too few nodes have 900G of memory (the largest has 62.5G)"),
    "node": (script("--nodelist", "nope"), "Invalid node name"),
    "reservation": (script("--reservation", "nope"), "Requested reservation is invalid"),
    "setup": (script("--setup", "if true"), "--setup: syntax error in line 1"),
    "syntax": ((*LIGHT, "--", "bad.py"), "bad.py:1: "),
}

FINE = {
    "steps": setting("lm", "steps=20", "lr=1e-4"),
    "epochs": setting("lm", "steps=0", "epochs=0.5"),
    "batch": setting("lm", "global_batch_size=8", "micro_batch_size=2"),
    "accumulation": setting("lm", "micro_batch_size=2", "grad_accum_steps=3"),
    "text": setting("lm", "data=text.txt"),
    "glob": setting("diffusion", "data=*.txt"),
    "column": setting("lm", "data=table.csv", "text_column=body"),
    "chats": setting("sft", "data=chats.jsonl", "packing=false"),
    "bad rows": setting("sft", "data=broken.jsonl", "on_bad_row=skip"),
    "table": setting("classify", "data=table.csv", "target_cols=kind", "text_cols=body"),
    "template": setting("classify", "data=table.csv", "target_cols=kind", "formatter={body}"),
    "prompts": setting("sft", 'sample_prompts=["a", "b"]', "precision=fp32"),
    "data from setup": (*setting("lm", "data=later.txt"), "--setup", "touch later.txt"),
    "defaults": setting("classify"),
    "script": script(),
    "module": (*LIGHT, "--", "-m", "json.tool"),
    "program": (*LIGHT, "--", "true"),
    "one GPU": script("--gpus-per-node", "1", cpu=False),
    "drained node": script("--nodes", "4", "--gpus-per-node", "1", cpu=False),
    "gres": script("--gres", "gpu:a100:2", cpu=False),
    "gres without type": script("--gres", "gpu:2", cpu=False),
    "partition": script("--partition", "low", "--time", "1-0"),
    "partitions": script("--partition", "short,gpu", "--time", "5:00:00"),
    "short": script("--partition", "short", "--time", "1"),
    "QOS over the partition": script("--partition", "short", "--qos", "long", "--time", "2:00:00"),
    "QOS": script("--qos", "tight", "--nodes", "1", "--gpus-per-node", "4", "--time", "1-0", cpu=False),
    "account": script("--account", "physics", "--time", "UNLIMITED"),
    "one node": script("--partition", "small"),
    "three nodes": script("--partition", "big", "--nodes", "3"),
    "capped": script("--partition", "capped", "--gpus-per-node", "2", cpu=False),
    "memory": script("--mem", "1G", "--cpus-per-task", "2"),
    "exclusive": script("--sbatch-arg=--exclusive"),
    "later": script("--sbatch-arg=--begin=now+1hour"),
}


@pytest.mark.parametrize(("words", "reason"), NEVER.values(), ids=NEVER)
def test_what_can_never_run_is_refused(strict: Lab, typed: Desk, words: tuple[str, ...], reason: str) -> None:
    before = typed.files()
    said = typed.type("submit", *words)
    assert said.status == 2 and reason in said.err and said.out == "", said
    assert typed.files() == before and run(strict, "squeue", "-h", "-o%A") == ""


@pytest.mark.parametrize("words", FINE.values(), ids=FINE)
def test_what_can_run_is_not_refused(typed: Desk, words: tuple[str, ...]) -> None:
    said = typed.type("submit", "--dry-run", *words)
    assert said.status == 0 and "not checked" not in said.err, said
    assert "OK: " in said.err or "warning: " in said.err


def test_a_checked_job_is_submitted_with_one_line_more(strict: Lab, typed: Desk) -> None:
    template = light_template(typed.project.parent)
    words = (*LIGHT, "--template", str(template), "--time", "30", "--sbatch-arg=--hold", "--", "train.py")
    said = typed.type("submit", *words)
    assert said.status == 0, said
    cost = "1 node x 1 CPU x 30 min = 0.5 CPU-hours"
    assert said.err.startswith(f"clusterrun: OK: {cost}; Slurm expects the job to start ")
    assert len(said.err.splitlines()) == 1 and len(said.out.splitlines()) == 4
    run(strict, "scancel", "--me")


def test_a_limit_of_the_qos_replaces_that_of_the_account(strict: Lab, typed: Desk) -> None:
    asked = ("--nodes", "3", "--gpus-per-node", "4")
    assert "OK: " in typed.type("submit", "--dry-run", "--qos", "wide", *asked, "--", "train.py").err
    sbatch = ("sbatch", "--parsable", "--output=/dev/null", "--time=5", *asked, "--wrap=sleep 300")
    job = run(strict, *sbatch, "--qos=wide")
    try:
        until(lambda: run(strict, "squeue", "-h", "-j", job, "-o%T") == "RUNNING", 60)
        run(strict, "scancel", job)
        job = run(strict, *sbatch)
        until(lambda: "AssocGrp" in run(strict, "squeue", "-h", "-j", job, "-o%r"), 60)
    finally:
        run(strict, "scancel", job)
    until(lambda: not run(strict, "squeue", "-h"), 60)


def test_maintenance_in_the_way_names_the_time_that_fits(strict: Lab, typed: Desk) -> None:
    run(strict, "scontrol", "create", "reservation", "reservationname=maint", "starttime=now+2hours", "duration=60",
        "nodes=ALL", "flags=maint,ignore_jobs", "users=root")  # fmt: skip
    try:
        said = typed.type("submit", "--dry-run", *script("--time", "12:00:00"))
        assert said.status == 0 and "warning: maintenance maint from " in said.err, said
        fits = said.err.partition("; a job with --time ")[2].partition(" ")[0]
        assert fits.startswith("1:5"), said.err
        assert "OK: " in typed.type("submit", "--dry-run", *script("--time", fits)).err
    finally:
        run(strict, "scontrol", "delete", "reservationname=maint")


def test_a_silent_controller_blocks_nothing(strict: Lab, typed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed.type("submit", "--dry-run", *script()).status == 0  # the cluster's facts are in the cache from now on
    monkeypatch.setattr(checks, "LIMIT", 1.0)
    strict.daemon("slurmctld").stop()
    try:
        said = typed.type("submit", "--dry-run", *script())
    finally:
        strict.daemon("slurmctld").cont()
    assert said.status == 0 and "clusterrun: not checked: the cluster's limits" in said.err, said


def test_the_checks_cost_less_than_two_seconds_of_a_processor(typed: Desk) -> None:
    """Side by side they take less; how long they take on a busy machine says nothing."""
    taken = []
    for _ in range(3):
        before = os.times()
        assert typed.type("submit", "--dry-run", *setting("lm", "steps=20")).status == 0
        taken.append(sum(os.times()[:4]) - sum(before[:4]))
    assert min(taken) < 2, taken
