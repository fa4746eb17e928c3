"""Everything that reads the folder of a run, and a folder that has every file, as a run of two ranks leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.base.errors import NoScheduler, WorkerError
from clusterrun.base.job import JobId, JobStatus, Outcome
from clusterrun.cli import follow, logfiles
from clusterrun.compare import check_report, code, environment, expected, metrics, options
from clusterrun.logs.request import filter_run
from clusterrun.records import cleaning, code_store, launches, progress, run_record, sweeps
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.report import collect, page, usage
from clusterrun.run_folder import claims, end_time, ends, rank_records, submissions
from clusterrun.run_folder.launches import folders as launch_folders
from clusterrun.run_folder.launches import load, why_requeued
from clusterrun.scheduler import Answer, Scheduler
from clusterrun.state import ladder, reconcile, show
from clusterrun.state.launches import failed_state, held_line
from clusterrun.state.reconcile import RunState
from clusterrun.state.waited import waited
from clusterrun.submit import checks, resubmit, resume
from clusterrun.submit.request import SubmitArgs
from clusterrun.sweeps import plan, table
from clusterrun.top.source import TopData
from clusterrun.why import ended, pending
from clusterrun.worker.job import hold, node_evidence, notify
from clusterrun.worker.rank import saved_code
from tests.support.rank_files import put_end, put_progress
from tests.support.run_records import AT, attempt, claim, end, submitted

FAILURE = {"version": 1, "rank": 1, "node": "n2", "status": 1, "error": "ValueError: no", "file": "/u/a.py", "line": 3}
RANK = {"node": "n1", "local_rank": 0, "python": "3.12", "torch": "2.9", "packages": "a" * 16, "device": "cpu"}
START = {"version": 1, "backend": "gloo", "time": AT + 5, "world_size": 2, "batches": [1, 2],
         "ranks": [{"rank": 0, "task": 0, **RANK}, {"rank": 1, "task": 1, **RANK, "node": "n2"}]}  # fmt: skip
LAUNCH = {"version": 1, "began": AT + 4, "ended": AT + 600.5, "log_start": [0, 0], "status": 1, "cause": "no",
          "first_step": 1, "first_step_at": AT + 9.5, "step": 7, "stepped": AT + 500.0, "step_s": 0.5,
          "queue": {"submitted": AT, "eligible": AT + 1, "started": AT + 4}}  # fmt: skip
LINK = {"kind": "all", "nodes": ["n1", "n2"], "size": 4096, "busbw": 1.5e9}
NODE = {"node": "n1", "gpus": 4, "tflops": 100.5, "memory_gib": 80.0, "disk_gib": 9.0, "clock_offset_s": 0.01,
        "busbw_in_node": 2e11, "busbw_between_nodes": 1e10, "versions": {"torch": "2.9"}}  # fmt: skip
CHECK = {"version": 1, "ok": False, "backend": "gloo", "ranks": 2, "gpus-per-node": 4, "nodes": [NODE],
         "links": [LINK],
         "findings": [{"status": "broken", "check": "disk", "text": "full", "action": "free some", "where": ["n1"]}],
         }  # fmt: skip
TRAINING = {"version": 1, "precision": "bf16", "precision_requested": "auto", "samples": 100, "micro_batch_size": 4,
            "grad_accum_steps": 2, "steps_per_epoch": 6, "shared_steps": 1, "shared_samples": 3, "seen_samples": 97,
            "each_once": True, "drop_last": False, "model_step": 5, "model_val_loss": 2.25, "ended_early": "why",
            "model_scores": {"accuracy_code": 0.5}}  # fmt: skip
HEARTBEAT = {"version": 1, "rank": 0, "node": "n1", "time": AT + 590.5, "interval": 10.0, "phase": "training",
             "since": AT + 9.0, "pid": 77, "step": 7, "steps": 9, "stepped": AT + 500.0, "step_s": 0.5, "data_s": 0.1,
             "compute_s": 0.3, "tokens_per_second": 900.0, "memory_peak_gib": 9.5, "node_memory_peak_gib": 20.0,
             "gpu": {"name": "A100", "use": 99.0, "memory_gib": 70.0, "mean_use": 80.0, "samples": 9, "peak_gib": 75.0},
             }  # fmt: skip
METRIC = {"step": 7, "time": AT + 500.0, "loss": 2.5, "val_loss": 2.25, "tokens_per_second": 900.0, "epoch": 0.5,
          "trained_s": 400.0}  # fmt: skip
SAMPLE = {"step": 7, "prompt": "Once", "text": "upon a time"}
PROGRESS = {"version": 1, "step": 8, "stepped": AT + 510.0, "steps": 9, "loss": 2.25, "first_step": 1,
            "first_step_at": AT + 9.5, "warm_step": 2, "warm_step_at": AT + 20.0,
            "losses": [[1, 2.5], [8, 2.25]], "warning": "the loss oscillates"}  # fmt: skip
SPEC = {"version": 1, "workdir": "/", "work": {"kind": "script", "path": "/usr/bin/env", "args": ["--lr", "1"]},
        "nodes": 2, "gpus-per-node": 0, "tasks_per_node": 1, "job_name": "train", "requeue": True,
        "python": "/usr/bin/python3",
        "directives": [["time", "1:00:00"], ["dependency", "afterok:5"]], "env": [["A", "b"]], "secrets": ["HOME"],
        "setup": ["true"], "sbatch_args": ["--quiet"], "time_limit": 3600, "process_group": "expected",
        "container_mounts": [], "resume_args": "--resume"}  # fmt: skip
SOURCES = {"nodes": [2, "--nodes"], "env": [{"A": "b"}, "clusterrun.toml"], "set": [{"lr": 1}, "jobs/x.toml"],
           "time": ["1:00:00", "--time"], "exclude": ["n7", "--exclude"], "python": ["python3", "default"],
           "independent": [False, "default"],
           "mem": ["80G", "--mem"], "gpus-per-node": [4, "--gpus-per-node"]}  # fmt: skip
SNAPSHOT = {
    "version": 1,
    "root": "/u",
    "digest": "0" * 20,
    "commit": "a" * 40,
    "branch": "main",
    "changed": 2,
    "files": 5,
}
SWEEP = {"version": 1, "name": "sweep", "at_once": 4, "jobs": {"b3v7qaabcdefghij": "101"}, "tasks": [[{"lr": "1"}, []]]}
FINAL = {"state": "FAILED", "reason": "NonZeroExitCode", "exit_status": 1, "ended": AT + 600, "nodes": "n[1-2]",
         "elapsed": 596, "restarts": 0, "source": "record", "started": AT + 4, "time_limit": 3600,
         "figures": {"step": 7, "loss": 2.5, "time": AT + 500.0}}  # fmt: skip
_ATTEMPT = "attempts/b3v7qaabcdefghij.0.0"
#: The files of a run, in its folder and (a sweep's) beside it.
NAMES = (
    "record.json", "spec.json", "snapshot.json", "notify.json", "metrics.jsonl", "samples.jsonl",
    "claims/b3v7qaabcdefghij/owner", "submissions/b3v7qaabcdefghij.json", "../../sweeps/20261121-000001-k3v7qa.json",
    *(f"{_ATTEMPT}/{name}" for name in (
        "start.json", "end.json", "first_failure.json", "hang.json", "training.json", "check.json", "launch.json",
        "hold.json", "packages.json", "requeue.json", "end-time.json", "node-0.ranks", "log-start",
        "log-clock", "nodes", "progress.json", "link.json"))
)  # fmt: skip
#: What a file of a run holds: a JSON document, or a text.
Content = dict[str, Any] | str


def make_run(store: Store, number: int = 1) -> RunRecord:
    """A run that ended, with every file that any reader of its folder opens."""
    run = submitted(store, number, sources={name: tuple(pair) for name, pair in SOURCES.items()}, nodes=2,
                    workers_per_node=1, sweep=f"20261121-{number:06}-k3v7qa")  # fmt: skip
    claim(run)
    folder = attempt(run, start=START, end=end(1, due=""), first_failure=FAILURE, training=TRAINING, check=CHECK,
                     hold={"until": AT, "shell": "clusterrun exec 101"},
                     packages={"version": 1, "packages": ["numpy==2.0"]}, requeue={"why": "preempted"},
                     hang={"cause": "rank 1 hangs", "rank": 1, "node": "n2", "pid": 3, "stacks": True,
                           "nccl": {"lines": ["rank 1 is behind"], "problem": ""}})  # fmt: skip
    put_progress(folder, 0, HEARTBEAT)
    put_end(folder, 0, {"rank": 0, "node": "n1", "status": 0, "time": AT + 600.0, "any_joined_group": True})
    texts: dict[str, Content] = {
        f"attempts/{folder.name}/launch.json": LAUNCH,
        f"attempts/{folder.name}/end-time.json": {"version": 1, "end": AT + 900, "checked": AT + 30.0},
        f"attempts/{folder.name}/progress.json": PROGRESS,
        f"attempts/{folder.name}/link.json": {"version": 1, "page": "https://wandb.ai/me/train/runs/k3v7qa"},
        "spec.json": SPEC, "snapshot.json": SNAPSHOT, "notify.json": {"target": "mail:me", "on": ["failed"]},
        "metrics.jsonl": json.dumps(METRIC) + "\n", "samples.jsonl": json.dumps(SAMPLE) + "\n",
        f"attempts/{folder.name}/log-start": "0 0\n", f"attempts/{folder.name}/log-clock": f"{AT + 9}.5 10 20\n",
        f"attempts/{folder.name}/nodes": "n1\nn2\n", "../../sweeps/" + f"{run.sweep}.json": SWEEP | {
            "tasks": [[{"lr": "1"}, [run.run_id]]]},
        f"submissions/{run.submission.token}.json":
            json.loads((run.run_dir / "submissions" / f"{run.submission.token}.json").read_text()) | {
                "submitter": ["host", 12, 345], "final": FINAL},
    }  # fmt: skip
    (run.root / "logs").mkdir(exist_ok=True)
    for kind in ("out", "err"):
        (run.root / "logs" / f"train_{run.job_id}.{kind}").write_text("0: step 1\n1: ValueError: no\n")
    for name, content in texts.items():
        path = (run.run_dir / name).resolve()
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    whole = run_record.load(run.run_dir)
    assert whole is not None
    return whole


def files(run: RunRecord) -> dict[str, bytes]:
    """The files of a run's folder and its sweep's, by their names in messages."""
    folder = run.run_dir
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found["../../sweeps/" + f"{run.sweep}.json"] = (folder.parents[1] / "sweeps" / f"{run.sweep}.json").read_bytes()
    return {name: data for name, data in found.items() if name != "script.sh"}


class NoCluster:
    """A cluster whose Slurm is not at hand."""

    environ: Mapping[str, str] = {"HOME": "/", "PATH": "/usr/bin"}
    user = "me"

    def scheduler(self, name: str) -> Scheduler:
        raise NoScheduler("no Slurm here")


class RecordsOnly(NoCluster):
    """The same, with the records of projects."""

    def store(self, root: Path | None = None) -> Store:
        assert root is not None
        return Store(root, root / "state")


def _as_running(run: RunRecord) -> RunState:
    return RunState(run, JobStatus(id=JobId("101"), state="RUNNING", outcome=Outcome.RUNNING, name="train", elapsed=60))


def _as_ended(run: RunRecord) -> RunState:
    return RunState(run, JobStatus(id=JobId("101"), state="FAILED", outcome=Outcome.FAILED, exit_status=1))


def _shown(state: RunState) -> Iterator[object]:
    yield json.dumps(show.status_json(state))
    yield show.state_lines(state, explain=True)
    yield show.list_row(state)
    yield show.state_row(state)


def _states(store: Store, run: RunRecord) -> Iterator[object]:
    state = reconcile.state_from_records(store, run, "why")
    yield from _shown(state)
    yield from _shown(_as_running(run))
    yield reconcile.needs_query(run, AT)
    yield reconcile.identify(store, replace(run, submissions=(replace(run.submission, state="submitting"),)),
                             reconcile.JobIndex([]), "lab", answered=True, now=AT + 1e6)  # fmt: skip


def all_runs(store: Store, run: RunRecord) -> Iterator[object]:
    yield store.all()
    yield store.summaries(here=True)
    yield store.open_runs(), store.summaries()
    yield store.by_run_id(run.run_id)
    yield store.by_job(JobId("101"))
    yield store.array_of(JobId("101"))
    yield cleaning.find_unreadable(store.folders(), store.all())
    yield cleaning.find_users([run], store.all())


def _joined(store: Store, run: RunRecord) -> Iterator[object]:
    answer = Answer([JobStatus(id=JobId("101"), state="RUNNING", outcome=Outcome.RUNNING, name="train.x")])
    yield reconcile.reconcile(store, _Silent(), [run], now=AT + 700.0, answer=answer)  # type: ignore[arg-type]


class _Silent:
    cluster = "lab"

    def account(self, *_: object) -> Answer:
        return Answer()


def _top(store: Store, run: RunRecord) -> Iterator[object]:
    data = TopData(NoCluster())  # type: ignore[arg-type]
    found = data.ranks(_as_running(run))
    yield [one.gpu for one in found.ranks]
    yield data.logs(_as_running(run))


def _logs(store: Store, run: RunRecord) -> Iterator[object]:
    logs = logfiles.RunLogs(run, run.job_id or JobId("101"))
    for attempts in ((), (0,), (0, 0)):
        source = logs.source(None, attempts)
        yield source
    labels, _ = filter_run({"ranks": [{"rank": 0, "task": 0, "node": "n1"}]}, (0,), (), ())
    yield logs.source(labels)
    yield [launches.log_start(folder) for folder in logs.attempts]
    yield follow.format_attempts([*logs.attempts, Path("x.1.0")])


def _compared(store: Store, run: RunRecord) -> Iterator[object]:
    other = run_record.load(run.run_dir.with_name("20261121-000002-k3v7qa"))
    assert other is not None
    for first, second in ((run, other), (other, run)):
        yield json.dumps([str(one) for one in options.compare_options(first, second)])
        yield code.compare_code(first, second)
        yield environment.compare_environments(first, second)
        yield metrics.compare_metrics(first, second)


def _checked(store: Store, run: RunRecord) -> Iterator[object]:
    yield [one._asdict() for one in expected.check_run(run)]
    if report := check_report.load_report(run):
        yield check_report.rows(report)
        yield check_report.overall(report)


def _why(store: Store, run: RunRecord) -> Iterator[object]:
    for state in (_as_ended(run), reconcile.state_from_records(store, run, "")):
        found = ended.explain(NoCluster(), state)
        yield json.dumps(found.json())
        yield found.facts()
        yield ended.in_one_line(state)
    yield pending.running(_as_running(run))
    yield held_line(_as_running(run))
    yield failed_state(_as_running(run))


def _efficiency(store: Store, run: RunRecord) -> Iterator[object]:
    state = _as_ended(run)
    done = replace(state.status, state="COMPLETED", outcome=Outcome.DONE, elapsed=596, time_limit=3600)
    for one in (state, replace(state, status=done)):
        if card := usage.efficiency_of(store, one):
            yield json.dumps(card.json(), allow_nan=False)
            yield card.lines()
        if wait := waited(one):
            yield json.dumps(wait.json(), allow_nan=False)
            yield wait.line()


def _reported(store: Store, run: RunRecord) -> Iterator[object]:
    states = (_as_running(run), _as_ended(run))
    found = [collect.collect(RecordsOnly(), state, AT + 700.0) for state in states]
    yield json.dumps(found)
    yield page.report_page(found, collect.find_difference(run, run), AT + 700.0)


def _again(store: Store, run: RunRecord) -> Iterator[object]:
    yield resubmit.resubmit_args(run, SubmitArgs(), None, Path("/"), NoCluster.environ, lambda line: None)


def _rendered(store: Store, run: RunRecord) -> Iterator[object]:
    spec, folder = resume._spec_again(run)
    from clusterrun.jobspec.render import Places, RunIdentity, render

    yield render(
        spec, RunIdentity(run.run_id, run.run_dir, run.submission.token), Places(folder, run.logs, Path("/w"), 0o77)
    )
    yield resume.rebuild_submission(run, NoCluster.environ)
    yield plan.task_again(spec, run, SubmitArgs(), 0)
    checks.check_recorded_secrets(["HOME", "X"], run)


def _together(store: Store, run: RunRecord) -> Iterator[object]:
    report = ladder.Ladder([_as_ended(run), _as_ended(run)], lambda state: "no")
    yield json.dumps(report.json())
    yield report.lines()
    of_sweep = table.SweepTable([run], [_as_ended(run)], "loss")
    yield json.dumps(of_sweep.json())
    yield sweeps.job_of(run)
    yield sweeps.runs_of_script(str(run.run_dir.parents[1] / "sweeps" / f"{run.sweep}-abcdefgh.sh"))


def _in_the_job(store: Store, run: RunRecord) -> Iterator[object]:
    folder = next((run.run_dir / "attempts").iterdir())  # the job knows its own, whatever the records hold
    token = run.submission.token
    yield ends.find_failure(folder), ends.find_hang(folder), hold.failed_node(folder)
    yield submissions.is_cancelled(run.run_dir, token), claims._later_owner(run.run_dir, "a" * 16)
    yield [*map(load, launch_folders(run.run_dir, token))], ends.load_job_end(folder), ends.find_stop(folder)
    yield rank_records.read(folder), why_requeued(folder), end_time.read(folder)
    yield [*node_evidence._in_check(folder, ["n1", "n2"])]
    with suppress(WorkerError):
        yield saved_code.variables(run.run_dir)
    notify.Notifier().load(run.run_dir, {})


def _kept(store: Store, run: RunRecord) -> Iterator[object]:
    yield cleaning.is_task(run)
    yield code_store.load_snapshot(run)
    yield code_store.code_line(run)
    yield code_store.is_damaged(run)
    yield code_store.project_path(run, "/u/.clusterrun/snapshots/trees/" + "0" * 20 + "/files/a.py")
    yield run_record.claim_of(run)
    yield progress.last_metrics(run)


View = Callable[[Store, RunRecord], Iterator[object]]
VIEWS: tuple[View, ...] = (
    all_runs, _states, _joined, _top, _logs, _compared, _checked, _why, _efficiency, _reported, _again,
    _rendered, _together, _kept, _in_the_job,
)  # fmt: skip
