"""What reads files beside the folders of runs, streams and the answers of programs other than Slurm's."""

from __future__ import annotations

import io
import json
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterrun.base import nccl_ras
from clusterrun.base.decode import Damaged
from clusterrun.base.job import JobId
from clusterrun.cli.common import link
from clusterrun.config import profiles, toml_lines
from clusterrun.logs import frames
from clusterrun.preflight import settings
from clusterrun.records import code_store, ended_index
from clusterrun.records.store import Store
from clusterrun.run_folder import files
from clusterrun.scheduler.local import jobfiles
from clusterrun.scheduler.local.devices import free_devices
from clusterrun.scheduler.slurm import client
from clusterrun.scheduler.slurm.cache import QueueCache
from clusterrun.sizing import job_facts
from clusterrun.submit import accelerate_yaml, script_source
from clusterrun.submit.launcher_table import ACCELERATE
from clusterrun.sweeps import parameters
from clusterrun.system.processes import boot_id, host_name
from clusterrun.why import stacks
from clusterrun.why.causes import flight_recorder
from clusterrun.worker.job import trainer_files
from clusterrun.worker.node import left_behind
from tests.support import run_readers
from tests.support.nccl_stand_in import Communicator, as_json, as_text, ranks
from tests.support.slurm_readers import answer

Reader = Callable[[Path, bytes], Iterator[object]]
JOB = {"version": 1, "token": "a" * 16, "run_dir": "/r",
       "script": "/r/s.sh", "workdir": "/", "logs": "/l", "umask": 63, "nodes": 1, "tasks_per_node": 2,
       "gpus_per_node": 0, "time_limit": 60,
       "dependency": "afterok:L2", "submitted": 1_795_000_000, "grace": 5.0, "kill_on_invalid_dep": True}  # fmt: skip
STATE = {"version": 1, "supervisor": [1, 5], "host": host_name(), "boot": boot_id(), "state": "RUNNING", "reason": "",
         "started": 1_795_000_001, "started_clock": 5.5, "ended": None, "elapsed": 3, "exit_status": None,
         "script": [2, 6],
         "devices": ["0", "1"]}  # fmt: skip
SETTINGS = {"global_batch_size": 0, "micro_batch_size": 4, "grad_accum_steps": 0, "base_batch_size": 0, "epochs": 1.0,
            "steps": 0, "lr": 0.001, "lr_scaling": "none", "warmup": 10, "drop_last": False, "precision": "bf16",
            "seq_len": 64, "parallel": "ddp"}  # fmt: skip
PLAN = {"version": 1, "task": "lm", "settings": SETTINGS, "default_global_batch": 16, "samples": 100, "tokens": 6400,
        "model": {"parameters": 1000, "vocabulary": 50, "layers": 2, "width": 8}}  # fmt: skip
DUMP = {"version": "2.10", "pg_status": {"0": {"last_enqueued_collective": 7}},
        "entries": [{"profiling_name": "nccl:all_reduce", "frames": [{"filename": "/u/a.py", "line": 3}]}]}  # fmt: skip
THREADS = [
    {"os_thread_id": 7, "pid": 7, "frames": [{"short_filename": "a.py", "filename": "/u/a.py", "line": 3, "name": "f"}]}
]
SENT = {"version": 1, "terminal": True, "environ": {"TERM": "xterm"}, "submission": None, "job": "5",
        "places": {"out": {"at": 3, "mark": "aabb", "ended": False}}}  # fmt: skip
CONFIG = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "mixed_precision": "bf16",
          "num_machines": 2, "num_processes": 8, "dynamo_config": {"dynamo_backend": "inductor"}}  # fmt: skip
PROFILE = """account = "abc"
time = "1:00:00"
nodes = 2
modules = ["cuda"]
env.NCCL_DEBUG = "INFO"
sbatch-arg = ["--switches=1"]
[profile.big]
nodes = 4
[profile.big.env]
A = "b"
"""
TASK = """task = "sft"
nodes = 2
[set]
lr = 1e-4
[sweep]
lr = [1e-4, 3e-4]
seed = "0..2"
max-running = 2
"""


