"""Prompts from the rows of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slime_rl.buffer.columnar import read_folder, read_parquet
from slime_rl.buffer.generated import GYM, read_function, read_gym
from slime_rl.buffer.jsonl import read_jsonl
from slime_rl.buffer.place import Place, Row
from slime_rl.config import ColumnsConfig, DataConfig, EvaluationConfig, nearest, parse_rows
from slime_rl.errors import DataError
from slime_rl.types import Message, Prompt


def load_prompts(path: str, columns: ColumnsConfig, *, field: str, rows: str | None = None) -> tuple[Prompt, ...]:
    """The prompts of the data set at `path` in its order, of those rows alone that the slice `rows` chooses.

    `path` is a Parquet file, a folder of Hugging Face datasets, `path/to/file.py:function`, `reasoning-gym:TASK`, or
    else a JSONL file. The prompt column holds a text or a list of chat messages, the answer column a text or a number;
    every other column becomes metadata. Raises DataError, which names `field`, the dotted path of the configuration, or
    the field of a column that is missing; for a row it names data set, row and column too.
    """
    chosen = slice(None) if rows is None else parse_rows(rows)
    prompts = tuple(_prompt(row, index, columns) for index, row in enumerate(_read(path, chosen, field)))
    if not prompts:
        among = "" if rows is None else f" among {rows!r}"
        raise DataError(f"{field} must name a file with at least one row, got {path!r}, which has none{among}")
    return prompts


def load_training(data: DataConfig) -> tuple[Prompt, ...]:
    """The prompts to train on."""
    return load_prompts(data.path, data.columns, field="data.path", rows=data.rows)


def load_held_out(evaluation: EvaluationConfig, columns: ColumnsConfig) -> tuple[Prompt, ...]:
    """The held-out prompts, all of them."""
    return load_prompts(evaluation.path, columns, field="evaluation.path", rows=evaluation.rows)


def _read(path: str, chosen: slice, field: str) -> Iterator[Row]:
    if path.startswith(GYM):
        return read_gym(path, chosen, field=field)
    if ".py:" in path:
        return read_function(path, chosen, field=field)
    if Path(path).is_dir():
        return read_folder(path, chosen, field=field)
    if path.endswith(".parquet"):
        return read_parquet(path, chosen, field=field)
    return read_jsonl(path, chosen, field=field)


def _prompt(row: Row, index: int, columns: ColumnsConfig) -> Prompt:
    values, place = row.values, row.place
    value = _column(values, "prompt", columns.prompt, place)
    messages = None if isinstance(value, str) else _messages(value, columns.prompt, place)
    answer = _answer(_column(values, "answer", columns.answer, place), columns.answer, place)
    return Prompt(
        index=index,
        messages=messages,
        text=value if messages is None else None,
        answer=answer,
        metadata={name: values[name] for name in values if name not in (columns.prompt, columns.answer)},
    )


def _column(row: Mapping[str, Any], role: str, name: str, place: Place) -> Any:
    """The value of column `name`, which `data.columns.ROLE` names; it holds no text that a tokenizer cannot read."""
    if name not in row:
        found = f"no column {name!r}{nearest(name, row)}; the row has {sorted(row)}"
        if place.field == "data.path":
            raise DataError(f"data.columns.{role} must name a column of {place}: {found}")
        raise DataError(f"{place.field} must hold the column that data.columns.{role} names, in {place}: {found}")
    try:
        json.dumps(row[name], ensure_ascii=False).encode()
    except TypeError:
        raise place.must(f"hold text, numbers, lists and mappings in column {name!r}", repr(row[name])) from None
    except UnicodeEncodeError:
        raise place.must(f"hold whole characters in column {name!r}", "half of a surrogate pair") from None
    return row[name]


def _messages(value: object, column: str, place: Place) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise place.must(f"hold a text or a list of messages in column {column!r}", repr(value))
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise place.must(f"hold messages with role and content in column {column!r}", repr(message))
    return tuple(_without_absent(message) for message in value)


def _without_absent(message: Mapping[str, Any]) -> Message:
    """A message without what columnar formats put where other rows have a key: None under every key of the column."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def _answer(value: object, column: str, place: Place) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise place.must(f"hold a text or a number in column {column!r}", repr(value))
    return str(value)
