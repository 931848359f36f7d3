"""Runs inside the engine: reads published tensors out of the trainer's shared memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Model(Protocol):
    """The part of an SGLang model that takes weights in by their Hugging Face names."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> object: ...


def load(model: Model, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
    """SGLang's custom weight loader: copy every tensor that a memory's layout describes into `model`."""
    for path, layout in named_tensors:
        model.load_weights(map_tensors(path, layout))


def map_tensors(path: str, layout: Tensor) -> list[tuple[str, Tensor]]:
    """Views of the memory at `path`, one for each row of `layout`: JSON bytes of (name, dtype, shape, offset)."""
    rows = json.loads(layout.cpu().numpy().tobytes())
    with open(path, "rb") as file:
        size = file.seek(0, 2)
    memory = torch.from_file(path, shared=False, size=size, dtype=torch.uint8)
    return [(name, _view(memory, getattr(torch, dtype), shape, offset)) for name, dtype, shape, offset in rows]


def _view(memory: Tensor, dtype: torch.dtype, shape: Sequence[int], offset: int) -> Tensor:
    size = dtype.itemsize * torch.Size(shape).numel()
    return memory[offset : offset + size].view(dtype).view(shape)
