"""Which logs `why` reads and how much of them: folders of any tool's logs, and the ends of large ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.logs import ends
from clusterrun.why import ended
from clusterrun.why.ended.collect import rank_of_file, read_logs
from tests.support.ended_runs import RAISED

# -- folders of logs ---------------------------------------------------------------------------------------------------


def test_folder_of_a_log_for_each_rank(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"rank{number}.err").write_text(
            "Connection closed by peer\n" if number != 1 else "KeyError: 1\nModuleNotFoundError: No module named 'x'\n"
        )
    told = ended.explain_logs(tmp_path).json()
    assert (told["kind"], told["rank"]) == ("import-error", 1)


def test_healthy_folder_shows_no_cause(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.3\ntimeout: 600\n")
    answer = ended.explain_logs(tmp_path)
    assert answer.kind == "none" and "do not show whether" in answer.headline()


def test_folder_without_logs_is_a_wrong_request(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no log"):
        ended.explain_logs(tmp_path)
    with pytest.raises(RequestError, match="not a folder"):
        ended.explain_logs(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "number"),
    [("rank3.err", 3), ("train_task-12.log", 12), ("run/4/stderr.log", 4), ("train_101.err", None), ("log.out", None)],
)
def test_rank_in_a_files_name(name: str, number: int | None) -> None:
    assert rank_of_file(Path("/logs") / name) == number


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_large_log_is_read_at_its_ends_and_where_trouble_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("HEAD", 4_000), ("TAIL", 8_000), ("AROUND", 4_000)):
        monkeypatch.setattr(ends, name, size)
    filler = "".join(f"0: step {n} loss 2.3\n" for n in range(2_000))
    path = tmp_path / "train_1.err"
    path.write_text(
        filler
        + RAISED
        + filler
        + "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***\n"
    )
    (lines,), notes = read_logs([path], world_size=2)
    texts = [line.text for line in lines]
    assert "ValueError: no" in texts and len(texts) < 2_000
    assert notes and "were not" in notes[0]
    assert lines[0].number == 1 and lines[-1].number is None


def test_line_numbers_are_the_files_own_though_srun_cut_a_line(tmp_path: Path) -> None:
    path = tmp_path / "train_1.err"
    path.write_text("0: " + "x" * 1024 + "\n0: rest\n" + "1: ValueError\n")
    (lines,), _ = read_logs([path], world_size=2)
    assert [(line.number, line.text[-4:]) for line in lines] == [(2, "rest"), (3, "rror")]
