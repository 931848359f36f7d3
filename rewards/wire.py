"""Messages between a pool and its graders: a length in four little-endian bytes, then msgpack.

Whatever a row of a data set can hold travels: integers of any size as an extension type, and halves of a surrogate
pair, which JSON can spell and UTF-8 cannot.
"""

from __future__ import annotations

from typing import Any, BinaryIO, cast

import msgpack

HEADER_BYTES = 4
_BIG_INTEGER = 1


def frame(message: dict[str, Any]) -> bytes:
    """A message as it is sent.

    Raises TypeError for a value that is no data, and ValueError for one that is nested too deeply.
    """
    payload = cast(bytes, msgpack.packb(message, default=_extension, unicode_errors="surrogatepass"))
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


def unframe(payload: bytes) -> dict[str, Any]:
    """The message of a frame without its header."""
    return msgpack.unpackb(payload, ext_hook=_integer, unicode_errors="surrogatepass")


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """One message, or None at the end of the stream."""
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    size = int.from_bytes(header, "little")
    payload = stream.read(size)
    return unframe(payload) if len(payload) == size else None


def write(stream: BinaryIO, message: dict[str, Any]) -> None:
    """One message, sent at once."""
    stream.write(frame(message))
    stream.flush()


def _extension(value: object) -> msgpack.ExtType:
    """msgpack asks for what it cannot write itself, integers beyond 64 bits among it."""
    if not isinstance(value, int):
        raise TypeError(f"expected plain data, got {type(value).__name__}")
    return msgpack.ExtType(_BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _integer(code: int, data: bytes) -> int:
    assert code == _BIG_INTEGER, f"extension type {code} is not ours"
    return int.from_bytes(data, "little", signed=True)