def _local_job(folder: Path, name: str, data: bytes) -> Iterator[object]:
    place = folder / "local" / "L1"
    place.mkdir(parents=True, exist_ok=True)
    for file, right in (("job.json", JOB), ("state.json", STATE)):
        (place / file).write_bytes(data if file == name else json.dumps(right).encode())
    yield jobfiles.read_status(place)
    yield free_devices(place.with_name("L2"), ("0",), set())


def _attempts(folder: Path, data: bytes) -> Iterator[object]:
    attempt = folder / "r" / "attempts" / f"{'a' * 16}.0.0"
    attempt.mkdir(parents=True, exist_ok=True)
    (attempt.with_name(f"{'a' * 16}.²")).mkdir(exist_ok=True)
    (attempt / "end.json").write_bytes(data)
    known = {name: value for name, value in JOB.items() if name != "version"}
    yield jobfiles.end_record(jobfiles.Job(**{**known, "run_dir": str(folder / "r")}))


def _facts(folder: Path, data: bytes) -> Iterator[object]:
    path = folder / "facts.json"
    path.write_bytes(data)
    yield client._cached_facts(path)


def _queue(folder: Path, data: bytes) -> Iterator[object]:
    cache = QueueCache(folder, "default", "lab")
    cache.save("", 0.0)
    cache._path.write_bytes(data)
    yield cache.load(), cache.load_newest()


def _recent(folder: Path, data: bytes) -> Iterator[object]:
    path = folder / "lab.answer"
    path.write_bytes(data)
    yield client.load_answer(path, 1e9)


def _index(folder: Path, data: bytes) -> Iterator[object]:
    (folder / "state").mkdir(exist_ok=True)
    (folder / "state" / "index").write_bytes(data)
    store = Store(folder, folder / "state")
    yield store.folders(), store.all(), store.open_runs(), store.summaries(), store.by_job(JobId("5"))


def _ended(folder: Path, data: bytes) -> Iterator[object]:
    runs = folder / ".clusterrun" / "runs"
    store = Store(folder, folder / "state")
    if not runs.exists():
        run_readers.make_run(store)
        store.all()
    records = runs.parent / "over" / "records"
    records.write_bytes(data)
    yield store.all(), store.summaries()
    index, text = ended_index.load_index(runs), data.replace(b"\n", b" ")
    record = records.read_bytes().splitlines()[-1][8:].partition(b"\t")[0]  # the run was read, and added
    for line in (next(iter(index.values())).encode() + b" " + text + b"\t{}", record + b"\t" + text):
        records.write_bytes(ended_index._sum(line) + line)
        found = ended_index.load_records(runs, index)
        yield found, [dict(run.sources) for run in found.values()]


def _manifest(folder: Path, data: bytes) -> Iterator[object]:
    (folder / code_store.MANIFEST).write_bytes(data)
    yield code_store.load_manifest(folder)


def _frames(folder: Path, data: bytes) -> Iterator[object]:
    stream = io.BytesIO(data)
    yield frames.read_job(stream)
    yield from frames.read_frames(stream)


def _sent(folder: Path, data: bytes) -> Iterator[object]:
    yield link.read_link(data.decode("utf-8", "surrogateescape"), {})


def _toml(folder: Path, data: bytes) -> Iterator[object]:
    (folder / "clusterrun.toml").write_bytes(data)
    yield profiles.load_profiles(folder, {"HOME": str(folder)})


def _job_file(folder: Path, data: bytes) -> Iterator[object]:
    (folder / "x.toml").write_bytes(data)
    yield profiles.load_job("./x.toml", folder, cwd=folder, environ={})


def _line_of(folder: Path, data: bytes) -> Iterator[object]:
    text = data.decode("utf-8", "replace")
    yield toml_lines.line_of(text, ("profile", "big", "env", "A")), toml_lines.line_of(text, ("nodes",))


def _csv(folder: Path, data: bytes) -> Iterator[object]:
    (folder / "x.csv").write_bytes(data)
    yield parameters.read_rows(folder / "x.csv", "x.csv")


def _script(folder: Path, data: bytes) -> Iterator[object]:
    (folder / "x.py").write_bytes(data)
    yield script_source.read_text(folder / "x.py")


