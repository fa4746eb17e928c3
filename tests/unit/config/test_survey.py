"""The survey of a cluster and the profile written from it.

``tests/data/slurm`` holds what Slurm 22.05.8 answered (host names and folders replaced): a cluster with accounting and
typed GPUs, one node drained and a partition down; one with plain GPUs; one without GPUs or accounting; a dead
controller; no configuration at all.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import CommandError
from clusterrun.base.fields import FIELD
from clusterrun.config import survey
from clusterrun.config.init_file import choose_partition, config_text, toml_text
from clusterrun.config.profiles import load_profiles, merge
from clusterrun.config.survey import Survey, run_survey
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Script, build_spec
from clusterrun.scheduler.slurm import sacctmgr, scontrol
from clusterrun.scheduler.slurm.sacctmgr import Association
from clusterrun.scheduler.slurm.sinfo import NodeGroup, PartitionSummary, parse_sinfo
from clusterrun.scheduler.slurm.values import parse_gpus
from clusterrun.system.shell import Completed
from tests.support.folders import DATA

SLURM_TEXTS = DATA / "slurm"


def data(name: str) -> str:
    return (SLURM_TEXTS / f"{name}.txt").read_text()


def answering(**answers: Completed | CommandError | str) -> Callable[[Sequence[str]], Completed]:
    """A door to a cluster whose programs answer what is given, and are not there otherwise."""
    asked: list[str] = []

    def run(argv: Sequence[str]) -> Completed:
        asked.append(argv[0])
        answer = answers.get(argv[0].replace("-", "_"), CommandError(argv, status=None, stderr="No such file"))
        if isinstance(answer, CommandError):
            raise answer
        return Completed(0, answer, "") if isinstance(answer, str) else answer

    run.asked = asked  # type: ignore[attr-defined]
    return run


def accounting_cluster() -> Survey:
    return run_survey(
        answering(sinfo=data("sinfo-mixed"), scontrol=data("config-accounting"), sacct="", sacctmgr=data("assoc-two")),
        "alice",
    )


def test_a_cluster_with_accounting() -> None:
    facts = accounting_cluster()
    assert (facts.slurm, facts.accounting, facts.cluster) == ("yes", "yes", "pfacct")
    assert facts.enforce == ("associations", "limits", "qos", "safe")
    assert facts.associations == (
        Association("nlp", "gpu", ("long", "normal"), ""),
        Association("ml", "", ("high", "normal"), "normal"),
    )
    gpu, *_, long = facts.partitions
    assert (gpu.name, gpu.default, gpu.up, gpu.time_limit, gpu.default_time) == (
        "gpu",
        True,
        True,
        "infinite",
        "1:00:00",
    )
    assert [(n.state, n.usable) for n in gpu.nodes] == [("drained", False), ("mixed", True), ("idle", True)]
    assert (gpu.node_count, gpu.gpu_total, gpu.typical) == (3, 24, NodeGroup(3, 16, 64000, (("a100", 8),), ""))
    assert (long.name, long.up, long.default) == ("long", False, False)


def test_its_profile() -> None:
    text = config_text(accounting_cluster())
    settings = tomllib.loads(text)
    assert {k: v for k, v in settings.items() if k != "profile"} == {
        "scheduler": "slurm",
        "partition": "gpu",
        "gpus-per-node": 8,
    }
    assert settings["profile"]["low"] == {"partition": "low", "gpus-per-node": 8}
    assert "long" not in settings["profile"]  # that one is down
    for line in ('#gres = "gpu:a100:8"', "#cpus-per-task = 2", '#account = "nlp"', "# Your accounts: nlp, ml."):
        assert line in text


def test_a_cluster_without_gpus_or_accounting() -> None:
    door = answering(sinfo=data("sinfo-nogpu"), scontrol=data("config-plain"))
    facts = run_survey(door, "alice")
    assert (facts.accounting, facts.enforce, facts.associations) == ("none", (), ())
    assert door.asked == ["sinfo", "scontrol"]  # type: ignore[attr-defined]
    settings = tomllib.loads(config_text(facts))
    assert settings == {"scheduler": "slurm", "partition": "gpu", "gpus-per-node": 0}
    assert "has no accounting" in config_text(facts)


def test_accounting_is_asked_where_the_configuration_is_silent() -> None:
    disabled = Completed(1, "", data("sacct-disabled"))
    facts = run_survey(answering(sinfo=data("sinfo-gpu"), scontrol=Completed(1, "", "no"), sacct=disabled), "alice")
    assert (facts.accounting, facts.cluster) == ("none", "")
    facts = run_survey(answering(sinfo=data("sinfo-gpu"), sacct=Completed(1, "", "Connection refused")), "alice")
    assert facts.accounting == "silent"
    assert "Slurm accounting did not respond" in config_text(facts)


def test_an_account_is_missing() -> None:
    facts = run_survey(
        answering(sinfo=data("sinfo-gpu"), scontrol=data("config-accounting"), sacct="", sacctmgr=""), "bob"
    )
    assert "You have no Slurm account" in config_text(facts)


@pytest.mark.parametrize(
    ("answer", "slurm"),
    [
        (CommandError(["sinfo"], status=None, stderr="No such file or directory: sinfo"), "none"),
        (CommandError(["sinfo"], status=None, timed_out=True), "silent"),
        (Completed(1, "", data("sinfo-no-config")), "none"),
        (Completed(1, "", data("sinfo-down")), "silent"),
    ],
)
def test_no_slurm_and_a_silent_one(answer: Completed | CommandError, slurm: str) -> None:
    facts = run_survey(answering(sinfo=answer), "alice")
    assert facts.slurm == slurm
    if slurm == "none":  # `init` refuses a silent one
        assert tomllib.loads(config_text(facts)) == {"scheduler": "local"}
    if not isinstance(answer, CommandError):
        assert facts.detail == answer.stderr.strip().split("\n")[-1]


def test_this_machines_gpus() -> None:
    listing = (
        "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA H200 (UUID: GPU-3)\n"
    )
    facts = run_survey(answering(nvidia_smi=listing), "alice")
    assert facts.local_gpus == 2
    assert tomllib.loads(config_text(facts)) == {"scheduler": "local", "gpus-per-node": 2}
    broken = run_survey(answering(nvidia_smi=Completed(9, "GPU 0: no driver", "")), "alice")
    assert broken.local_gpus == 0


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", ()),
        ("", ()),
        ("gpu:4", (("", 4),)),
        ("gpu", (("", 1),)),
        ("gpu:a100", (("a100", 1),)),
        ("gpu:a100:4(S:0-1)", (("a100", 4),)),
        ("gpu:a100:4(S:0,1),nvme:1,gpu:h100:2", (("a100", 4), ("h100", 2))),
        ("gpu:1g.5gb:7", (("1g.5gb", 7),)),
        ("gpu:a100:no_consume:4", (("a100", 4),)),
        ("shard:8,mps:400", ()),
        ("lustre:1", ()),
    ],
)
def test_gres(gres: str, gpus: tuple[tuple[str, int], ...]) -> None:
    assert parse_gpus(gres) == gpus


def test_banners_and_new_words_are_passed_over() -> None:
    lines = data("sinfo-gpu")
    assert parse_sinfo(f"*** WELCOME ***\n\n{lines}\n## bye") == parse_sinfo(lines)
    assert scontrol.parse_config(f"Welcome = to the cluster\n{data('config-plain')}")["ClusterName"] == "pfnone"
    assert sacctmgr.parse_associations(f"hello\n{data('assoc-one')}") == (Association("root", "", ("normal",), ""),)
    row = "\x1f".join(["new", "maybe", "soon", "?", "2", "64+", "x", "gpu:b900:8", "levitating*"])
    (partition,) = parse_sinfo(row)
    assert (partition.up, partition.nodes) == (False, (NodeGroup(2, 64, 0, (("b900", 8),), "levitating*"),))


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    for line in (text, "\x1f".join([text] * 9), "|".join([text] * 4), f"Key = {text}", f"gpu:{text}"):
        parse_sinfo(line)
        parse_gpus(line)
        scontrol.parse_config(line)
        sacctmgr.parse_associations(line)
        survey.parse_local_gpus(line)


@given(st.text(), st.text(), st.sampled_from([0, 1, 130]))
def test_look_takes_any_answer(out: str, err: str, status: int) -> None:
    answer = Completed(status, out, err)
    programs = dict.fromkeys(("sinfo", "scontrol", "sacct", "sacctmgr", "nvidia_smi"), answer)
    tomllib.loads(config_text(run_survey(answering(**programs), "alice")))


def test_the_partition_that_is_chosen() -> None:
    def part(name: str, gpus: int, count: int = 1, *, default: bool = False, up: bool = True) -> PartitionSummary:
        return PartitionSummary(
            name, default, up, "1:00", "n/a", (NodeGroup(count, 8, 9, (("", gpus),) if gpus else (), "idle"),)
        )

    def chosen(*partitions: PartitionSummary) -> str | None:
        found = choose_partition(Survey(slurm="yes", partitions=partitions))
        return found.name if found else None

    assert chosen(part("a", 8, 9), part("b", 4, default=True)) == "b"
    assert chosen(part("a", 0, default=True), part("b", 4), part("c", 4, 2)) == "c"
    assert chosen(part("a", 8, up=False), part("b", 1)) == "b"
    assert chosen(part("a", 0), part("b", 0, default=True)) == "b"
    assert chosen(part("a", 0, up=False)) is None
    assert chosen() is None
    mixed = PartitionSummary(
        "m",
        True,
        True,
        "1:00",
        "n/a",
        (NodeGroup(2, 8, 9, (("x", 8),), "idle"), NodeGroup(9, 8, 9, (("y", 4),), "idle")),
    )
    text = config_text(Survey(slurm="yes", partitions=(mixed,)))
    assert tomllib.loads(text)["gpus-per-node"] == 4  # what most of its nodes have
    assert "2 nodes with 8 GPUs, 9 nodes with 4 GPUs" in text
    assert "GPU types: x, y." in text


_WORDS = st.text(max_size=12) | st.sampled_from(["gpu", 'a"b', "a\\b", "x\ny", "a.b", "#", "'''", "\x7f", "\ud800"])
_NODES = st.builds(
    NodeGroup,
    st.integers(1, 99),
    st.integers(0, 256),
    st.integers(0, 10**7),
    st.lists(st.tuples(_WORDS, st.integers(0, 16)), max_size=3).map(tuple),
    _WORDS,
)
_PARTITIONS = st.builds(
    PartitionSummary,
    _WORDS.filter(bool),
    st.booleans(),
    st.booleans(),
    _WORDS,
    _WORDS,
    st.lists(_NODES, max_size=3).map(tuple),
)
_PRESENCE = st.sampled_from(["yes", "silent", "none"])
_ACCOUNTS = st.builds(
    Association, _WORDS.filter(bool), _WORDS, st.lists(_WORDS.filter(bool), max_size=2).map(tuple), _WORDS
)
FACTS = st.builds(
    Survey,
    slurm=_PRESENCE,
    detail=_WORDS,
    cluster=_WORDS,
    partitions=st.lists(_PARTITIONS, max_size=4, unique_by=lambda p: toml_text(p.name)).map(tuple),
    accounting=_PRESENCE,
    enforce=st.sampled_from([(), ("associations",)]),
    associations=st.lists(_ACCOUNTS, max_size=3).map(tuple),
    local_gpus=st.integers(0, 8),
)


def suggestions(text: str) -> list[str]:
    return [
        line for line in text.split("\n") if line.startswith("#") and not line.startswith(("# ", "#  ")) and line != "#"
    ]


@given(FACTS)
def test_whatever_was_seen_the_file_is_sound(facts: Survey) -> None:
    text = config_text(facts)
    settings = tomllib.loads(text)
    assert set(settings) <= {*FIELD, "profile"}
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff]", text)
    for line in suggestions(text):  # each may be taken up by itself
        key = re.split(r"[ .=]", line[1:], maxsplit=1)[0]
        assert key in FIELD or key == "job"
        tomllib.loads(text.replace(f"\n{line}\n", f"\n{line[1:]}\n", 1))


CLUSTERS = {
    "accounting": accounting_cluster(),
    "plain": run_survey(answering(sinfo=data("sinfo-gpu"), scontrol=data("config-plain")), "alice"),
    "no gpus": run_survey(answering(sinfo=data("sinfo-nogpu"), scontrol=data("config-plain")), "alice"),
    "none": run_survey(answering(), "alice"),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_file_loads_as_it_is_and_with_each_suggestion(name: str, tmp_path: Path) -> None:
    text = config_text(CLUSTERS[name])
    assert max(map(len, text.split("\n"))) <= 120
    found = suggestions(text)
    assert len(found) >= 4
    for line in ["", *found]:
        (tmp_path / "clusterrun.toml").write_text(text.replace(f"\n{line}\n", f"\n{line[1:]}\n", 1) if line else text)
        known = load_profiles(tmp_path, {"HOME": "/nowhere"})
        values = merge([*known.levels, {"python": Value("/usr/bin/python3", "default")}])
        if line.startswith("#gres"):
            values.pop("gpus-per-node")  # the file says: instead of
        build_spec(values, Script("/x/train.py"))


@given(st.text())
def test_toml_text_says_the_same(text: str) -> None:
    clean = re.sub("[\ud800-\udfff]", "?", text)
    assert tomllib.loads(f"x = {toml_text(text)}") == {"x": clean}
    assert "\n" not in toml_text(text)
