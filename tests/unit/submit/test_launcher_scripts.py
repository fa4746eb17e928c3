"""A launcher's line beside profiles and default files, and scripts that take the local rank or only look alike."""

from __future__ import annotations

import shlex
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.units import parse_time_limit
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Command, Module, Script
from clusterrun.submit.launchers import Around
from clusterrun.submit.script_launch import ShellScript
from clusterrun.submit.shell_scripts import read
from clusterrun.submit.typed_launch import translate

#: What `accelerate config` writes for one machine.
from tests.support.typed_lines import ACCELERATE_YAML, load, make_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"))


def test_a_line_without_nodes_means_one_whatever_the_profile_says(project: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "clusterrun.toml").write_text('nodes = 4\ngpus-per-node = 8\ntasks-per-node = 2\npartition = "p"\n')
    request = load(tmp_path, "torchrun --nproc_per_node 4 train.py")
    shape = [request.values[name].value for name in ("nodes", "gpus-per-node", "tasks-per-node", "partition")]
    assert shape == [1, 4, 4, "p"]
    assert load(tmp_path, "torchrun --nnodes '$SLURM_NNODES' --nproc_per_node 4 train.py").values["nodes"].value == 4


def test_sources_name_the_launchers_option_and_why_can_repeat_them(project: Path) -> None:
    values = load(project, "srun -N2 --gres=gpu:4 --ntasks-per-node=4 train.py").values
    assert values["nodes"] == Value(2, "--nodes of srun") and values["gpus-per-node"].source == "--gres of srun"
    assert load(project, "torchrun --nproc_per_node 4 train.py").values["gpus-per-node"] == Value(
        4, "--nproc_per_node of torchrun"
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("1:30", 90), ("90", 5400), ("2:00:00", 7200), ("1-12", 129_600), ("1-12:30", 131_400)]
)
def test_the_time_of_a_batch_script_keeps_sbatchs_meaning(tmp_path: Path, text: str, seconds: int) -> None:
    (tmp_path / "train.py").write_text("")
    for option in (f"--time={text}", f"-t {text}"):
        (tmp_path / "run.sh").write_text(f"#!/bin/bash\n#SBATCH {option}\npython train.py\n")
        with pytest.raises(RequestError) as caught:
            load(tmp_path, "sbatch run.sh")
        words = shlex.split(caught.value.hint)
        assert parse_time_limit(words[words.index("--time") + 1]) == seconds


def test_a_value_of_requeue_is_refused_not_dropped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run.sh").write_text("#!/bin/bash\n#SBATCH --requeue=expedite\nsrun python train.py\n")
    with pytest.raises(RequestError, match="--requeue of #SBATCH is not supported: Slurm holds such a job"):
        load(tmp_path, "sbatch run.sh")


def test_what_is_left_out_is_named(project: Path) -> None:
    (notice,) = load(project, "torchrun --nproc_per_node 2 --master_addr a --rdzv_id=7 train.py").notices
    assert notice.endswith("   (left out: --master_addr, --rdzv_id)")
    notices = load(project, "deepspeed train.py").notices
    advice = "to use more than one per node, add --gpus-per-node N"
    assert notices[1] == f"the deepspeed command does not set the number of GPUs; {advice}"


def test_the_default_accelerate_configuration_counts_too(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "huggingface" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "default_config.yaml").write_text(ACCELERATE_YAML)
    (tmp_path / "train.py").write_text("")
    assert load(tmp_path, "accelerate launch train.py").values["env"].value == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    assert "env" not in load(tmp_path, "torchrun train.py").values
    assert load(tmp_path, "accelerate launch --cpu train.py").values["env"].value == {"ACCELERATE_USE_CPU": "true"}


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("old.py --x 1", ("--local_rank={local_rank}", "--x", "1")),
        ("python -u new.py", ("--local-rank={local_rank}",)),
        ("clicks.py", ("--local_rank={local_rank}",)),
        ("old.py --local_rank 0", ("--local_rank", "0")),
        ("old.py --local-rank=0", ("--local-rank=0",)),
        ("both.py", ()),
        ("train.py", ()),
        ("broken.py", ()),
    ],
)
def test_a_script_that_takes_its_local_rank_as_an_argument_gets_it(
    project: Path, line: str, args: tuple[str, ...]
) -> None:
    request = load(project, line)
    assert isinstance(request.work, Script) and request.work.args == args
    assert any("{local_rank}" in notice for notice in request.notices) == any("{" in word for word in args)


def test_another_launcher_is_left_alone(project: Path) -> None:
    for words in (["torchrun", "--tee", "3", "train.py"], ["./twice.sh"], ["sbatch", "x.sh"], ["old.py"]):
        assert translate(words, Around({"launcher": Value("none", "")}, {}, project, {}, pytest.fail)) == (
            tuple(words),
            {},
        )
    with pytest.raises(RequestError):
        translate(["./twice.sh"], Around({"nodes": Value(2, "--nodes")}, {}, project, {}, pytest.fail))
    assert translate(["./twice.sh"], Around({"launcher": Value("srun", "")}, {}, project, {}, pytest.fail)) == (
        ("./twice.sh",),
        {},
    )


def test_a_launcher_within_a_launcher_is_refused(project: Path) -> None:
    words = ["torchrun", "--nproc_per_node", "4", "train.py"]
    with pytest.raises(RequestError, match="would start torchrun once per rank") as error:
        translate(words, Around({"launcher": Value("torchrun", "")}, {}, project, {}, pytest.fail))
    assert error.value.hint == "clusterrun submit --gpus-per-node 4 --launcher torchrun -- train.py"


