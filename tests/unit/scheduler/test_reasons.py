"""Slurm's reason words: every one of every release is in the table, and is found however Slurm decorates it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.scheduler.slurm.reasons import TABLE, Starts, find_reason
from tests.support.folders import DATA

LISTED = DATA / "slurm_reasons.txt"


def listed() -> dict[str, tuple[str, str, str]]:
    """The words read from Slurm's source and documentation: first release, last release, where."""
    rows = (line.split() for line in LISTED.read_text().splitlines() if line and not line.startswith("#"))
    return {word: (first, last, where) for word, first, last, where in rows}


def test_the_table_has_every_word_that_slurm_has_and_no_other() -> None:
    assert set(TABLE) == set(listed())
    assert len(TABLE) > 200


def test_each_word_is_explained() -> None:
    for word in listed():
        row = find_reason(word)
        assert row is not None and row.word == word
        assert re.fullmatch(r"[A-Z][^\n]{15,165}\.", row.meaning), row.meaning
        assert row.meaning.count(". ") == 0, f"{word}: one sentence"
        assert row.action.strip() and "{job}" not in row.what_to_do("17"), word
        assert "=…" not in row.action, f"{word}: a command without its value cannot be typed"


def test_each_row_is_whole() -> None:
    for word, row in TABLE.items():
        for text in (row.meaning, row.action):
            assert not re.search(r"SEE|ELSE|\{who\}|\{\}|\{_", text), text
            assert text.count("`") % 2 == 0, word
        if row.starts is Starts.YOU:
            assert "`" in row.action or "submit" in row.action, f"{word}: what you change, you change with a command"


def test_the_source_of_a_row_names_the_releases_that_have_the_word() -> None:
    for word, (first, last, where) in listed().items():
        source = TABLE[word].source
        if "page" in where:
            assert "job_reason_codes" in source, word
        elif "source" in where:
            assert first in source and (last == first or last in source), (word, source)


def test_a_limit_names_its_owner_and_its_field() -> None:
    limits = {word: row.limit for word, row in TABLE.items() if row.limit is not None}
    assert len(limits) > 140
    for word, limit in limits.items():
        assert (limit.owner == "association") == word.startswith("Assoc"), word
        assert limit.least == word.startswith("QOSMin"), word
        assert ("Grp" in word) == limit.field.startswith("Grp"), word
    assert (limits["QOSMaxGRESPerUser"].field, limits["QOSMaxGRESPerUser"].tres) == ("MaxTRESPU", "gres")
    assert (limits["AssocGrpCPUMinutesLimit"].field, limits["AssocGrpCPUMinutesLimit"].tres) == ("GrpTRESMins", "cpu")


@pytest.mark.parametrize(
    ("said", "word", "detail"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:node3", "ReqNodeNotAvail", "UnavailableNodes:node3"),
        ("ReqNodeNotAvail,_UnavailableNodes:node[1-2]", "ReqNodeNotAvail", "UnavailableNodes:node[1-2]"),
        ("ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail", "Reserved for maintenance"),
        ("(Resources)", "Resources", ""),
        ("resources", "Resources", ""),
        ("Job_Held_User", "JobHeldUser", ""),
        ("Dependency,JobArrayTaskLimit", "Dependency", "JobArrayTaskLimit"),
        ("RaisedSignal:9(Killed)", "RaisedSignal", "9(Killed)"),
        ("(launch failed requeued held)", "JobHeldUser", "launch failed requeued held"),
        ("launch_failure_limit_exceeded_requeued_held", "JobHoldMaxRequeue",
         "launch failure limit exceeded requeued held"),
        ("job requeued in held state", "JobHeldUser", "job requeued in held state"),
        ("Reservation big was deleted", "ReservationDeleted", "Reservation big was deleted"),
    ],
)  # fmt: skip
def test_decorations_do_not_matter(said: str, word: str, detail: str) -> None:
    row = find_reason(said)
    assert row is not None and (row.word, row.detail) == (word, detail)


def test_nodes_that_are_out_or_kept_for_others_are_resources() -> None:
    said = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
    row = find_reason(said)
    assert row is not None and row.word == "Resources" and "down, drained" in row.meaning


@pytest.mark.parametrize(
    ("said", "word", "tres"),
    [
        ("Job is at or exceeds QOS long's group max TRES(cpu) minutes of 600 with 720", "QOSGrpUnknownMinutes", "cpu"),
        ("Job is at or exceeds QOS long's max TRES(node) minutes of 6 with 7", "QOSMaxUnknownMinutesPerJob", "node"),
        ("Job is at or exceeds QOS long's group wall limit of 60 with 61", "QOSGrpWallLimit", ""),
        ("Job is at or exceeds association (acc=a/user=b/part=c) group max TRES(mem) minutes of 6 with 7",
         "AssocGrpUnknownMinutes", "mem"),
    ],
)  # fmt: skip
def test_a_sentence_of_slurms_names_the_limit_and_the_resource(said: str, word: str, tres: str) -> None:
    row = find_reason(said)
    assert row is not None and row.limit is not None
    assert (row.word, row.limit.tres) == (word, tres)


@pytest.mark.parametrize("said", ["", "Sunspots", "QOSMaxBananasPerUser", "()", ",", "17", "Priorityy"])
def test_an_unknown_word_is_not_explained(said: str) -> None:
    assert find_reason(said) is None


@given(st.text())
def test_no_text_breaks_it(said: str) -> None:
    row = find_reason(said)
    assert row is None or row.word in TABLE
