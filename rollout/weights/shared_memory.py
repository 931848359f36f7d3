"""The `tensor` transport: weights reach the engines of this node through a piece of shared memory.

The memory is an anonymous file of the trainer (memfd), which engines open by its path under /proc. It has no name that
could outlive the trainer, needs no helper process (torch's own sharing leaves a `torch_shm_manager` behind), and
what travels over HTTP is a page of JSON, whatever the size of the model.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
from collections.abc import Iterator, Sequence

import torch

from slime_rl.errors import EngineError
from slime_rl.rollout.arguments import WEIGHT_LOADER
from slime_rl.rollout.weights.transport import Intake, Load, NamedTensor
from slime_rl.types import Version

ALIGNMENT = 64  # bytes; a view of any dtype may start there


@contextlib.contextmanager
def share(tensors: Sequence[NamedTensor]) -> Iterator[Load]:
    """Hold `tensors` in shared memory while the context is open; engines must have copied them when it closes."""
    fd = os.memfd_create("slime_rl-weights", os.MFD_CLOEXEC)
    try:
        layout = _write(fd, tensors)
        payload = encode_layout(f"/proc/{os.getpid()}/fd/{fd}", layout)

        async def load(engine: Intake, version: Version) -> None:
            await engine.begin_update()
            try:
                await engine.load_tensors(payload, loader=WEIGHT_LOADER, version=version)
            except EngineError:
                with contextlib.suppress(EngineError):
                    await engine.end_update()
                raise
            await engine.end_update()

        yield load
    finally:
        os.close(fd)


def encode_layout(path: str, layout: Sequence[tuple[str, str, Sequence[int], int]]) -> str:
    """What SGLang accepts as named tensors: one pair of `path` and the layout as a tensor of JSON bytes."""
    content = torch.frombuffer(bytearray(json.dumps(layout), "utf-8"), dtype=torch.uint8)
    return base64.b64encode(pickle.dumps([(path, content)])).decode("ascii")


def _write(fd: int, tensors: Sequence[NamedTensor]) -> list[tuple[str, str, list[int], int]]:
    """Copy `tensors` into the file `fd`; returns the name, dtype, shape and offset in bytes of each."""
    layout, size = [], 0
    for name, tensor in tensors:
        layout.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size))
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    os.ftruncate(fd, size)
    memory = torch.from_file(f"/proc/self/fd/{fd}", shared=True, size=size, dtype=torch.uint8)
    for (_, tensor), (_, _, shape, offset) in zip(tensors, layout, strict=True):
        memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(shape).copy_(tensor.detach())
    return layout