@pytest.mark.parametrize(
    "line",
    [
        "timeout 60 python train.py --launcher accelerate --lr 1",
        "env -i python train.py --strategy deepspeed",
        "numactl -l python train.py --backend srun",
        "nice -n torchrun python train.py",
        "uv run --with deepspeed train.py",
        "conda run -n deepspeed train.py",
        "env -u LD_PRELOAD python train.py",
        "conda run --no-capture-output python train.py",
    ],
)
def test_words_that_are_no_launcher_pass(project: Path, line: str) -> None:
    words = tuple(line.split())
    assert translate(words, Around({}, {}, project, {}, pytest.fail)) == (words, {})


@pytest.mark.parametrize(
    "line",
    [
        "conda run --no-capture-output torchrun --nproc_per_node 2 train.py",
        "conda run --no-capture-output python -m torch.distributed.run --nproc_per_node 2 train.py",
        "uv run -- torchrun --nproc_per_node 2 train.py",
        "uv run -- deepspeed train.py",
        "numactl -l torchrun train.py",
        "env -u LD_PRELOAD torchrun --nproc_per_node 2 train.py",
        "env -i torchrun --nproc_per_node 2 train.py",
    ],
)
def test_a_launcher_after_a_flag_of_the_program_that_starts_it_is_refused(project: Path, line: str) -> None:
    with pytest.raises(RequestError, match="once per rank"):
        translate(tuple(line.split()), Around({}, {}, project, {}, pytest.fail))


def test_a_launcher_in_usage_text_or_asked_for_its_version_is_no_launch(project: Path) -> None:
    (project / "usage.sh").write_text("#!/bin/sh\ncat <<EOF\ntorchrun train.py\nEOF\ntorchrun --version\npython x.py\n")
    assert translate(["./usage.sh"], Around({}, {}, project, {}, pytest.fail)) == (("./usage.sh",), {})


def test_a_program_of_ones_own_with_a_launchers_name_passes(project: Path) -> None:
    for name in ("accelerate", "deepspeed", "srun"):
        words = (f"./{name}", "-N", "2", "train.py")
        assert translate(words, Around({}, {}, project, {}, pytest.fail)) == (words, {})


def test_variables_that_clusterrun_sets_are_left_out(project: Path) -> None:
    words = ["MASTER_PORT=29501", "A=1", "torchrun", "--nproc_per_node", "4", "train.py"]
    command, options = translate(words, Around({}, {}, project, {}, lambda notice: None))
    assert command == ("train.py",)
    assert options["env"].value == {"A": "1"}


def test_a_local_rank_of_subcommands_or_of_one_rank_is_not_added(project: Path) -> None:
    (project / "sub.py").write_text("s = p.add_subparsers()\ns.add_parser('train').add_argument('--local_rank')\n")
    assert translate(["sub.py", "train"], Around({}, {}, project, {}, pytest.fail)) == (("sub.py", "train"), {})
    single = {"gpus-per-node": Value(0, "--gpus-per-node")}
    assert translate(["old.py"], Around(single, {}, project, {}, pytest.fail)) == (("old.py",), {})


def test_a_long_chain_of_calls_does_not_stop_a_submission(project: Path) -> None:
    (project / "chain.py").write_text("# --local_rank\nA()" + ".add(0)" * 900)
    assert translate(["chain.py"], Around({}, {}, project, {}, pytest.fail)) == (("chain.py",), {})


def test_shell_scripts_without_a_launcher_run_as_before(project: Path) -> None:
    assert load(project, "./plain.sh a").work == Command(f"{project}/plain.sh", ("a",))
    assert load(project, "./installer.sh").work == Command(f"{project}/installer.sh")
    assert load(project, "env true").work == Command("/usr/bin/env", ("true",))
    assert isinstance(load(project, "-m pkg.train").work, Module)


WORD = st.text(st.characters(blacklist_characters="\n\0", blacklist_categories=("Cs",)), max_size=12).filter(":".__ne__)
OPTION = st.sampled_from(
    ["--nnodes", "-m", "--", "--nproc_per_node=3", "-h", "--devices", "-N2", "--help", "$HOME", "{x}"]
)
LAUNCHERS = st.sampled_from([
    "torchrun --nproc_per_node 2", "accelerate launch --num_processes 2", "srun -n2",
    "deepspeed --no_local_rank", "-m torch.distributed.launch --use-env",
])  # fmt: skip


@given(LAUNCHERS, st.lists(WORD | OPTION, max_size=6))
def test_the_scripts_own_words_pass_unchanged(project: Path, launcher: str, words: list[str]) -> None:
    notices: list[str] = []
    typed = [*launcher.split(), "train.py", *words]
    program, _ = translate(typed, Around({}, {}, project, {}, notices.append))
    assert program == ("train.py", *words)
    line = notices[0].partition(" to: ")[2].partition("   (left out: ")[0]
    assert shlex.split(line)[-len(words) - 1 :] == ["train.py", *words]


@given(st.lists(st.text(string.printable, max_size=10), max_size=5))
def test_any_words_give_a_command_or_an_error(project: Path, words: list[str]) -> None:
    for launcher in (["torchrun"], ["srun"], ["mpirun"], ["fabric", "run"], ["sbatch"], ["bash", "-c"]):
        try:
            translate([*launcher, *words], Around({}, {}, project, {}, lambda line: None))
        except RequestError as error:
            assert error.message


def test_variables_that_double_each_other_do_not_fill_the_memory() -> None:
    lines = [f"A{number}=$A{number - 1}$A{number - 1}\n" for number in range(1, 17)]
    script = ShellScript("x.sh", "A0=x\n" + "".join(lines) + "torchrun $A16 train.py\n")
    read(script, lambda words: "torchrun" in words, {})
    assert script.command[0] == "torchrun" and sum(map(len, script.command)) < 20_000
