"""What can be told of a model folder without loading anything of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime_rl.errors import ModelError

VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def check_tokenizer(path: str) -> None:
    """Raise ModelError in one line unless the folder `path` holds a tokenizer."""
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"model.path must be a model folder, got {path!r}")
    if not any((folder / name).exists() for name in VOCABULARY_FILES):
        raise ModelError(f"model.path must hold a tokenizer ({' or '.join(VOCABULARY_FILES)}), got {path!r} with none")


def read_json(path: str, name: str) -> dict[str, Any]:
    """The JSON object in file `name` of a model folder; empty where there is no such file.

    Raises ModelError if it is no JSON object.
    """
    file = Path(path) / name
    if not file.exists():
        return {}
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"model.path must hold valid JSON in {name} ({error}), got {path!r}") from None
    if not isinstance(values, dict):
        raise ModelError(f"model.path must hold an object in {name}, got {type(values).__name__} in {path!r}")
    return values


def eos_token_ids(path: str) -> tuple[int, ...]:
    """The ids that end a text by the model's `generation_config.json`, else by its `config.json`.

    Raises ModelError if they are no ids.
    """
    found = read_json(path, "generation_config.json").get("eos_token_id")
    if found is None:
        found = read_json(path, "config.json").get("eos_token_id")
    if found is None:
        return ()
    ids = found if isinstance(found, list) else [found]
    if not all(isinstance(id, int) and not isinstance(id, bool) for id in ids):
        raise ModelError(f"model.path must name end-of-text tokens by their ids, got {found!r} in {path!r}")
    return tuple(ids)
