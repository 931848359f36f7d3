"""What a checkpoint keeps of the buffer, so that its run can go on without the server."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import msgpack

from slime_rl.errors import CodecError
from slime_rl.types import Version

FORMAT = 1
_MAGIC = b"slSN"
_PREFIX = struct.Struct("<4sHxxI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The buffer at the trained frontier of `version`.

    `open` are the ids issued and neither trained by then nor dropped: the data set goes on with these and then with
    `issued`. `sequence` numbers the server's writes, so that one which has lost some can be told. `kept` is what a
    resumed run must not change (pacing.py).
    """

    run_id: str
    version: Version
    sequence: int
    issued: int
    taken: int
    open: tuple[int, ...]
    dropped: Mapping[str, int]
    requeued_by: Mapping[str, int]
    lags: Mapping[str, int]
    kept: Mapping[str, Any]

    @classmethod
    def initial(cls, run_id: str, kept: Mapping[str, Any]) -> Self:
        """The buffer before anything was issued: what a run goes on from that has no checkpoint yet."""
        nothing: dict[str, int] = {}
        return cls(
            run_id=run_id,
            version=Version(0),
            sequence=0,
            issued=0,
            taken=0,
            open=(),
            dropped=nothing,
            requeued_by=nothing,
            lags=nothing,
            kept=kept,
        )

    def encode(self) -> bytes:
        """The bytes of a snapshot's file."""
        body = cast(bytes, msgpack.packb(asdict(self)))
        return _PREFIX.pack(_MAGIC, FORMAT, zlib.crc32(body)) + body


def decode_snapshot(data: bytes, *, name: str) -> Snapshot:
    """The snapshot in a file's bytes; raises CodecError, which begins with `name`, for damaged or foreign ones."""
    if len(data) < _PREFIX.size or not data.startswith(_MAGIC):
        raise CodecError(f"{name}: not a snapshot of a buffer")
    _, number, crc = _PREFIX.unpack_from(data)
    if number != FORMAT:
        raise CodecError(f"{name}: snapshot format {number}, expected {FORMAT}")
    body = data[_PREFIX.size :]
    if zlib.crc32(body) != crc:
        raise CodecError(f"{name}: damaged or truncated: the checksum of its {len(data)} bytes is wrong")
    try:
        fields = msgpack.unpackb(body)
        return Snapshot(**fields | {"open": tuple(fields["open"])})
    except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise CodecError(f"{name}: does not describe a buffer: {error!r}") from error
