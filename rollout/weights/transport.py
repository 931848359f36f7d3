"""What both transports of weights offer."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.types import Version

NamedTensor = tuple[str, Tensor]
"""A Hugging Face checkpoint name and its tensor, in the dtype of the engine."""


class Load(Protocol):
    """Brings the tensors that a transport holds into one paused engine."""

    async def __call__(self, engine: EngineHttp, version: Version) -> None: ...