def _stacks(folder: Path, data: bytes) -> Iterator[object]:
    text = data.decode("utf-8", "backslashreplace")
    yield stacks._by_pid(f"\n{stacks._MARK}7\n{text}")
    yield stacks.describe([stacks._parse(stacks.RankStack(0, "n1", 7), text)], 0)


def _nccl(folder: Path, data: bytes) -> Iterator[object]:
    processes = [nccl_ras.Process(rank, "n1", 1000 + rank) for rank in range(8)]
    with suppress(Damaged):
        yield nccl_ras.summarize(data.decode("utf-8", "backslashreplace"), processes, [3])


def _nccl_client(folder: Path, data: bytes) -> Iterator[object]:
    yield nccl_ras.first_answer([("n1", data)], [], [])


def _dump(folder: Path, data: bytes) -> Iterator[object]:
    found = flight_recorder.read_dump(data)
    if found is not None:
        yield flight_recorder.ranks_behind({0: found, 1: found, 2: ({"0": 9}, "")})


def _plan(folder: Path, data: bytes) -> Iterator[object]:
    yield job_facts.parse_facts(data.decode("utf-8", "backslashreplace"))


def _settings(folder: Path, data: bytes) -> Iterator[object]:
    yield settings._results(data.decode("utf-8", "backslashreplace"))


def _accelerate(folder: Path, data: bytes) -> Iterator[object]:
    found = accelerate_yaml.parse_config(data.decode("utf-8", "backslashreplace"), "x.yaml")
    yield list(accelerate_yaml._options(found, ACCELERATE, "x.yaml", set()))


def _document(folder: Path, data: bytes) -> Iterator[object]:
    (folder / "document.json").write_bytes(data)
    yield files.read_json(folder / "document.json")


def _trainer_file(name: str) -> Reader:
    def read(folder: Path, data: bytes) -> Iterator[object]:
        (folder / name).write_bytes(data)
        yield trainer_files.read(folder / name)

    return read


_INDEX = b'["lab", "5", "/p/.clusterrun/runs/20261121-000001-k3v7qa"]\n'
_FRAMES = frames.begin_frames("5") + b'{"n": 3, "file": "out", "at": 3, "mark": "aabb"}\nabc'
_RESULTS = b'{"wrong": "", "missing": ["a"], "doubts": []}\n{"wrong": "x", "missing": [], "doubts": []}\n'
_COMMUNICATORS = [Communicator(7, ranks(8, behind=[3], gone={1: "unresponsive", 2: "left", 4: "dead"}))]
_HEAD = {"cluster": "lab", "boot": "b", "begun": 1.0, "took": 0.1, "wall": 5.0}
_ROWS = answer("squeue-24.11").encode()


#: By name: what is right, a JSON document or bytes, and what reads it.
def _gpu_processes(folder: Path, data: bytes) -> Iterator[object]:
    text = data.decode(errors="replace")
    yield left_behind.parse(text, ["0"]), left_behind.parse(text, ["MIG-1"])


