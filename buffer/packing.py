"""How a run's groups are packed: what the buffer section of the configuration says of payloads and blobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from slime_rl.buffer import codec
from slime_rl.buffer.blobs import Blobs, delete, open_blobs
from slime_rl.buffer.envelope import Compression
from slime_rl.config import BufferConfig
from slime_rl.types import Group, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Packs and unpacks groups; without `blobs` every array goes with its payload."""

    compression: Compression = "none"
    inline_limit: int = 0
    blobs: Blobs | None = None

    async def encode(self, group: Group) -> bytes:
        """The payload of a group whose blob is durable; writing that leaves the event loop free. See `codec.encode`."""
        if self.blobs is None or not any(sample.arrays for sample in group.samples):
            return self._encode(group)
        writing = asyncio.create_task(asyncio.to_thread(self._encode, group))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.gather(writing, return_exceptions=True)  # a thread goes on
            await self.forget(group)
            raise

    async def forget(self, group: Group) -> None:
        """Delete the blob of an attempt that came to nothing, if it has one."""
        if self.blobs is not None and any(sample.arrays for sample in group.samples):
            await asyncio.to_thread(delete, self.blobs, group.id, group.attempt)

    def decode(self, payload: bytes, *, key: str) -> Group:
        """The group of a payload; see `codec.decode`."""
        return codec.decode(payload, key=key, blobs=self.blobs)

    def encode_segment(self, segment: Segment) -> bytes:
        """The payload of a part of a sample."""
        return codec.encode_segment(segment, compression=self.compression)

    def _encode(self, group: Group) -> bytes:
        return codec.encode(group, compression=self.compression, blobs=self.blobs, inline_limit=self.inline_limit)


def packing_of(config: BufferConfig, run_id: str) -> Packing:
    """The packing of one run; raises ConfigError if its blobs are where none can be."""
    blobs = None if config.blobs is None else open_blobs(config.blobs, run_id)
    return Packing(compression=config.compression, inline_limit=config.inline_limit, blobs=blobs)
