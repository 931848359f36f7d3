"""Where a row of a data set stands, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime_rl.errors import DataError


@dataclass(frozen=True, slots=True)
class Place:
    """The configuration's field, the data set it names, and the number of a line (from 1) or row (from 0) there."""

    field: str
    path: str
    number: int
    unit: str = "row"

    def must(self, expected: str, got: str) -> DataError:
        """The error of a row that is not what the configuration says."""
        return DataError(f"{self.field} must {expected}, got {got} in {self}")

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """The columns of a row, and its place."""

    values: Mapping[str, Any]
    place: Place
