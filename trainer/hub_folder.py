"""Writes the files of an ordinary Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

MAX_SHARD_BYTES = 5 * 10**9
_COPIED = ("*.json", "*.txt", "*.model", "*.jinja", "LICENSE*")
_WEIGHT_INDEX = "model.safetensors.index.json"


def write_hub_files(
    folder: Path,
    weights: Iterable[tuple[str, Tensor]],
    *,
    like: str | Path,
    dtype: torch.dtype,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write `weights` to a folder that is there, beside configuration and tokenizer of the model folder `like`."""
    _copy_companions(Path(like), folder, dtype)
    _write_shards(folder, weights, max_shard_bytes)


def _copy_companions(like: Path, folder: Path, dtype: torch.dtype) -> None:
    for path in (path for pattern in _COPIED for path in like.glob(pattern)):
        if path.name != _WEIGHT_INDEX:
            shutil.copyfile(path, folder / path.name)
    config = json.loads((like / "config.json").read_text(encoding="utf-8"))
    name = "dtype" if "dtype" in config else "torch_dtype"
    config[name] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_shards(folder: Path, weights: Iterable[tuple[str, Tensor]], max_bytes: int) -> None:
    """One file, or numbered files and their index once `max_bytes` are passed."""
    shards: list[list[str]] = []
    shard: dict[str, Tensor] = {}
    size = total = 0

    def flush() -> None:
        save_file(shard, folder / f"{len(shards)}.part", metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    for name, weight in weights:
        if shard and size + weight.nbytes > max_bytes:
            flush()
            size = 0
        shard[name] = weight.detach().cpu().contiguous()
        size += weight.nbytes
        total += weight.nbytes
    flush()
    if len(shards) == 1:
        (folder / "0.part").rename(folder / "model.safetensors")
        return
    files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for number, file in enumerate(files):
        (folder / f"{number}.part").rename(folder / file)
    index = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    values = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / _WEIGHT_INDEX).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
