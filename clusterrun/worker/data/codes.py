"""Sets of codes as sequences of characters, for a decoder: "62430" and "83110" are 6 2 4 3 0, separator, 8 3 1 1 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...base.errors import WorkerError
from .groups import UNSEEN

PAD, BEGIN, END, SEPARATOR = range(4)
OTHERS = 4  # numbers that are no characters
LONGEST = 512


class Alphabet(NamedTuple):
    """The characters of all codes, numbered from OTHERS on, and the `length` of a row's sequence."""

    characters: str
    length: int

    @property
    def size(self) -> int:
        """How many different numbers a sequence may have."""
        return OTHERS + len(self.characters)


def alphabet_of(sets: Sequence[Sequence[str]]) -> Alphabet:
    """Return the alphabet of the (training) rows' codes; raises WorkerError for what is too long to be a code."""
    characters = "".join(sorted({character for codes in sets for code in codes for character in code}))
    length = max(len("".join(codes)) + max(0, len(codes) - 1) for codes in sets) + 2  # the beginning and the end
    if length > LONGEST:
        raise WorkerError(
            f"objective=mixed writes codes by their characters, but those of a row have {length:,}, more than the limit"
            f" of {LONGEST}: use objective=set",
            status=2,
        )
    return Alphabet(characters, length)


def encode(codes: Sequence[str], alphabet: Alphabet) -> list[int]:
    """Return the numbers of a row, filled with PAD; UNSEEN for other characters, and where the sequence is cut."""
    numbers = {character: number for number, character in enumerate(alphabet.characters, OTHERS)}
    sequence = [BEGIN]
    for code in codes:
        sequence += [*(numbers.get(character, UNSEEN) for character in code), SEPARATOR]
    sequence[max(1, len(sequence) - 1) :] = [END]  # instead of the last separator
    if len(sequence) > alphabet.length:
        return [*sequence[: alphabet.length - 1], UNSEEN]
    return sequence + [PAD] * (alphabet.length - len(sequence))


def decode(sequence: Sequence[int], alphabet: Alphabet) -> list[str]:
    """Return the different codes of a sequence in its order, up to its end."""
    codes = [""]
    for number in sequence:
        if number == END:
            break
        if number == SEPARATOR:
            codes.append("")
        elif number >= OTHERS:
            codes[-1] += alphabet.characters[number - OTHERS]
    return list(dict.fromkeys(filter(None, codes)))
