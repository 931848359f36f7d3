"""Rows of Parquet files and of folders that Hugging Face `datasets` has saved; both libraries are optional."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from slime_rl.buffer.place import Place, Row
from slime_rl.buffer.plain import to_plain
from slime_rl.errors import DataError

BATCH_ROWS = 1024


def read_parquet(path: str, chosen: slice, *, field: str) -> Iterator[Row]:
    """The chosen rows of the Parquet file at `path`, a batch at a time.

    Raises DataError for a file that cannot be read, and for a value that is no plain data.
    """
    pyarrow = require("pyarrow", f"{field} names a Parquet file, {path!r}")
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            wanted = range(file.metadata.num_rows)[chosen]
            start = 0
            for batch in file.iter_batches(BATCH_ROWS):
                inside = [number - start for number in _inside(wanted, start, start + batch.num_rows)]
                for offset, values in zip(inside, batch.take(inside).to_pylist() if inside else (), strict=True):
                    yield _row(values, Place(field, path, start + offset))
                start += batch.num_rows
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{field} must name a readable Parquet file, got {path!r} ({_line(error)})") from None


def read_folder(path: str, chosen: slice, *, field: str) -> Iterator[Row]:
    """The chosen rows of a folder that `Dataset.save_to_disk` wrote.

    Raises DataError for a folder that is none, for one of several splits, and for a value that is no plain data.
    """
    if (Path(path) / "dataset_dict.json").exists():
        splits = sorted(entry.name for entry in Path(path).iterdir() if entry.is_dir())
        raise DataError(f"{field} must name one split of a saved data set, got {path!r}, which holds {splits}")
    if not (Path(path) / "state.json").exists():
        expected = "must name a file or a folder that datasets.Dataset.save_to_disk wrote"
        raise DataError(f"{field} {expected}, got {path!r} (Is a directory without state.json)")
    datasets = require("datasets", f"{field} names a folder of Hugging Face datasets, {path!r}")
    pyarrow = importlib.import_module("pyarrow")
    try:
        table = datasets.load_from_disk(path).with_format(None)
        for number in range(len(table))[chosen]:
            yield _row(table[number], Place(field, path, number))
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        raise DataError(f"{field} must name a readable saved data set, got {path!r} ({_line(error)})") from None


def require(library: str, why: str) -> ModuleType:
    """Import an optional library; raises DataError that says what to install."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise DataError(f"{why}, which needs {library}: pip install 'slime-rl[data]'") from None


def _inside(wanted: range, start: int, stop: int) -> range:
    """The part of an ascending range of rows that lies in `start` to `stop`."""
    first = wanted.start + max(0, -(-(start - wanted.start) // wanted.step)) * wanted.step
    return range(first, min(stop, wanted.stop), wanted.step)


def _row(values: dict[str, Any], place: Place) -> Row:
    return Row({name: to_plain(value, name, place) for name, value in values.items()}, place)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
