"""Prompts from a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime_rl.config import ColumnsConfig, nearest
from slime_rl.errors import DataError
from slime_rl.types import Message, Prompt


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a row stands, for messages: the configuration's field, the file and the number of the line."""

    field: str
    path: str
    number: int

    def must(self, expected: str, got: str) -> DataError:
        return DataError(f"{self.field} must {expected}, got {got} in {self}")

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}"


def load_prompts(path: str, columns: ColumnsConfig, *, field: str) -> tuple[Prompt, ...]:
    """The prompts of the JSONL file at `path`, in its order; blank lines are skipped.

    The prompt column holds a text or a list of chat messages, the answer column a text or a number; every other column
    becomes metadata. Raises DataError, which names `field`, the dotted path of the configuration, or the field of a
    column that is missing; for a row it names file, line and column too.
    """
    prompts: list[Prompt] = []
    for number, text in enumerate(_lines(path, field), start=1):
        if text.strip():
            line = _Line(field, path, number)
            prompts.append(_prompt(_row(text, line), len(prompts), columns, line))
    if not prompts:
        raise DataError(f"{field} must name a file with at least one row, got {path!r}, which has none")
    return tuple(prompts)


def _lines(path: str, field: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"{field} must name a readable JSONL file, got {path!r} ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{field} must name a JSONL file in UTF-8, got {path!r} ({error})") from None


def _row(text: str, line: _Line) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise line.must("hold a JSON object a line", f"invalid JSON ({error})") from None
    if not isinstance(row, dict):
        raise line.must("hold a JSON object a line", type(row).__name__)
    return row


def _prompt(row: dict[str, Any], index: int, columns: ColumnsConfig, line: _Line) -> Prompt:
    value = _column(row, "prompt", columns.prompt, line)
    messages = None if isinstance(value, str) else _messages(value, columns.prompt, line)
    answer = _answer(_column(row, "answer", columns.answer, line), columns.answer, line)
    return Prompt(
        index=index,
        messages=messages,
        text=value if messages is None else None,
        answer=answer,
        metadata={name: row[name] for name in row if name not in (columns.prompt, columns.answer)},
    )


def _column(row: dict[str, Any], role: str, name: str, line: _Line) -> Any:
    """The value of column `name`, which `data.columns.ROLE` names; it holds no text that a tokenizer cannot read."""
    if name not in row:
        found = f"no column {name!r}{nearest(name, row)}; the row has {sorted(row)}"
        if line.field == "data.path":
            raise DataError(f"data.columns.{role} must name a column of {line}: {found}")
        raise DataError(f"{line.field} must hold the column that data.columns.{role} names, in {line}: {found}")
    try:
        json.dumps(row[name], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise line.must(f"hold whole characters in column {name!r}", "half of a surrogate pair") from None
    return row[name]


def _messages(value: object, column: str, line: _Line) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise line.must(f"hold a text or a list of messages in column {column!r}", repr(value))
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise line.must(f"hold messages with role and content in column {column!r}", repr(message))
    return tuple(value)


def _answer(value: object, column: str, line: _Line) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise line.must(f"hold a text or a number in column {column!r}", repr(value))
    return str(value)