CASES: dict[str, tuple[Any, Reader]] = {
    "a local job": (JOB, lambda folder, data: _local_job(folder, "job.json", data)),
    "a local job's state": (STATE, lambda folder, data: _local_job(folder, "state.json", data)),
    "a local job's end": ({"version": 1, "status": 1}, _attempts),
    "the facts of a cluster": ({"cluster": "lab", "accounting": True, "gpus": False}, _facts),
    "the queue's cache": (json.dumps({**_HEAD, "crc": zlib.crc32(_ROWS)}).encode() + b"\n" + _ROWS, _queue),
    "a recent answer": (b"normal|1\n", _recent),
    "the index": (_INDEX, _index),
    "the records of ended runs": ({"run_id": "20261121-000001-k3v7qa", "sources": {"nodes": [2, "x"]}, "submissions": [
        {"token": "a" * 16, "log_start": [0, 0], "submitter": ["h", 1, 2]}]}, _ended),
    "the manifest of saved code": (b"100644\0" + b"a" * 40 + b"\0train.py\0", _manifest),
    "frames of a remote log": (_FRAMES, _frames),
    "what the user's machine sends": (SENT, _sent),
    "a profile": (PROFILE.encode(), _toml),
    "a job file": (TASK.encode(), _job_file),
    "the line of a key": (PROFILE.encode(), _line_of),
    "a table of parameters": (b'lr,seed\n1e-4,0\n"3e-4",1\n', _csv),
    "a script": (b"import torch\n", _script),
    "py-spy's answer": (THREADS, _stacks),
    "NCCL's answer": (json.loads(as_json(_COMMUNICATORS, "2.29.7")), _nccl),
    "NCCL's answer in an older version": (as_text(_COMMUNICATORS).encode(), _nccl),
    "what NCCL's client prints": ({"answer": "x", "problem": ""}, _nccl_client),
    "a flight recorder's dump": (pickle.dumps(DUMP), _dump),
    "the sizes of a job": (PLAN, _plan),
    "the check of settings": (_RESULTS, _settings),
    "an accelerate configuration": (CONFIG, _accelerate),
    "a document of the job's own": ({"request": 5}, _document),
    "a trainer's state": ({"global_step": 5, "max_steps": 9, "log_history": [{"loss": 0.5}]},
                          _trainer_file("trainer_state.json")),
    "a trainer's table": (b"epoch,step,train_loss\n0,49,0.5\n", _trainer_file("metrics.csv")),
    "nvidia-smi's processes": (b"GPU-1, 31, 2048\nMIG-1, 32, [N/A]\n", _gpu_processes),
    "a trainer's rows": (b'{"step": 5, "loss": 0.5}\n', _trainer_file("metrics.jsonl")),
}  # fmt: skip
#: Readers that no case calls, and what does.
NOT_HERE: dict[tuple[str, str], str] = {
    ("records/agreed.py", "has_agreed"): "bytes that are compared, as they are",
    ("cli/completion.py", "_add_line"): "lines of the user's own .bashrc, which are compared",
    ("cli/mcp.py", "run_verb"): "what a command of this package prints",
    ("records/exported.py", "find_model"): "the one key of a model's card, compared: unit/cli/test_push.py",
    ("compare/code.py", "_read"): "lines of a saved file, as they are",
    ("records/code_store.py", "_link"): "copies a saved file",
    ("remote/files.py", "send"): "names of files that an earlier command sent; needs a host",
    ("remote/setup.py", "install"): "files of this package",
    ("remote/setup.py", "make_wheel"): "files of this package",
    ("scheduler/local/processes.py", "environment"): "the kernel's",
    ("terminal/plot.py", "plot"): "plotext's build() draws",
    ("top/demo.py", "Recording.__init__"): "a file of this package",
    ("submit/accelerate_yaml.py", "load"): "starts a Python, whose answer `parse_config` reads",
}
#: The modules that decode without the shared decoders, and why.
DECODERS: dict[str, str] = {
    "config/toml_lines.py": "all TOML",
    "scheduler/slurm/executor.py": "pickles of submitit, which only the user can have written",
    "sweeps/parameters.py": "the only CSV",
    "worker/hub.py": "names of files that this package sends",
    "worker/rank/barriers.py": "signed messages between ranks",
    "worker/rank/callable.py": "pickles of submitit, which only the user can have written",
    "worker/tasks/check_settings.py": "a line that this package sends",
    "worker/checks/__init__.py": "signed messages between ranks",
    "worker/data/conversations.py": "the user's data: worker/test_sft.py",
    "worker/data/formats.py": "the user's data: worker/test_data_formats.py",
    "worker/data/labelled.py": "its own cache: worker/test_foreign_files.py",
    "worker/data/prepared.py": "its own cache: worker/test_foreign_files.py",
    "worker/models/folder.py": "a model's folder: worker/test_models_load.py",
    "worker/job/notify.py": "runs as a program without the package",
    "worker/job/step.py": "the one line of the rendezvous helper that it started",
    "worker/tasks/__init__.py": "values that the user types",
    "worker/training/checkpoint.py": "what it has just encoded",
    "worker/training/consensus.py": "messages between ranks",
    "worker/training/resume.py": "a checkpoint, whose reader catches every error: worker/test_foreign_files.py",
}
