"""What a library tried before it gave up is named in place of an exception that only says that it gave up."""

from __future__ import annotations

from clusterrun.why.causes import Cause, EndFacts, Line, first_cause

RETRY = 'WARN Reqwest(url: "https://cas.example.org/x", error: "Name or service not known"). Retrying...'
GAVE_UP = """Traceback (most recent call last):
  File "/home/u/train.py", line 3, in <module>
    download()
  File "/usr/lib/python3.11/{library}.py", line 9, in download
RuntimeError: Request failed after 5 retries"""
WEB, OTHER = "site-packages/huggingface_hub/file_download", "site-packages/tables/read"


def judge(*lines: tuple[int, str]) -> Cause:
    log = [Line("train_1.err", number, rank, text) for number, (rank, text) in enumerate(lines, 1)]
    return first_cause([log], EndFacts(state="FAILED", exit_status=1))


def raised(rank: int, library: str) -> list[tuple[int, str]]:
    return [(rank, line) for line in GAVE_UP.format(library=library).split("\n")]


def test_the_host_that_a_download_did_not_reach_is_named() -> None:
    cause = judge((0, RETRY), (1, "step 1 loss 2.0"), *raised(0, WEB))
    assert (cause.kind, cause.rank, cause.place) == ("offline", 0, "/home/u/train.py:3")
    assert "cas.example.org: Name or service not known; then RuntimeError: Request failed" in cause.sentence


def test_a_retry_explains_only_its_own_ranks_requests() -> None:
    assert judge((1, RETRY), *raised(0, WEB)).kind == "exception"
    assert judge((0, RETRY), *raised(0, OTHER)).kind == "exception"
    assert judge((0, RETRY.removesuffix("Retrying...")), *raised(0, WEB)).kind == "exception"


def test_a_quotation_without_an_end_or_without_an_exception_before_it_changes_nothing() -> None:
    quoted = [(0, "[start of libx loading traceback]"), (0, "Traceback (most recent call last):"),
              (0, '  File "/home/u/a.py", line 2, in f'), (0, "OSError: libx.so: cannot open shared object file"),
              (0, "[end of libx loading traceback]")]  # fmt: skip
    alone = judge(*quoted)
    assert alone == judge(*quoted[:-1]) and alone.kind == "library-mismatch" and "libx.so" in alone.sentence


def test_what_slurms_commands_say_of_their_own_connections_is_not_about_the_ranks() -> None:
    for text in ("Unable to initialize x: Address already in use", "slurm_msg_sendto: Connection reset by peer"):
        assert judge((0, f"srun: error: {text}")).kind == "slurm-error", text
        assert judge((0, f"OSError: {text}")).kind != "slurm-error", text
