"""Rows that a function makes: a user's generator, or a task of reasoning-gym."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slime_rl.buffer.columnar import require
from slime_rl.buffer.place import Place, Row
from slime_rl.buffer.plain import to_plain
from slime_rl.config import nearest
from slime_rl.errors import DataError

MAX_ROWS = 1_000_000
"""How many rows a generator may give without an end in the configuration."""

MAX_SECONDS = 300.0
"""How long a generator may take for all of its rows."""

GYM = "reasoning-gym:"


def read_function(name: str, chosen: slice, *, field: str) -> Iterator[Row]:
    """The chosen rows of what `path/to/file.py:function` gives when it is called without arguments.

    Raises DataError if there is no such function, if it fails, if a row is no mapping of plain data, and if it does not
    come to its end within MAX_SECONDS or, where `chosen` has none, within MAX_ROWS. The clock is read between rows.
    """
    rows = _guarded(_iterate(_load(name, field), name, field), name, field)
    end = MAX_ROWS if chosen.stop is None else chosen.stop
    began = time.monotonic()
    for number, values in enumerate(itertools.islice(rows, end)):
        if time.monotonic() - began > MAX_SECONDS:
            raise DataError(f"{field} must end within {MAX_SECONDS:g} s, got {name!r}, which had given {number} rows")
        if number in range(chosen.start or 0, end, chosen.step or 1):
            yield _row(values, Place(field, name, number))
    if chosen.stop is None and next(rows, None) is not None:
        bound = field.rpartition(".")[0] + ".rows"
        raise DataError(f"{field} must end within {MAX_ROWS} rows or be bounded by {bound}, got {name!r}")


def read_gym(name: str, chosen: slice, *, field: str) -> Iterator[Row]:
    """The chosen rows of `reasoning-gym:TASK`: `prompt`, `answer`, and what the task says of itself.

    Row i is the task's puzzle of seed i, so that slices that do not overlap share no seed. Raises DataError for a task
    that is not known, and without an end of the slice: a task has no end.
    """
    gym = require("reasoning_gym", f"{field} names a task of reasoning-gym, {name!r}")
    task = name.removeprefix(GYM)
    known = importlib.import_module("reasoning_gym.factory").DATASETS
    if task not in known:
        raise DataError(f"{field} must name a task of reasoning-gym, got {task!r}{nearest(task, known)}")
    if chosen.stop is None:
        bound = field.rpartition(".")[0] + ".rows"
        raise DataError(f"{bound} must have an end for a task of reasoning-gym, got none with {field} {name!r}")
    puzzles = gym.create_dataset(task, size=chosen.stop, seed=0)
    for number in range(chosen.stop)[chosen]:
        puzzle = puzzles[number]
        values = {"prompt": puzzle["question"], "answer": puzzle["answer"], "metadata": puzzle["metadata"]}
        yield _row(values, Place(field, name, number))


def _load(name: str, field: str) -> Callable[[], Any]:
    """The function of a file, which is loaded under a private module name once its source is seen to hold it."""
    path, _, attribute = name.rpartition(":")
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{field} must name a readable Python file, got {path!r} ({error})") from None
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if attribute not in functions:
        raise DataError(f"{field} must name a function of {path}, got {attribute!r}{nearest(attribute, functions)}")
    module_name = "_slime_rl_data_" + hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failure(error, name, field) from error
    return getattr(module, attribute)


def _iterate(function: Callable[[], Any], name: str, field: str) -> Iterator[Any]:
    made = function()
    if not isinstance(made, Iterable):
        raise DataError(f"{field} must name a function that gives rows, got {type(made).__name__} from {name!r}")
    yield from made


def _guarded(rows: Iterator[Any], name: str, field: str) -> Iterator[Any]:
    """The same rows; what the user's function raises becomes a DataError."""
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except DataError:
            raise
        except Exception as error:
            raise _failure(error, name, field) from error
        yield row


def _failure(error: Exception, name: str, field: str) -> DataError:
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return DataError(f"{field} must name a function that gives rows, got {said} from {name!r}")


def _row(values: Any, place: Place) -> Row:
    if not isinstance(values, Mapping):
        raise place.must("give mappings of columns", type(values).__name__)
    return Row({str(name): to_plain(value, str(name), place) for name, value in values.items()}, place)
