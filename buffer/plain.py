"""Values of libraries as plain data: what JSON knows, and bytes."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from typing import Any

import numpy as np

from slime_rl.buffer.place import Place


def to_plain(value: Any, column: str, place: Place) -> Any:
    """`value` with times as ISO 8601 text, decimals as text, and numpy's values as Python's.

    Raises DataError with the place and the column for anything else that is no plain data.
    """
    match value:
        case None | str() | bytes() | bool() | int() | float():
            return value
        case Mapping():
            return {str(key): to_plain(item, column, place) for key, item in value.items()}
        case list() | tuple():
            return [to_plain(item, column, place) for item in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case decimal.Decimal():
            return str(value)
        case np.ndarray() | np.generic():
            return to_plain(value.tolist(), column, place)
        case _:
            raise place.must(f"hold plain data in column {column!r}", type(value).__name__)
