"""Groups as a trainer rank reads them, straight from the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import redis

from slime_rl.buffer.connection import connect, named_faults
from slime_rl.buffer.endpoint import Endpoint, endpoint_at
from slime_rl.buffer.keys import payload_key
from slime_rl.buffer.packing import packing_of
from slime_rl.buffer.refusals import no_payload
from slime_rl.types import Group


class GroupReader:
    """Reads payloads over a connection that it keeps until `close`."""

    def __init__(self, where: str | Endpoint, run_id: str) -> None:
        self._endpoint = endpoint_at(where)
        self._run_id = run_id
        self._client = connect(redis.Redis, self._endpoint)
        self._packing = packing_of(self._endpoint.config, run_id)

    def read(self, ids: Sequence[int]) -> list[Group]:
        """The groups of `ids`, in that order, in one round trip; their arrays are read-only.

        Raises StoreError for a group whose payload is not there, CodecError for one that is damaged or whose blob is;
        both name the key.
        """
        prefix = self._endpoint.config.prefix
        keys = [payload_key(self._run_id, id, prefix=prefix) for id in ids]
        with named_faults(self._endpoint):
            payloads = cast(list[bytes | None], self._client.mget(keys)) if keys else []
        missing = [key for key, payload in zip(keys, payloads, strict=True) if payload is None]
        if missing:
            raise no_payload(missing)
        decode = self._packing.decode
        return [decode(payload, key=key) for key, payload in zip(keys, payloads, strict=True) if payload is not None]

    def close(self) -> None:
        """Give the connection back; the reader reconnects if it is used again."""
        self._client.close()
