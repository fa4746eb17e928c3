"""Scripts and lines as people publish them: what clusterrun makes of them, or the reason and the line to type."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Command
from clusterrun.submit.launcher_table import LAUNCHERS, in_shell
from clusterrun.submit.launchers import Around
from clusterrun.submit.own_ranks import knows_node, refuse_separate
from clusterrun.submit.python_line import as_variables, split_python
from clusterrun.submit.request import Request, SubmitArgs, load_request, resolve_spec
from clusterrun.submit.typed_launch import translate

SCRIPTS = Path(__file__).parents[2] / "data" / "job_scripts"


def flag_values(flags: dict[str, Any]) -> dict[str, Value]:
    return {name.replace("_", "-"): Value(value, f"--{name.replace('_', '-')}") for name, value in flags.items()}


def load(line: str, environ: dict[str, str] | None = None, **flags: Any) -> Request:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(SCRIPTS), **(environ or {})}
    return load_request(SubmitArgs(command=tuple(shlex.split(line)), flags=flag_values(flags)), SCRIPTS, environ)


def refusal(line: str, environ: dict[str, str] | None = None, **flags: Any) -> tuple[str, str]:
    """The message and the hint."""
    with pytest.raises(RequestError) as error:
        load(line, environ, **flags)
    return error.value.message, error.value.hint


def passes(line: str, **flags: Any) -> bool:
    """Whether a line stays as it is; its program need not be here."""
    words, around = shlex.split(line), Around(flag_values(flags), {}, SCRIPTS, {})
    refuse_separate(words, {}, around)
    return translate(words, around)[0] == tuple(words)


@pytest.mark.parametrize(
    ("line", "messages", "hint"),
    [
        ("sbatch aliases.sh", ("left out: --open-mode",),
         "--nodes 2 --gpus-per-node 2 --cpus-per-task 2 --mem 128 -- train.py"),
        ("sbatch late_directives.sh",
         ("Slurm ignores lines 3, 4, which stand after the first command; the command below follows them",),
         "--nodes 2 --gpus-per-node 2 -- train.py"),
        ("./late_directives.sh", ("./late_directives.sh starts srun", "Slurm ignores lines 3, 4"),
         "--nodes 2 --gpus-per-node 2 -- train.py"),
        ("sbatch cores_of_one_task.sh --epochs 3", (),
         "--nodes 1 --cpus-per-task 10 --mem 0 --gres gpu:a100:4 -- train.py --epochs 3"),
        ("sbatch once_per_gpu.sh", ("starts more than one torchrun per node",),
         "--nodes 2 --gpus-per-node 2 -- train.py"),
        ("sbatch node_loop.sh", ("started in a loop (line 5)", "leaves out lines 4, 5, 6, 8", "--machine_rank"),
         "--nodes 2 --gpus-per-node 2 --env ACCELERATE_MIXED_PRECISION=bf16 -- train.py"),
        ("bash node_loop.sh", ("started in a loop (line 5)",),
         "--nodes 2 --gpus-per-node 2 --env ACCELERATE_MIXED_PRECISION=bf16 -- train.py"),
        *((f"{start} escaped.sh", ("--tee of accelerate launch", "--role, --machine_rank, 2>&1 | tee -a all.log"),
           "--nodes 2 --gpus-per-node 2 -- train.py --lr 1e-4") for start in ("sbatch", "bash", "srun bash")),
        ("sbatch unusual_type.sh", (), "--nodes 1 --gres gpu:h100-96:1 -- train.py"),
        ("sbatch runs_another.sh", (), "--nodes 2 --gpus-per-node 2 --env NCCL_DEBUG=INFO -- train.py --lr 1"),
        ("sbatch factory.sh", ("llamafactory-cli train starts the ranks of a node itself",),
         "--nodes 2 --gpus-per-node 4 --launcher none --env FORCE_TORCHRUN=1 -- llamafactory-cli train x.yaml"),
        ("tools/by_variables.sh gpu a.py --x 1", ("tools/by_variables.sh starts srun",),
         '--nodes 2 --gpus-per-node 4 --partition gpu --env "PYTHONPATH=tools/..:$PYTHONPATH"'
         " -- train.py a.py --launcher=slurm --x 1"),
    ],
)  # fmt: skip
def test_a_script_is_refused_with_the_line_that_does_the_same(line: str, messages: tuple[str, ...], hint: str) -> None:
    message, given = refusal(line)
    assert given == f"clusterrun submit {hint}"
    assert [part for part in messages if part not in message] == []


def test_a_scripts_arrays_are_filled_in() -> None:
    arguments = "-- train.py --lr 1e-4 --name 'two words' --steps 10"
    assert refusal("./arrays.sh", nodes=2)[1].endswith(f"--gpus-per-node 2 --env OMP_NUM_THREADS=4 {arguments}")


def test_exported_variables_fill_a_scripts_defaults() -> None:
    _, hint = refusal("bash tools/by_variables.sh gpu a.py", {"GPUS": "4", "PER_NODE": "2", "SRUN_ARGS": "-A acc"})
    assert hint.startswith("clusterrun submit --nodes 2 --gpus-per-node 2 --partition gpu --account acc ")
    _, hint = refusal("GPUS=4 PER_NODE=2 tools/by_variables.sh gpu a.py")
    assert hint.startswith(
        "clusterrun submit --nodes 2 --gpus-per-node 2 --partition gpu --env GPUS=4 --env PER_NODE=2 "
    )
    _, hint = refusal("NPROC_PER_NODE=2 NNODES=2 ./apart.sh 2", nodes=2)
    assert "use in it: torchrun --nnodes $NNODES" in hint, "the script says what it starts, not the variables"


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("sbatch two_groups.sh", "`#SBATCH hetjob`"),
        ("sbatch -N1 : -N1 unusual_type.sh", "`:`"),
        ("srun -N1 python train.py : -N1 python strict.py", "`:`"),
    ],
)
def test_a_heterogeneous_job_is_refused_by_its_name(line: str, sign: str) -> None:
    message, hint = refusal(line)
    assert sign in message and "several groups of nodes" in message and "one job for each group" in hint


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun -N2 --tasks-per-node=2 python train.py", "--nodes 2 --gpus-per-node 0 --tasks-per-node 2 -- train.py"),
        ("srun -lu -N2 -n2 --gpus-per-n=1 train.py", "--nodes 2 --gpus-per-node 1 -- train.py"),
        ("python -m torch.distributed.run --nproc_per_node=2 --nnode=2 train.py",
         "--nodes 2 --gpus-per-node 2 -- train.py"),
        ("srun -N2 --gpus=a100:8 --ntasks-per-node=4 python train.py", "--nodes 2 --gres gpu:a100:4 -- train.py"),
        ("srun -N1 -n4 --gpus-per-task=a100:1 python train.py", "--nodes 1 --gres gpu:a100:4 -- train.py"),
        ("srun -N1 --ntasks-per-gpu=1 --gpus-per-node=4 python train.py", "--nodes 1 --gpus-per-node 4 -- train.py"),
        ("srun -N2 -n4 --gpus-per-node=2 python -W ignore -u train.py --a 1",
         "--nodes 2 --gpus-per-node 2 --env PYTHONWARNINGS=ignore -- train.py --a 1"),
        ("python -X faulthandler -m torch.distributed.run --nproc-per-node=2 -m pkg.train",
         "--gpus-per-node 2 --env PYTHONFAULTHANDLER=1 -- -m pkg.train"),
        ("srun --mail-user= -N1 -n2 train.py", "--nodes 1 --gpus-per-node 0 --tasks-per-node 2 -- train.py"),
    ],
)  # fmt: skip
def test_a_published_line_is_translated(line: str, expected: str) -> None:
    (line,) = [notice.partition(" to: ")[2] for notice in load(line).notices if " to: " in notice]
    assert line.partition("   (left out: ")[0] == f"clusterrun submit {expected}"


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("torchrun --nprocs-per-node 2 train.py", "option not recognized: --nprocs-per-node",
         "did you mean --nproc-per-node?"),
        ("srun --nod 2 train.py", "--nod may mean --nodes or --nodelist or --nodefile", "type the option in full"),
        ("accelerate launch --num_machine 2 train.py", "option not recognized", "did you mean --num-machines?"),
        ("torchrun --local-ranks-filter 0 --nproc_per_node 2 train.py", "--local-ranks-filter of torchrun",
         "clusterrun submit --gpus-per-node 2 -- train.py"),
        ("srun -n 2 -N 2 --ntasks-per-node=1 --gpus-per-task=2 -c 8 torchrun --nproc_per_node 2 train.py --job.x a",
         "srun around torchrun",
         "clusterrun submit --nodes 2 --gpus-per-node 2 --cpus-per-task 4 -- train.py --job.x a"),
        ("srun python -W ignore -m torch.distributed.launch --use-env --nproc_per_node=2 train.py",
         "srun around torch.distributed.launch",
         "clusterrun submit --gpus-per-node 2 --env PYTHONWARNINGS=ignore -- train.py"),
        ("srun --jobid 7 -N2 train.py", "--jobid of srun is not supported",
         "clusterrun submit --nodes 2 --gpus-per-node 0 -- train.py"),
        ("srun --gpus=volta:1,kepler:1 train.py", "several types of GPU",
         "clusterrun submit --gpus-per-node 0 -- train.py"),
    ],
)  # fmt: skip
def test_an_option_that_is_not_understood_is_named(line: str, message: str, hint: str) -> None:
    refused = refusal(line)
    assert message in refused[0] and refused[1] == hint


@pytest.mark.parametrize("option", ["--gpus-per-task=1 -n4", "--ntasks-per-gpu=1 --gpus-per-node=4"])
def test_ranks_that_saw_one_gpu_each_are_told_that_they_see_all(option: str) -> None:
    assert "each rank sees all GPUs of its node" in "\n".join(load(f"srun -N1 {option} python train.py").notices)
    assert "sees all GPUs" not in "\n".join(load("srun -N1 -n4 --gres=gpu:4 python train.py").notices)


def test_a_script_that_would_refuse_its_local_rank_is_named() -> None:
    line = "python -m torch.distributed.launch --nproc_per_node=2 {} --epochs 1"
    assert "warning: strict.py declares no --local-rank" in "\n".join(load(line.format("strict.py")).notices)
    assert "warning" not in "\n".join(load(line.format("train.py")).notices)


ALONE = "2 separate groups of ranks, each with a model of its own"
TORCHRUN = (
    "torchrun --nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node $NPROC_PER_NODE"
    " --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
)


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("torchrun --nproc_per_node 2 --standalone --max-restarts 1 train.py", ALONE,
         f"clusterrun submit --nodes 2 --launcher none -- bash -c '{TORCHRUN} --max-restarts 1 train.py'"),
        ("uv run torchrun --nproc_per_node 2 train.py", ALONE,
         f"clusterrun submit --nodes 2 --launcher none -- bash -c 'uv run {TORCHRUN} train.py'"),
        ("bash -c 'torchrun --nproc_per_node $NPROC_PER_NODE train.py'", ALONE, f"use in it: {TORCHRUN}"),
        ("./apart.sh 2", ALONE, f"use in it: {TORCHRUN}"),
        ("python starts_torchrun.py", ALONE, "give torch.distributed.run the node's number"),
        ("spawns.py", ALONE, "give spawn the node's number"),
        ("python -m fastai.launch train.py", ALONE, "fastai.launch starts the ranks of one node only: use --nodes 1"),
        ("mpirun -np 4 python train.py", "mpirun on each of 2 nodes, and each starts ranks on all of them",
         "leave out --launcher none"),
        ("bash late_directives.sh", "srun on each of 2 nodes, and each starts ranks on all of them",
         "leave out --launcher none"),
    ],
)  # fmt: skip
def test_ranks_that_would_not_meet_are_refused_under_launcher_none(line: str, message: str, hint: str) -> None:
    refused = refusal(line, {"PATH": f"{SCRIPTS / 'bin'}:/usr/bin:/bin"}, nodes=2, launcher="none")
    assert message in refused[0] and refused[1].startswith(hint)
    assert passes(line, launcher="none") and passes(line, launcher="none", nodes=2, independent=True)


def test_a_run_of_one_node_is_not_submitted_again_on_two_where_its_ranks_would_not_meet() -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(SCRIPTS)}
    for nodes in (1, 2):
        flags = flag_values({"nodes": nodes, "launcher": "none"})
        args = SubmitArgs(work=Command("/usr/bin/bash", ("apart.sh", "2")), flags=flags, exact=True)
        with pytest.raises(RequestError, match=ALONE) if nodes == 2 else nullcontext():
            load_request(args, SCRIPTS, environ)


@pytest.mark.parametrize(
    "line",
    [
        "bash together.sh 2",
        f"bash -c '{TORCHRUN} train.py'",
        "torchrun --nnodes 2 --nproc-per-node 2 --rdzv_backend c10d --rdzv_endpoint node1:29500 train.py",
        "torchrun --nnodes 2 --node_rank {node_rank} --master_addr node1 train.py",
        "llamafactory-cli train x.yaml",
        "spawns_on_nodes.py",
        "train.py",
    ],
)
def test_a_program_that_knows_its_node_runs_on_each(line: str) -> None:
    assert passes(line, nodes=2, launcher="none")


def test_a_script_whose_ranks_would_not_meet_gets_no_line_that_starts_it_on_each_node() -> None:
    message, hint = refusal("./apart.sh 2", nodes=2)
    assert ALONE in message and f"{TORCHRUN}; then: clusterrun submit --nodes 2" in hint
    assert refusal("bash together.sh 2", nodes=2)[1].endswith("--launcher none -- bash together.sh 2")


OWN = "starts the ranks of a node itself"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("tune run recipe --config c.yaml",
         f"--nodes 2 --gpus-per-node 4 --launcher none -- bash -c 'tune run {TORCHRUN.removeprefix('torchrun ')}"
         " recipe --config c.yaml'"),
        ("llamafactory-cli train x.yaml",
         "--nodes 2 --gpus-per-node 4 --launcher none --env FORCE_TORCHRUN=1 -- llamafactory-cli train x.yaml"),
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 RANK=0 MASTER_ADDR=a A=1 ./cli train x.yaml",
         "--nodes 2 --gpus-per-node 4 --launcher none --env FORCE_TORCHRUN=1 --env A=1 -- ./cli train x.yaml"),
        ("NPROC_PER_NODE=4 NNODES=2 swift sft --model x",
         "--nodes 2 --gpus-per-node 4 --launcher none -- swift sft --model x"),
        ("xtuner train cfg", "--nodes 2 --gpus-per-node 4 --launcher none"
         " -- bash -c 'ADDR=$MASTER_ADDR PORT=$MASTER_PORT xtuner train cfg'"),
        ("trl sft --model x", "--nodes 2 --gpus-per-node 4 --launcher none -- bash -c 'trl sft --num_machines $NNODES"
         " --machine_rank $NODE_RANK --num_processes $((NNODES * NPROC_PER_NODE)) --main_process_ip $MASTER_ADDR"
         " --main_process_port $MASTER_PORT --model x'"),
    ],
)  # fmt: skip
def test_a_program_that_starts_its_ranks_is_refused_with_the_line(line: str, hint: str) -> None:
    shape = {"nodes": 2, "gpus_per_node": 4}
    message, given = refusal(line, **shape)
    assert OWN in message and given == f"clusterrun submit {hint}"
    message, given = refusal(line, launcher="torchrun", **shape)
    assert "once per rank" in message and given == f"clusterrun submit {hint}"


@pytest.mark.parametrize(
    "line",
    [
        "trl dpo --model x",
        "torchpack dist-run -np 2 python3 train.py",
        "axolotl train c.yml",
        "horovodrun -np 2 python train.py",
        "tune run --nnodes 1 --nproc_per_node 2 recipe --config c.yaml",
        "python -m fastai.launch train.py",
    ],
)
def test_on_one_node_such_a_program_runs_as_typed(line: str) -> None:
    assert refusal(line, gpus_per_node=2)[1] == f"clusterrun submit --gpus-per-node 2 --launcher none -- {line}"


def test_such_a_program_runs_under_the_launchers_that_leave_it_alone() -> None:
    line = "llamafactory-cli train x.yaml"
    assert passes(line, nodes=2, launcher="none")
    assert passes(line, nodes=2, gpus_per_node=4, launcher="srun"), "the user knows"


def test_a_program_for_a_ray_cluster_is_no_launch() -> None:
    assert refusal("ray job submit -- python train.py", nodes=2)[1].startswith(
        "run this command without clusterrun: ray job"
    )


def test_a_line_for_several_nodes_keeps_the_launchers_other_options() -> None:
    line = "accelerate launch --num_processes 8 --num_machines 2 --use_fsdp --fsdp_offload_params true train.py 'a b'"
    assert in_shell(shlex.split(line)).endswith(" --use_fsdp --fsdp_offload_params true train.py 'a b'")
    assert all(in_shell([*launcher.starts[0].split(), "x"]) for launcher in LAUNCHERS.values() if launcher.on_nodes)


def test_a_variable_that_a_text_sets_itself_says_nothing_about_the_node() -> None:
    knowing = (
        "torchrun --node-rank $NODE_RANK",
        "NODE_RANK=${NODE_RANK:-0}",
        "x --rdzv-endpoint=node1:1",
        'os.environ["MASTER_ADDR"]',
        'os.environ.get("NODE_RANK", "0")',
        "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST)",
    )
    ignorant = (
        "NODE_RANK=0\ntorchrun --node-rank $NODE_RANK",
        "export MASTER_ADDR=localhost NODE_RANK=0; x $MASTER_ADDR",
        "# NODE_RANK",
        "torchrun --nproc-per-node $NPROC_PER_NODE",
        "x --rdzv_endpoint localhost:0",
        'os.environ["MASTER_ADDR"] = "localhost"',
        'os.environ.setdefault("MASTER_ADDR", "localhost")',
        "MASTER_ADDR=$(hostname)",
    )
    assert [text for text in knowing if not knows_node(text)] == []
    assert [text for text in ignorant if knows_node(text)] == []


def test_the_options_of_python_become_variables_where_there_are_some() -> None:
    options, program = split_python(
        ["python3.11", "-W", "ignore", "-Xdev", "-uB", "-I", "-W", "default", "-m", "x", "-W"]
    )
    assert program == ["-m", "x", "-W"]
    assert as_variables(options) == ({"PYTHONWARNINGS": "ignore,default", "PYTHONDEVMODE": "1"}, ["-uB", "-I"])
    assert split_python(["./train.py", "-W", "x"]) == ([], ["./train.py", "-W", "x"])
    notices = load("python -I train.py").notices
    assert "ignoring -I of python: the ranks' Python gets no options" in notices


def test_a_memory_limit_in_megabytes_is_named() -> None:
    for mem, told in (("128", True), ("128G", False), ("0", False), ("4000", False), ("500M", False)):
        notices = resolve_spec(load("train.py", mem=mem, gpus_per_node=0), has_gpus=False, local=False)[1]
        assert bool([line for line in notices if line.startswith(f"--mem {mem} is {mem} MB per node")]) == told, mem


def test_a_script_that_is_started_again_without_a_word_that_says_so_is_named() -> None:
    def named(**options: object) -> list[str]:
        notices = resolve_spec(load("train.py", **options), has_gpus=False, local=False)[1]
        return [line.split(":")[0] for line in notices if "step 0" in line]

    assert named(max_restarts=2) == ["--max-restarts without --resume-args"]
    assert named(total_time="5h", time="1h") == ["--total-time without --resume-args"]
    assert named(max_restarts=2, resume_args="--resume auto") == named() == []


FRAGMENTS = st.sampled_from([
    "N=$1", "shift", "for i in 1 2; do", "done", "if true; then", "fi", "A=(", "--x 1", ")", "export A B=2", "A+=(3)",
    'torchrun --nproc_per_node=$N train.py "${A[@]}"', "srun ./self.sh", "bash self.sh ${@:2}", "srun bash -c \"$B\"",
    "#SBATCH -N2 --gres=gpu", "#SBATCH hetjob", "#SBATCH --mem", "cat <<E", "E", "x=$(a $(b))", "echo `c`", "&&", "\\",
    "accelerate launch train.py > log 2>&1 &", "NNODES=2 ./self.sh", "'", '"', "uv run torchrun train.py",
])  # fmt: skip


@given(st.lists(FRAGMENTS | st.text(max_size=8), max_size=12), st.sampled_from(["bash", "sbatch", "srun -N2 bash"]))
def test_any_script_gives_a_line_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], start: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-script"
    folder.mkdir(exist_ok=True)
    (folder / "self.sh").write_bytes("\n".join(lines).encode("utf-8", "replace"))
    for launcher in ("", "none"):
        values = flag_values({"nodes": 2, **({"launcher": launcher} if launcher else {})})
        around = Around(values, {}, folder, {})
        try:
            translate([*start.split(), "self.sh", "4", "a b"], around)
            refuse_separate([*start.split(), "self.sh"], values, around)
        except RequestError as error:
            assert error.message


def test_scripts_that_run_each_other_are_read_once(tmp_path: Path) -> None:
    for name, other in (("a.sh", "b.sh"), ("b.sh", "a.sh")):
        (tmp_path / name).write_text(f"bash {other}\n" * 200)
    assert translate(["bash", "a.sh"], Around({}, {}, tmp_path, {}))[0] == ("bash", "a.sh")
