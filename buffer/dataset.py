"""Prompts from the rows of a data set."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slime_rl.buffer.columnar import read_folder, read_parquet
from slime_rl.buffer.generated import GYM, read_function, read_gym
from slime_rl.buffer.jsonl import read_jsonl
from slime_rl.buffer.order import Source
from slime_rl.buffer.place import Place, Row
from slime_rl.config import ColumnsConfig, DataConfig, EvaluationConfig, nearest, parse_rows
from slime_rl.errors import DataError
from slime_rl.types import Message, Prompt


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows every process of a run uses: of each source its record, and the indices of those left out of it."""

    sources: tuple[Source, ...]
    left_out: tuple[tuple[int, ...], ...]

    @property
    def num_left_out(self) -> int:
        return sum(map(len, self.left_out))

    def parts(self, prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
        """All selected prompts, source by source."""
        ends = list(itertools.accumulate(source.size for source in self.sources))
        return [prompts[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def read_sources(data: DataConfig) -> dict[str, tuple[Prompt, ...]]:
    """All prompts of each source by its dotted path, in the order of the configuration."""
    return {
        name: _load(
            source.path,
            source.columns or data.columns,
            field=f"{name}.path",
            rows=source.rows,
            named=f"{name}.columns" if source.columns else "data.columns",
        )
        for name, source in data.named.items()
    }


def select(
    data: DataConfig, read: Mapping[str, tuple[Prompt, ...]], left_out: Mapping[str, Collection[int]]
) -> tuple[tuple[Prompt, ...], Selection]:
    """The prompts of all sources one after the other without those left out, numbered anew, and what was selected."""
    kept: list[Prompt] = []
    records: list[Source] = []
    for name, prompts in read.items():
        without = frozenset(left_out.get(name, ()))
        part = [prompt for prompt in prompts if prompt.index not in without]
        records.append(Source(len(part), data.named[name].weight, _digest(part)))
        kept += part
    selection = Selection(tuple(records), tuple(tuple(sorted(left_out.get(name, ()))) for name in read))
    return tuple(replace(prompt, index=index) for index, prompt in enumerate(kept)), selection


def load_selected(data: DataConfig, selection: Selection) -> tuple[Prompt, ...]:
    """The prompts to train on, as the process that made `selection` has them.

    Raises DataError if a source gives other rows here.
    """
    read = read_sources(data)
    prompts, found = select(data, read, dict(zip(read, selection.left_out, strict=True)))
    for name, ours, theirs in zip(read, found.sources, selection.sources, strict=True):
        if ours != theirs:
            expected = f"{name}.path must give the same rows in every process of a run"
            raise DataError(f"{expected}, got others from {data.named[name].path!r}")
    return prompts


def load_held_out(evaluation: EvaluationConfig, columns: ColumnsConfig) -> tuple[Prompt, ...]:
    """The held-out prompts, all of them."""
    return load_prompts(evaluation.path, columns, field="evaluation.path", rows=evaluation.rows)


def load_prompts(path: str, columns: ColumnsConfig, *, field: str, rows: str | None = None) -> tuple[Prompt, ...]:
    """The prompts of the data set at `path` in its order, of those rows alone that the slice `rows` chooses.

    `path` is a Parquet file, a folder of Hugging Face datasets, `path/to/file.py:function`, `reasoning-gym:TASK`, or
    else a JSONL file. The prompt column holds a text or a list of chat messages, the answer column a text or a number;
    every other column becomes metadata. Raises DataError, which names `field`, the dotted path of the configuration, or
    the field of a column that is missing; for a row it names data set, row and column too.
    """
    return _load(path, columns, field=field, rows=rows, named="data.columns")


def _load(path: str, columns: ColumnsConfig, *, field: str, rows: str | None, named: str) -> tuple[Prompt, ...]:
    """The same; `named` is the dotted path of `columns`."""
    chosen = slice(None) if rows is None else parse_rows(rows)
    prompts = tuple(_prompt(row, index, columns, named) for index, row in enumerate(_read(path, chosen, field)))
    if not prompts:
        among = "" if rows is None else f" among {rows!r}"
        raise DataError(f"{field} must name a file with at least one row, got {path!r}, which has none{among}")
    return prompts


def _digest(prompts: Iterable[Prompt]) -> str:
    """What tells these prompts from any others, metadata included."""
    digest = hashlib.sha256()
    for prompt in prompts:
        parts = (prompt.text, prompt.messages, prompt.answer, prompt.tools, prompt.metadata)
        digest.update(json.dumps(parts, default=repr).encode() + b"\n")
    return digest.hexdigest()[:16]


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


def _prompt(row: Row, index: int, columns: ColumnsConfig, named: str) -> Prompt:
    values, place = row.values, row.place
    roles = (columns.prompt, columns.answer, columns.tools)
    value = _column(values, f"{named}.prompt", columns.prompt, place)
    messages = None if isinstance(value, str) else _messages(value, columns.prompt, place)
    answer = _answer(_column(values, f"{named}.answer", columns.answer, place), columns.answer, place)
    return Prompt(
        index=index,
        messages=messages,
        text=value if messages is None else None,
        answer=answer,
        tools=_tools(values, f"{named}.tools", columns.tools, place),
        metadata={name: values[name] for name in values if name not in roles},
    )


def _column(row: Mapping[str, Any], named: str, name: str, place: Place) -> Any:
    """The value of column `name`, which the configuration's `named` names; a tokenizer can read any text in it."""
    if name not in row:
        found = f"no column {name!r}{nearest(name, row)}; the row has {sorted(row)}"
        if place.field != "evaluation.path":
            raise DataError(f"{named} must name a column of {place}: {found}")
        raise DataError(f"{place.field} must hold the column that {named} names, in {place}: {found}")
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


def _tools(row: Mapping[str, Any], named: str, name: str | None, place: Place) -> tuple[Mapping[str, Any], ...] | None:
    """The tools of a row, or None where it has none.

    In a list the keys that hold nothing are taken out, as columnar formats put them there; JSON text stays as it is.
    """
    value = None if name is None else _column(row, named, name, place)
    if value is None or value == []:
        return None
    must = f"hold a list of mappings, or JSON text of one, in column {name!r}"
    if isinstance(value, str):
        try:
            tools = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise place.must(must, f"invalid JSON ({error})") from None
    else:
        tools = _without_nothing(value)
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise place.must(must, repr(value))
    return tuple(tools) or None


def _without_nothing(value: Any) -> Any:
    """`value` without the keys of its mappings that hold None, at any depth."""
    match value:
        case Mapping():
            return {key: _without_nothing(item) for key, item in value.items() if item is not None}
        case list():
            return [_without_nothing(item) for item in value]
        case _:
            return value


def _without_absent(message: Mapping[str, Any]) -> Message:
    """A message without what columnar formats put where other rows have a key: None under every key of the column."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def _answer(value: object, column: str, place: Place) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise place.must(f"hold a text or a number in column {column!r}", repr(value))
    return str(value)
