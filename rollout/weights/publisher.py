"""Publishes a version of the weights to every engine, and proves that each one serves it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from slime_rl.errors import WeightsError
from slime_rl.rollout.address import Address
from slime_rl.rollout.engine_http import EngineHttp
from slime_rl.rollout.weights import folder, shared_memory
from slime_rl.rollout.weights.proof import check_held, engine_checksums
from slime_rl.rollout.weights.transport import Load, NamedTensor
from slime_rl.types import Version


class Publisher:
    """Brings new weights into running engines, all of them at once.

    `folder` is where the `disk` transport writes; engines must see it under the same path.
    """

    def __init__(
        self, addresses: Sequence[Address], *, transport: Literal["tensor", "disk"], folder: Path, timeout_s: float
    ) -> None:
        self._addresses = tuple(addresses)
        self._transport = transport
        self._folder = folder
        self._timeout_s = timeout_s

    async def publish(self, version: Version, tensors: Sequence[NamedTensor]) -> None:
        """Return when every engine holds `tensors` and serves them as `version`.

        `tensors` are a whole checkpoint under Hugging Face names, in the engines' dtype. Requests in flight are held
        meanwhile and go on with the new weights; their tokens carry the version that wrote them.

        Raises EngineError if an engine does not answer within `timeout_s` or refuses, and WeightsError if one holds
        anything else than what was published. A failed engine stays paused: it samples nothing from wrong weights.
        """
        with self._hold(tensors) as load:
            published = await asyncio.to_thread(engine_checksums, tensors)
            try:
                async with asyncio.TaskGroup() as group:
                    for address in self._addresses:
                        group.create_task(self._update(address, version, load, published))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None

    def _hold(self, tensors: Sequence[NamedTensor]) -> contextlib.AbstractContextManager[Load]:
        if self._transport == "tensor":
            return shared_memory.share(tensors)
        return folder.write(tensors, parent=self._folder)

    async def _update(self, address: Address, version: Version, load: Load, published: Mapping[str, str]) -> None:
        async with EngineHttp(address, timeout_s=self._timeout_s) as engine:
            await engine.pause("retract")
            await load(engine, version)
            check_held(address.name, published=published, held=await engine.checksums())
            served = await engine.version()
            if served != version:
                raise WeightsError(f"{address.name} serves version {served} after version {version} was published")
            await engine.resume()
