"""The numbers that are typed, and the lines about memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.base.gpus import GIB
from clusterrun.cli.plan import parse_gpu_counts, parse_parameters
from clusterrun.sizing.answer import Question, answer
from clusterrun.sizing.batches import Training
from clusterrun.sizing.memory import guess_shape
from clusterrun.sizing.speed import Machine, launch_seconds
from clusterrun.sizing.text import format_count, format_rate, memory_table


def test_numbers_of_gpus() -> None:
    assert parse_gpu_counts("8, 2,1,2") == [1, 2, 8]
    for text, message in (
        ("0", "between 1 and"), ("", "not a valid number"), ("1,,2", "not a valid number"),
        ("-1", "not a valid number"), ("two", "'two'"), ("1-8", "'1-8'"), ("9999999", "between 1"),
        (",".join(map(str, range(1, 40))), "at most 32"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=message):
            parse_gpu_counts(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("135M", 135_000_000), ("1.7b", 1_700_000_000), ("8 B", 8 * 10**9), ("134515008", 134_515_008), ("2k", 2000)],
)
def test_numbers_of_parameters(text: str, number: int) -> None:
    assert parse_parameters(text) == number


@pytest.mark.parametrize("text", ["", "big", "-1M", "0", "1e9", "M", "9" * 15 + "B", "1,000"])
def test_no_numbers_of_parameters(text: str) -> None:
    with pytest.raises(RequestError, match="--parameters"):
        parse_parameters(text)


def question(micro: int, gigabytes: float, parameters: int = 135_000_000) -> Question:
    training = Training(10_000, micro_batch_size=micro)
    return Question(training, [8], guess_shape(parameters), 2048, 2048, device="X9", memory_bytes=gigabytes * GIB)


@pytest.mark.parametrize(
    ("micro", "gigabytes", "parameters", "line"),
    [
        (8, 1000, 135_000_000, None),
        (8, 20, 135_000_000, "may not fit on X9; halve it (--micro-batch 4) and double the accumulation"),
        (512, 20, 135_000_000, "a micro batch of 512 does not fit on X9"),
        (1, 3.5, 135_000_000, "reduce --seq-len"),
        (1, 80, 8_000_000_000, "DDP needs 128 GB on every GPU before activations, which is too much for X9"),
    ],
)  # fmt: skip
def test_one_line_about_memory(micro: int, gigabytes: float, parameters: int, line: str | None) -> None:
    notes = answer(question(micro, gigabytes, parameters)).notes
    assert (line is None and notes == []) or (len(notes) == 1 and str(line) in notes[0])


def test_fsdp_divides_the_memory_by_the_number_of_gpus() -> None:
    found = answer(replace(question(1, 80, 8_000_000_000), gpu_counts=[1, 2, 16], parallel="fsdp", task="lm"))
    assert [load.shards for load in found.memory] == [1, 2, 16]
    assert [plan["memory"]["fits"] for plan in found.json()["plans"]] == ["never", "maybe", "yes"]
    columns, rows = memory_table(found)
    assert [column.name for column in columns[:2]] == ["GPUS", "MICRO"] and [row[0] for row in rows] == ["1", "2", "16"]
    assert found.notes[-1].endswith("too much for X9; use more GPUs, or larger ones")
    small = answer(replace(question(1, 40, 8_000_000_000), gpu_counts=[2], parallel="fsdp", task="lm")).notes[-1]
    assert "FSDP needs 64 GB on every GPU with 2 GPUs before activations" in small
    tight = answer(replace(question(8, 60, 8_000_000_000), gpu_counts=[4], parallel="fsdp", task="lm")).notes[-1]
    assert "fit on X9 with 4 GPUs; halve it" in tight


def test_a_task_that_is_too_large_names_its_setting() -> None:
    assert "(--set parallel=fsdp)" in answer(replace(question(1, 80, 8_000_000_000), task="lm")).notes[-1]


@pytest.mark.parametrize(("micro", "is_said"), [(1, True), (16, False)])
def test_a_micro_batch_whose_kernels_start_later_than_they_work_is_no_faster_for_being_small(
    micro: int, is_said: bool
) -> None:
    asked = replace(question(micro, 1000), gpu_counts=[1], machine=Machine(989e12, 0.4, 370e9, 12.5e9, 8))
    found = answer(replace(asked, seq_len=256, tokens_per_sample=256.0 if is_said else 2048.0))
    notes = [note for note in found.notes if "starting the kernels" in note]
    assert len(notes) == is_said
    if is_said:
        assert found.predictions[0].step_s == pytest.approx(launch_seconds(guess_shape(135_000_000)))
        assert "starting the kernels of a micro batch of 1 takes 1.8 ms or more, and their work 0.5 ms" in notes[0]


def test_numbers_as_people_read_them() -> None:
    assert [format_rate(rate) for rate in (1e-5, 1.25e-6, 3e-3, 1.0)] == ["1.0e-5", "1.25e-6", "3.0e-3", "1.0e0"]
    assert [format_count(number) for number in (134_515_008, 8e9, 1024, 7)] == ["134.5 M", "8.0 B", "1.0 k", "7"]
