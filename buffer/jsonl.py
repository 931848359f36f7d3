"""Rows of a JSONL file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slime_rl.buffer.place import Place, Row
from slime_rl.errors import DataError


def read_jsonl(path: str, chosen: slice, *, field: str) -> Iterator[Row]:
    """The chosen rows of the file at `path`; blank lines are none.

    Raises DataError for a file that cannot be read, and for a chosen line that holds no JSON object.
    """
    lines = ((number, text) for number, text in enumerate(_lines(path, field), start=1) if text.strip())
    for number, text in itertools.islice(lines, chosen.start, chosen.stop, chosen.step):
        place = Place(field, path, number, "line")
        yield Row(_values(text, place), place)


def _lines(path: str, field: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"{field} must name a readable JSONL file, got {path!r} ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{field} must name a JSONL file in UTF-8, got {path!r} ({error})") from None


def _values(text: str, place: Place) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise place.must("hold a JSON object a line", f"invalid JSON ({error})") from None
    if not isinstance(row, dict):
        raise place.must("hold a JSON object a line", type(row).__name__)
    return row
