"""Foreign text reaches a terminal only spelled out."""

import functools
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.terminal import safe_text as text
from clusterrun.terminal.safe_text import is_safe, safe_line, safe_text

# what a terminal acts on, whatever else we decide: C0 but tab and newline, DEL, C1
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# surrogates too: st.text() leaves them out by default
ANY_TEXT = st.text(st.characters())
#: Format characters that are drawn: signs that stand before a number or a verse.
DRAWN = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}


@given(ANY_TEXT)
def test_no_control_character_comes_through(text):
    assert not CONTROL.search(safe_text(text))


@given(ANY_TEXT)
def test_the_result_can_be_sent_to_a_utf8_terminal(text):
    safe_text(text).encode("utf-8")


@given(ANY_TEXT)
def test_it_is_idempotent(text):
    assert safe_text(safe_text(text)) == safe_text(text)


@given(
    st.text(
        st.characters(categories=("L", "N", "P", "S", "Zs"), max_codepoint=0x24FF, exclude_characters="\u115f\u1160")
    )
)
def test_printable_text_is_left_alone(text):
    assert safe_text(text) == text


@given(ANY_TEXT)
def test_each_character_is_judged_alone(text):
    assert safe_text(text) == "".join(map(safe_text, text))


@given(ANY_TEXT)
def test_a_line_stays_one_line_on_any_reading_of_the_word(text):
    assert len(safe_line(text).splitlines()) <= 1
    assert "\t" not in safe_line(text)


def test_tab_and_newline_are_kept():
    assert safe_text("a\tb\nc\x1b") == "a\tb\nc\\x1b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),  # clipboard
        ("\x1b[2J", "\\x1b[2J"),  # clear the screen
        ("\x9b31m", "\\x9b31m"),  # CSI in one character
        ("\x1bP1$r\x1b\\", "\\x1bP1$r\\x1b\\"),  # DCS
        ("over\rwritten", "over\\x0dwritten"),
        ("\x00\x7f", "\\x00\\x7f"),
        ("abc\u202egpj.exe", "abc\\u202egpj.exe"),  # right-to-left override
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("two\u2028lines", "two\\u2028lines"),
        ("bytes \udcff", "bytes \\udcff"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("hangul \u3164filler", "hangul \\u3164filler"),
    ],
)
def test_what_could_deceive_is_spelled_out(text, shown):
    assert safe_text(text) == shown


@pytest.mark.parametrize(
    "text", ["größer 5 µs", "模型 训练", "loss [/bold]", "C:\\x1b", "done ✅ 100%|█████|", "\u2192 \ue0b0"]
)
def test_what_people_write_is_left_alone(text):
    assert safe_text(text) is text or safe_text(text) == text


def test_every_invisible_format_character_of_this_python_is_covered():
    formats = {i for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)) in ("Cf", "Zl", "Zp", "Cs")}
    assert {i for i in formats - DRAWN if safe_text(chr(i)) == chr(i)} == set()


@given(st.binary(max_size=60) | ANY_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_called_safe_are_left_alone_by_safe_text(data):
    if is_safe(data):
        assert safe_text(data.decode()) == data.decode()


@functools.cache
def spelled_out():
    return [i for i in range(sys.maxunicode + 1) if safe_text(chr(i)) != chr(i)]


#: Harmless, and with every byte that can follow another in a character: among them nothing is told from single bytes.
EVERY_BYTE = "".join(map(chr, range(0x410, 0x450))) + "√ƒ中，🙂\u2070"


@pytest.fixture(params=["C library", "none"])
def searches(request, monkeypatch):
    """With the C library's search, and where there is none."""
    text._held.cache_clear()
    if request.param == "none":
        monkeypatch.setattr("ctypes.CDLL", raises_os_error)
    yield
    text._held.cache_clear()


def raises_os_error(*_):
    raise OSError


def test_no_character_that_is_spelled_out_is_called_safe(searches):
    for around in ("", "x" * 50, EVERY_BYTE):
        texts = {i: f"{around}{chr(i)}{around}".encode("utf-8", "surrogatepass") for i in spelled_out()}
        assert [hex(i) for i, data in texts.items() if is_safe(data)] == []


NEAR = st.characters(max_codepoint=0x24F) | st.sampled_from([chr(i) for i in range(0x2000, 0x2070)] + [*EVERY_BYTE])


@given(st.text(NEAR | st.sampled_from("\u3164\ufeff\uffa0\ufffd\u180e\U000e0100"), max_size=80))
def test_text_called_safe_is_left_alone_by_safe_text(data):
    assert not is_safe(data.encode()) or safe_text(data) == data


def test_text_with_every_byte_is_called_safe(searches):
    assert is_safe(EVERY_BYTE.encode())


@pytest.mark.parametrize("text", ["größer 5 µs\t1\n", "模型 训练", "done ✅ 100%|█████▋|", "‘quoted’ – … →", "é🙂", ""])
def test_bytes_that_people_write_are_called_safe(text):
    assert is_safe(text.encode())


@pytest.mark.parametrize("data", [b"\xc3", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\xe2\x96"])
def test_bytes_that_are_not_utf8_are_not_called_safe(data):
    assert not is_safe(data)


@pytest.mark.parametrize("byte", [*range(9), *range(11, 32), 127])
def test_no_control_byte_is_called_safe_wherever_it_stands(searches, byte):
    for at in (0, 1, 15, 16, 17, 99):
        data = bytearray(b"x" * 100)
        data[at] = byte
        assert not is_safe(bytes(data))
