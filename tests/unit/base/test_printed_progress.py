"""What is read from the lines that a training prints, and what is not claimed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.printed_progress import QUIET_S, PrintedProgress, Reading, read_line

LINES = {
    "step 150/900 loss 0.03": Reading("counter", 150, 900, loss=0.03),
    "iter 10: loss 3.21, time 30ms, mfu 10.0%": Reading("counter", 10, loss=3.21),
    "Step 7 of 20, loss: 1.0": Reading("counter", 7, 20, loss=1.0),
    "Epoch [2/3], Step [100/600], Loss: 0.31": Reading("counter", 100, 600, 2, 3, 0.31),
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.301": Reading("counter", 640, 60000, 1, None, 2.301),
    "Epoch: [0][ 10/391]\tTime  0.1 (0.2)\tLoss 6.9e+00 (7.0e+00)": Reading("counter", 10, 391, 0, None, 6.9),
    " iteration       10/     100 | consumed samples: 80 | lm loss: 6.2E+00 |": Reading("counter", 10, 100, loss=6.2),
    "\x1b[31mstep: 10  \x1b[32mloss:  7.1234\x1b[39m": Reading("counter", 10, loss=7.1234),
    '{"step": 100, "total_steps": 900, "loss": 0.5}': Reading("counter", 100, loss=0.5),
    "{'loss': 0.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.53}": Reading(loss=0.5),
    "Epoch 3/10 - train_loss=0.25": Reading(epoch=3, epochs=10, loss=0.25),
    "Epoch(train)  [1][100/600]  lr: 0.1  loss: 0.5": Reading("counter", 100, 600, 1, None, 0.5),
    " 17%|█▋        | 17/100 [00:10<00:50,  1.66it/s, loss=0.3]": Reading("bar ", 17, 100, loss=0.3),
    "Epoch 0:  17%|█▋        | 17/100 [00:10<00:50,  1.66it/s, v_num=0]": Reading("bar epoch", 17, 100, 0),
    "Epoch 0/2:  17%|█▋        | 17/100 [00:10<00:50,  1.66it/s]": Reading("bar epoch", 17, 100, 0, 2),
    "{'loss': '0.03125', 'learning_rate': '1e-05', 'epoch': '0.53'}": Reading(loss=0.03125),
    "      1/100      2.1G      1.2        12        640:  12%|█▎        | 8/64 [00:02<00:15,  3.7it/s]": Reading(
        "bar epoch", 8, 64, 1, 100
    ),
    "\x1b[K      1/100      2.1G      1.2        12        640: 12% ━╸────────── 8/64 3.7it/s 2.2s<15.1s": Reading(
        "bar epoch", 8, 64, 1, 100
    ),
    "1/3:  12%|█▎        | 8/64 [00:02<00:15,  3.7it/s]": Reading("bar epoch", 8, 64, 1, 3),
    "epochs:  33%|███▎      | 1/3 [00:10<00:20, 10.0s/it]": Reading(epoch=2, epochs=3),
}
NOTHING = (
    "Map:  20%|██        | 1000/5000 [00:01<00:04, 900 examples/s]",
    "Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00]",
    "                 Class     Images  Instances      Box(P          R      mAP50): 50% ━━━━━━────── 1/2 2.1it/s 0.4s",
    "Evaluating:  10%|█         | 1/10 [00:00<00:01]",
    "Saving model checkpoint at step 100",
    "[3/10] c++ -MMD -o cuda.o",
    "  Total optimization steps = 900",
    "gradient accumulation steps: 4",
    "epochs: 3, lr: 0.1",
    "step time 0.3 s, 45 % done",
    "val loss 0.3",
    "1.2k/5k",
    "",
)


@pytest.mark.parametrize("line", LINES)
def test_a_line_says_where_a_training_is(line: str) -> None:
    assert read_line(line) == LINES[line]


@pytest.mark.parametrize("line", NOTHING)
def test_a_line_of_something_else_says_nothing(line: str) -> None:
    assert read_line(line) == Reading()


@given(st.lists(st.text() | st.sampled_from([*LINES, *NOTHING])))
def test_any_lines_give_no_count_beyond_the_total_that_was_printed_and_no_error(lines: list[str]) -> None:
    progress = join(lines)
    assert progress.step is None or progress.step >= 0


def join(lines: list[str], pause: float = 1.0) -> PrintedProgress:
    """What lines say together that are printed a pause apart, in seconds."""
    progress = PrintedProgress()
    for number, line in enumerate(lines):
        progress.take(read_line(line), 1000.0 + number * pause)
    return progress


def bar(count: int, total: int, title: str = "") -> str:
    return (
        f"{title}{100 * count // total:3}%|{'█' * (10 * count // total):10}| {count}/{total} [00:10<00:50,  1.66it/s]"
    )


def counts(lines: list[str], pause: float = 1.0) -> tuple[int | None, int | None]:
    progress = join(lines, pause)
    return progress.step, progress.steps


def test_a_counter_that_has_advanced_is_the_progress() -> None:
    progress = join([f"step {n}/900 loss {1 / n}" for n in (10, 20, 30)])
    assert (progress.step, progress.steps, progress.loss) == (30, 900, 1 / 30)
    assert (progress.first_step, progress.first_step_at, progress.stepped) == (10, 1000.0, 1002.0)
    assert progress.has_advanced


def test_a_single_count_is_no_progress() -> None:
    assert not join(["step 1/4: installing", "step 1/4: installing"]).has_advanced


def test_steps_of_epochs_count_on_over_all_epochs() -> None:
    lines = [f"Epoch [{epoch}/3], Step [{step}/600]" for epoch in (1, 2) for step in (100, 300, 600)]
    assert counts(lines) == (1200, 1800)


def test_steps_that_go_on_when_an_epoch_begins_are_those_of_all_epochs() -> None:
    assert counts([f"epoch {1 + step // 600}/3 step {step}/1800" for step in (300, 599, 900, 1500)]) == (1500, 1800)


def test_epochs_from_0_on_are_counted_from_0() -> None:
    assert counts([f"Epoch: [{epoch}][{step}/391] Loss 6" for epoch in (0, 1) for step in (0, 390)]) == (781, None)


def test_a_bar_that_begins_anew_has_no_known_total() -> None:
    assert counts([bar(n, 100) for n in (1, 50, 100)]) == (100, 100)
    assert counts([bar(n, 100) for n in (1, 50, 100, 0, 17)]) == (17, None)


def test_a_bar_of_epochs_around_a_bar_of_steps_gives_the_total_of_both() -> None:
    lines = [bar(0, 3, "epochs: "), bar(0, 100), bar(100, 100), bar(1, 3, "epochs: "), bar(0, 100), bar(50, 100)]
    assert counts(lines) == (150, 300)


def nested(epoch: int, counts: tuple[int, ...], epochs: int = 10) -> list[str]:
    """A bar of epochs without a title, and what a bar of 64 steps inside it draws."""
    return [bar(epoch, epochs), *(bar(count, 64) for count in counts)]


def test_a_bar_around_another_counts_epochs_once_that_is_sure() -> None:
    first = nested(0, (0, 30, 63))
    assert counts(first) == (63, None), "its total may be of one epoch"
    assert counts([*first, *nested(1, (0, 32))]) == (96, 640)
    assert counts([*first, *nested(1, (0, 63)), *nested(2, (0, 1))]) == (129, 640)


def test_a_bar_of_epochs_that_goes_on_from_a_checkpoint_counts_those_before() -> None:
    assert counts([*nested(5, (0, 64)), *nested(6, (0, 32))]) == (6 * 64 + 32, 640)


def test_an_evaluation_before_the_first_step_is_not_the_training() -> None:
    lines = [bar(0, 900), bar(0, 50), bar(49, 50), bar(1, 900), bar(2, 900), bar(500, 900), bar(0, 50), bar(9, 50)]
    assert counts(lines[:3]) == (49, None)
    assert counts(lines) == (500, 900)


def test_the_epoch_in_a_row_of_transformers_changes_no_count() -> None:
    rows = ["{'loss': '6.9', 'epoch': '1'}", "{'eval_loss': '6.5', 'epoch': '2'}", "{'loss': 6.9, 'epoch': 1.0}"]
    assert counts([bar(300, 900), bar(301, 900), *rows, bar(601, 900)]) == (601, 900)


def test_the_first_epoch_of_yolo_is_not_the_whole() -> None:
    title = "      {}/3      2.1G      1.2        12        640: "
    assert counts([bar(count, 64, title.format(1)) for count in (0, 32)]) == (32, 192)
    assert counts([bar(count, 64, title.format(epoch)) for epoch in (1, 2) for count in (0, 64)]) == (128, 192)


def test_a_bar_inside_another_does_not_replace_it() -> None:
    assert counts([bar(10, 900), bar(20, 900), bar(1, 50, "scoring: "), bar(40, 50, "scoring: "), bar(30, 900)]) == (
        30,
        900,
    )


def test_the_counter_of_the_training_follows_one_that_is_done_or_quiet() -> None:
    assert counts([bar(1, 8, "reading "), bar(8, 8, "reading "), bar(0, 900), bar(1, 900)]) == (1, 900)
    quiet = [bar(1, 8, "reading "), bar(7, 8, "reading "), bar(0, 900), bar(1, 900)]
    assert counts(quiet) == (7, 8)
    assert counts(quiet, pause=QUIET_S + 1) == (1, 900)


def test_epochs_are_the_progress_of_a_script_that_prints_nothing_else() -> None:
    assert counts([f"epoch {n}/10 loss 0.1" for n in (1, 2, 3)]) == (3, 10)
    assert counts([f"Epoch {n}/5" for n in (1, 2, 3)]) == (2, 5), "the third may just have begun"
    assert counts([bar(n, 10, "epochs: ") for n in (0, 5, 9)]) == (9, 10)
    assert counts(["epoch 1/10", "epoch 2/10", "step 1/50", "step 2/50"]) == (102 - 50, 500)


@pytest.mark.parametrize(("lines", "count"), [
    ([bar(10, 1500), bar(500, 1500), bar(2, 50), bar(50, 50)], (500, 1500)),
    (["step 1/900", "accumulation step 8/8", "step 2/900", "micro step 8/8"], (2, 900)),
    (["step 599/1000", "step 600/1000", "best so far: step 300/1000"], (600, 1000)),
    (["step 9/10,000", "step 10/10,000"], (10, None)),
    (["step 10/100k", "step 11/100k"], (11, None)),
    (["Epoch [5/10], Step [50/100]", "Epoch [5/10], Step [60/100]"], (460, None)),
])  # fmt: skip
def test_nothing_is_claimed_that_may_be_of_something_else(lines: list[str], count: tuple[int, int | None]) -> None:
    assert counts(lines) == count


@pytest.mark.parametrize("line", [
    "Test set: Average loss: 0.0512", "valid on 'valid' subset | loss 8.2", "step 100 val: loss 0.3", "dev loss: 1",
    "[val] loss: 0.3", "valid loss 2", "{'train_runtime': 9.1, 'train_loss': 0.7}", "avg loss 0.4",
])  # fmt: skip
def test_the_loss_of_an_evaluation_or_of_many_steps_is_not_that_of_the_training(line: str) -> None:
    assert read_line(line).loss is None


def test_a_bar_that_draws_an_old_loss_again_does_not_count_it_again() -> None:
    progress = join([bar(3, 90).replace("it/s", "it/s, loss=nan")] * 3)
    assert progress.nan_losses == 1


def test_of_lines_that_are_read_at_once_the_first_one_is_the_first_step() -> None:
    progress = PrintedProgress()
    for step, now in ((1, 100.0), (2, 100.0), (9, 100.0), (12, 105.0), (29, 110.0)):
        progress.take(Reading("counter", step, 900), now)
    assert (progress.first_step, progress.first_step_at, progress.step, progress.stepped) == (1, 100.0, 29, 110.0)


def test_after_lines_that_were_left_out_the_first_step_is_not_known() -> None:
    early, late = PrintedProgress(), PrintedProgress()
    for progress, steps in ((early, (1, 2)), (late, (700, 710))):
        if progress is late:
            progress.note_gap()
        for step in steps:
            progress.take(Reading("counter", step, 900), float(step))
    early.note_gap()
    early.take(Reading("counter", 800, 900), 800.0)
    assert (early.first_step, late.first_step, late.first_step_at, late.step) == (1, None, 700.0, 710)
