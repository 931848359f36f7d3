"""What both transports of weights offer."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from slime_rl.types import Version

NamedTensor = tuple[str, Tensor]
"""A Hugging Face checkpoint name and its tensor, in the dtype of the engine."""


class Intake(Protocol):
    """The side of `engine_http.EngineHttp` that takes weights in."""

    async def begin_update(self) -> None: ...

    async def end_update(self) -> None: ...

    async def load_tensors(self, payload: str, *, loader: str | None, version: Version) -> None: ...

    async def load_folder(self, path: str, *, version: Version) -> None: ...


class Load(Protocol):
    """Brings the tensors that a transport holds into one paused engine."""

    async def __call__(self, engine: Intake, version: Version) -> None: ...
