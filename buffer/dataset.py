"""Prompts from a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slime_rl.config import ColumnsConfig, nearest
from slime_rl.errors import DataError
from slime_rl.types import Message, Prompt


def load_prompts(path: str, columns: ColumnsConfig, *, field: str) -> tuple[Prompt, ...]:
    """The prompts of the JSONL file at `path`, in its order; blank lines are skipped.

    The prompt column holds a text or a list of chat messages, the answer column a text or a number; every other column
    becomes metadata. Raises DataError: for a file that cannot be read or is empty it names `field`, the dotted path of
    the configuration; for a row it names file, line and column.
    """
    prompts: list[Prompt] = []
    for number, line in enumerate(_lines(path, field), start=1):
        if line.strip():
            prompts.append(
                _prompt(_row(line, f"{path}, line {number}"), len(prompts), columns, f"{path}, line {number}")
            )
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


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: expected a JSON object, got invalid JSON ({error})") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row


def _prompt(row: dict[str, Any], index: int, columns: ColumnsConfig, where: str) -> Prompt:
    for column in (columns.prompt, columns.answer):
        if column not in row:
            raise DataError(f"{where}: no column {column!r}{nearest(column, row)}; the row has {sorted(row)}")
    value = row[columns.prompt]
    messages = _messages(value, f"{where}: column {columns.prompt!r}") if not isinstance(value, str) else None
    return Prompt(
        index=index,
        messages=messages,
        text=value if messages is None else None,
        answer=_answer(row[columns.answer], f"{where}: column {columns.answer!r}"),
        metadata={name: row[name] for name in row if name not in (columns.prompt, columns.answer)},
    )


def _messages(value: object, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{where} must be a text or a list of messages, got {value!r}")
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise DataError(f"{where} must hold messages with role and content, got {message!r}")
    return tuple(value)


def _answer(value: object, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{where} must be a text or a number, got {value!r}")
    return str(value)
