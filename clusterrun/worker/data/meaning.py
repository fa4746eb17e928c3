"""What a classifier's inputs and outputs mean, as a value and as the JSON that is saved with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .codes import Alphabet
from .groups import Group, describe, groups_of
from .scales import Scale


@dataclass(frozen=True)
class Meaning:
    """The groups of the outputs, the number columns among the inputs, and the alphabet of a decoder, if any."""

    groups: tuple[Group, ...]
    scales: tuple[Scale, ...] = ()
    alphabet: Alphabet | None = None

    @property
    def outputs(self) -> int:
        """How many outputs the model has."""
        return self.groups[-1].end

    @property
    def names(self) -> list[str]:
        """The names of the outputs: the label alone if there is one group, else with its group."""
        if len(self.groups) == 1:
            return list(self.groups[0].classes) or [self.groups[0].name]
        return [
            f"{group.name}={label}" if label else group.name for group in self.groups for label in group.classes or [""]
        ]

    def json(self) -> dict[str, Any]:
        """Return it as JSON; of_json() parses it."""
        described: dict[str, Any] = {"targets": describe(self.groups)}
        if self.scales:
            described["numbers"] = [scale._asdict() for scale in self.scales]
        if self.alphabet is not None:
            described["codes"] = self.alphabet._asdict()
        return described


def of_json(described: Mapping[str, Any]) -> Meaning:
    """Return what json() was made of."""
    scales = tuple(Scale(**scale) for scale in described.get("numbers", ()))
    alphabet = Alphabet(**described["codes"]) if "codes" in described else None
    return Meaning(groups_of(described["targets"]), scales, alphabet)
