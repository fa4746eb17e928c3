"""Options that sbatch refuses together: a typed one takes the place of a profile's, two of one level are refused."""

from __future__ import annotations

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.config.profiles import merge
from clusterrun.config.rivals import drop_rivals
from clusterrun.jobspec.fields import Value

PROFILE = {"mem": Value("4G", "clusterrun.toml"), "nodes": Value(2, "clusterrun.toml")}


def arguments(*words: str, source: str = "--sbatch-arg") -> dict[str, Value]:
    return {"sbatch-arg": Value(list(words), source)}


@pytest.mark.parametrize("argument", ["--mem-per-gpu=1G", "--mem-per-cpu=500M", "--mem-per-c=500M"])
def test_a_typed_memory_option_takes_the_place_of_a_profiles(argument: str) -> None:
    levels = [arguments(argument), PROFILE]
    merged = merge(levels)
    (notice,) = drop_rivals(levels, merged)
    assert "mem" not in merged and merged["nodes"].value == 2 and merged["sbatch-arg"].value == [argument]
    assert notice.startswith("ignoring --mem of clusterrun.toml: --mem-per-") and notice.endswith(" takes its place")


def test_a_typed_option_takes_the_place_of_a_profiles_argument_of_sbatch() -> None:
    levels = [{"mem": Value("8G", "--mem")}, arguments("--exclusive", "--mem-per-cpu=1G", source="clusterrun.toml")]
    merged = merge(levels)
    assert drop_rivals(levels, merged) == [
        "ignoring --sbatch-arg=--mem-per-cpu=1G of clusterrun.toml: --mem takes its place"
    ]
    assert merged["sbatch-arg"].value == ["--exclusive"] and merged["mem"].value == "8G"


def test_two_of_one_level_are_refused_by_their_names() -> None:
    for level, names in (
        ({"mem": Value("8G", "--mem"), **arguments("--mem-per-gpu=1G")}, "--mem and --sbatch-arg=--mem-per-gpu=1G"),
        ({"cpus-per-task": Value(2, "--cpus-per-task"), **arguments("--cpus-per-gpu=2")}, "--cpus-per-task and"),
        (arguments("--mem-per-gpu=1G", "--mem-per-cpu=1G"), "--sbatch-arg=--mem-per-gpu=1G and"),
    ):
        with pytest.raises(RequestError, match="exclude each other") as error:
            drop_rivals([level], merge([level]))
        assert error.value.message.startswith(names)


def test_the_same_option_at_two_levels_and_unrelated_ones_stay() -> None:
    levels = [{"mem": Value("8G", "--mem"), **arguments("--exclusive")}, PROFILE]
    merged = merge(levels)
    assert drop_rivals(levels, merged) == [] and merged["mem"].value == "8G"
    assert drop_rivals([arguments("-m", "block"), PROFILE], merge([PROFILE])) == []
