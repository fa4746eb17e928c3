"""The page of a report: what it shows of a run, and that no text of a run can become markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from clusterrun.records.store import Store
from clusterrun.report.collect import collect, find_difference, load_curves
from clusterrun.report.page import report_page, table_page
from clusterrun.run_folder import training_progress
from clusterrun.run_folder.training_progress import TrainingProgress
from clusterrun.terminal.tables import Column
from tests.support.ended_runs import over
from tests.support.hostile_texts import NASTY, hostile
from tests.support.reported_runs import NOW, Structure, data_of, make_run, with_texts
from tests.support.run_readers import RecordsOnly
from tests.support.run_records import attempt, submitted

#: Texts that choose the structure of a page, and are our own.
OURS = frozenset({"failed", "done", "running", "step", "printed loss"})
MARKUP = (
    "".join(NASTY), "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onfocus=alert(1) x='",
    "<!--", "]]>", "{{ 7 * 7 }}", "</style>", "</title>",
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("report")
    (folder / "project").mkdir()
    return Store(folder / "project", folder / "state")


@pytest.fixture(scope="module")
def data(store: Store) -> dict[str, Any]:
    return data_of(make_run(store))


def words(page: str) -> str:
    return re.sub(r"\s+", " ", Structure(page).text)


def headings(page: str) -> list[str]:
    return re.findall(r"<h[1-6]>(?:<[^>]*>)*([^<]*?) ?<", page)


def test_a_failed_run_has_its_verdict_and_first_cause_before_all_else(data: dict[str, Any]) -> None:
    page = report_page([data], None, NOW)
    assert headings(page) == [
        "train1", "First cause", "What it used", "Curves", "Loss", "Learning rate", "Tokens/s", "MFU",
        "Peak memory of rank 0 (GiB)", "Ranks over time", "GPUs", "Launches", "Samples", "Options", "Environment",
    ]  # fmt: skip
    text = words(page)
    assert "FAILED" in text and "failed after 10:00" in text and data["cause"]["headline"] in text
    assert "exit 1 ValueError: no" in text and "restart before step 61" in text
    assert "Rank 3 on n2 is slow: 0.35x the median speed" in text
    assert "/usr/bin/env --lr 1" in text and data["command"] in text
    assert "upon 0 times" in text and "upon 150 times" in text and "upon 100 times" not in text


def test_two_runs_have_their_curves_over_each_other_and_what_differs(store: Store) -> None:
    runs = [make_run(store, number) for number in (1, 2)]
    document = json.loads((runs[1].run_dir / "record.json").read_text())
    document["sources"]["set"][0]["lr"] = 2
    (runs[1].run_dir / "record.json").write_text(json.dumps(document))
    second = store.by_run_id(runs[1].run_id)
    assert second is not None
    page = report_page([*map(data_of, runs)], find_difference(runs[0], second), NOW)
    assert headings(page)[:4] == ["2 runs", "Curves", "Loss", "Learning rate"]
    assert page.count('<figure class="chart"') == 5 and "101 train1" in page and "102 train2" in page
    assert "set.lr 1 jobs/x.toml 2 jobs/x.toml" in re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", page))


def test_the_runs_of_a_sweep_are_named_by_their_parameters(data: dict[str, Any]) -> None:
    runs = [
        {**data, "handle": f"14_{task}", "parameters": {"lr": lr, "<b>": "1"}} for task, lr in ((0, "0.1"), (1, "3e-4"))
    ]
    page = report_page(runs, None, NOW)
    assert "14_1 lr=3e-4 &lt;b&gt;=1</span>" in page and "Parameters" in headings(page)
    assert f"14_1 3e-4 1 {data['state']} {data['metrics']['step']} " in re.sub(
        r"\s+", " ", re.sub("<[^>]*>", " ", page)
    )


def test_the_launches_of_a_resumed_run_are_named_by_their_jobs(data: dict[str, Any]) -> None:
    first, second = data["launches"]
    resumed = {**data, "launches": [first, {**second, "job_id": "114", "attempt": "0.0"}]}
    assert "job 101, 0.0" in words(report_page([resumed], None, NOW))
    assert "job 114, 0.0" in words(report_page([resumed], None, NOW))
    assert "job 101, 0.0" not in words(report_page([data], None, NOW))


@pytest.mark.parametrize(("launches", "over", "points"), [
    ([[(10, 5.0), (20, 4.0), (30, 3.5)], [(25, 3.7), (35, 3.0)]], "step",
     [(10, 5.0), (20, 4.0), (25, 3.7), (35, 3.0)]),
    ([[(10, 5.0), (20, 4.0)], [(10, 4.5), (20, 3.0), (10, 2.0)]], "printed loss",
     [(1, 5.0), (2, 4.0), (3, 4.5), (4, 3.0), (5, 2.0)]),
    ([[(10, 5.0), (20, 4.0)], [], [(1, 6.0), (2, 5.5)]], "step", [(1, 6.0), (2, 5.5)]),
])  # fmt: skip
def test_the_losses_that_a_resumed_run_printed_are_one_curve(
    tmp_path: Path, launches: list[list[tuple[int, float]]], over: str, points: list[tuple[float, float]]
) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"))
    (run.run_dir / "attempts").mkdir(exist_ok=True)
    for number, losses in enumerate(launches):
        one = replace(run.submission, token=f"{number + 2}{run.submission.token[1:]}", at=run.submission.at + number)
        run = replace(run, submissions=(*run.submissions, one))
        training_progress.write(attempt(run), TrainingProgress(20, 1.0), losses)
    assert load_curves(run) == ({"loss": points}, over)


def test_the_command_of_a_task_has_its_settings(store: Store) -> None:
    run = submitted(store, 6, sources={"set": ({"lr": 0.1, "data": "a b"}, "--set"), "nodes": (2, "--nodes")})
    assert data_of(run)["command"] is None, "the record does not say what ran"
    (run.run_dir / "spec.json").write_text(json.dumps({"work": {"kind": "task", "name": "lm"}}))
    assert data_of(run)["command"] == "lm lr=0.1 'data=a b'"


def test_what_is_not_known_is_left_out(store: Store) -> None:
    run = submitted(store, 7, sources={})
    page = report_page([collect(RecordsOnly(), over(run, "PENDING", None, job="107"), NOW)], None, NOW)
    assert headings(page) == ["train7", "Options"]
    assert "<dl" in page and "<dt>" not in page and "<script" not in page
    assert not re.search(r"\b(None|nan|null|undefined)\b", words(page))


def test_nothing_is_loaded_and_only_our_script_may_run(data: dict[str, Any]) -> None:
    page = report_page([data], None, NOW)
    assert Structure(page).links == [] and "url(" not in page and "@import" not in page
    assert page.count("<script>") == 1
    assert "default-src 'none'" in page and re.search(r"script-src 'sha256-[\w+/]{43}='", page)


@pytest.mark.parametrize("text", MARKUP)
def test_a_hostile_text_stays_a_text(data: dict[str, Any], text: str) -> None:
    check_harmless(data, text)


@settings(max_examples=max(5, settings().max_examples // 10))
@given(hostile)
def test_no_text_of_a_run_becomes_markup(data: dict[str, Any], text: str) -> None:
    check_harmless(data, text)


def check_harmless(data: dict[str, Any], text: str) -> None:
    """Check that a page has the same tags whatever its texts hold, and no character that hides or moves others."""
    pages = [
        Structure(report_page([with_texts(data, lambda old, new=new: old if old in OURS else f"x{new}")], None, NOW))  # type: ignore[misc]
        for new in ("", text)
    ]
    assert pages[0].tags == pages[1].tags
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", pages[1].text)


def test_a_table_has_any_text_in_its_cells() -> None:
    page = table_page("Jobs", [Column("NAME"), Column("<b>", right=True)], [["</td><script>x</script>", "a & b"]], NOW)
    assert "<script" not in page and "&lt;/td&gt;" in page and "a &amp; b" in page


def test_the_page_of_a_long_run_is_small(store: Store) -> None:
    run = make_run(store, 9)
    rows = "".join(f'{{"step":{step},"loss":{1 + step % 7}}}\n' for step in range(20_000))
    Path(run.run_dir / "metrics.jsonl").write_text(rows)
    assert len(report_page([data_of(run)], None, NOW)) < 100_000
