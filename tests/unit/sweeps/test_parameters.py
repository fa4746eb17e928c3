"""Parameter sets: what --grid, --zip, --file and --array mean, and names in braces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.sweeps.parameters import combine, fill, names_in, parse_array, parse_axis, read_csv, show


def sets(*grid: str, zipped: tuple[str, ...] = (), csv: str = "") -> list[str]:
    rows = read_csv(csv, "p.csv") if csv else []
    axes = [[parse_axis(one, "--grid") for one in texts] for texts in (grid, zipped)]
    return [show(one) for one in combine(axes[0], axes[1], rows)]


def test_a_grid_combines_all_values_and_the_last_changes_fastest() -> None:
    assert sets("lr=1e-4,3e-4", "seed=0..2") == [
        "lr=1e-4 seed=0", "lr=1e-4 seed=1", "lr=1e-4 seed=2", "lr=3e-4 seed=0", "lr=3e-4 seed=1", "lr=3e-4 seed=2",
    ]  # fmt: skip
    assert sets("n=-1..1,7") == ["n=-1", "n=0", "n=1", "n=7"]


def test_a_list_in_brackets_is_one_value_and_alone_it_is_refused_with_the_line_for_its_elements() -> None:
    assert sets("betas=[0.9,0.95],[0.8,0.9]") == ["betas=[0.9,0.95]", "betas=[0.8,0.9]"]
    assert sets("f=a(1,2),b") == ["f=a(1,2)", "f=b"]
    for typed in ("lr=[1, 2]", "lr=(1,2)"):
        with pytest.raises(RequestError, match="is one value, the list") as error:
            sets(typed)
        assert error.value.hint == "for one run per value: --grid lr=1,2"


def test_numbers_with_blanks_between_them_are_no_value_and_words_are_one() -> None:
    with pytest.raises(RequestError, match="is one value, with blanks between its numbers") as error:
        sets("lr=0.01 1e-1")
    assert error.value.hint == "separate values with commas: 0.01,1e-1"
    assert sets("tag=run 1,2 b", "betas=[0.9, 0.95],[0.8, 0.9]")[0] == "tag=run 1 betas=[0.9, 0.95]"


def test_zipped_values_and_rows_of_a_file_stay_together_and_combine_with_the_grid() -> None:
    assert sets("s=0,1", zipped=("a=x,y", "b=1,2")) == ["a=x b=1 s=0", "a=x b=1 s=1", "a=y b=2 s=0", "a=y b=2 s=1"]
    assert sets("s=0,1", csv='lr,name\n1e-4,"a, b"\n\n2e-4,c\n') == [
        "lr=1e-4 name=a, b s=0", "lr=1e-4 name=a, b s=1", "lr=2e-4 name=c s=0", "lr=2e-4 name=c s=1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("grid", "zipped", "csv", "message"),
    [
        (("lr",), (), "", "--grid must be NAME=VALUE,VALUE…, not 'lr'"),
        (("lr=",), (), "", "must be NAME=VALUE"),
        (("1r=2",), (), "", "not a valid parameter name: '1r'"),
        (("array_index=2",), (), "", "not a valid parameter name: 'array_index'"),
        (("lr=1", "LR=2"), (), "", "the parameter lr is given twice"),
        (("lr=1,1",), (), "", "two equal parameter sets: lr=1"),
        (("lr=0.1..0.4",), (), "", "0.1..0.4 is no range; `..` is for whole numbers"),
        (("lr=1..1e3",), (), "", "1..1e3 is no range"),
        (("s=4..0",), (), "", "the range 4..0 must be ascending and have at most 10000 numbers"),
        (("s=0..999", "t=0..999"), (), "", "the sweep has 1000000 parameter sets; the limit is 10000"),
        ((), ("a=1,2", "a=1"), "", "the parameter a is given twice"),
        ((), ("a=1,2", "b=1"), "", "--zip needs the same number of values for each parameter: a has 2, b has 1"),
        ((), (), "a,b\n1\n", "p.csv:2: expected 2 values"),
        ((), (), "a,a\n1,2\n", "p.csv:1: a column name appears twice"),
        ((), (), "a,b\n", "p.csv has no rows"),
        ((), (), 'a\n"x', "p.csv:2: unexpected end of data"),
        ((), (), 'a\n"x\ny"\n', "parameter a: a newline is not allowed"),
        ((), (), "", "no parameters were given"),
    ],
)
def test_what_gives_no_sets_is_refused_in_one_line(
    grid: tuple[str, ...], zipped: tuple[str, ...], csv: str, message: str
) -> None:
    with pytest.raises(RequestError) as error:
        sets(*grid, zipped=zipped, csv=csv)
    assert message in error.value.message and error.value.hint and "\n" not in error.value.message


def test_names_in_braces_are_filled_and_doubled_braces_stay() -> None:
    values = {"lr": "1e-4", "seed": "0"}
    assert fill("--out=r-{lr}-{seed}", values) == "--out=r-1e-4-0"
    assert fill('{"a": {"b": 1}} {{id}} {} ${{x}}', values) == '{"a": {"b": 1}} {id} {} ${x}'
    assert names_in("{lr} {{seed}} {x}") == {"lr", "x"}
    with pytest.raises(RequestError, match="unknown parameter ls in --lr=") as error:
        fill("--lr={ls}", values)
    assert error.value.hint == "known: {lr}, {seed}; for literal braces, write {{ls}}"


@given(st.text())
def test_a_value_is_never_filled_again(value: str) -> None:
    assert fill("{a}", {"a": value, "b": "x"}) == value


def test_an_array_is_written_as_sbatch_takes_it() -> None:
    assert parse_array("0-3%2", 1001) == ([0, 1, 2, 3], 2)
    assert parse_array("7,1,3", 1001) == ([1, 3, 7], None)
    for text in ("", "a", "0-3%0", "0-3%x", "3-1", "%2"):
        with pytest.raises(RequestError, match="not a list of indexes"):
            parse_array(text, 1001)
    with pytest.raises(
        RequestError, match=r"index 51 is too large; this cluster allows at most 50 \(MaxArraySize=51\)"
    ):
        parse_array("0-51", 51)
