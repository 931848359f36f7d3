"""What every payload is wrapped in: a prefix, a msgpack header, padding to 8 bytes, then arrays.

    prefix   magic, format number, flags, bytes of the header as stored, CRC-32 of all else
    flags    1: the header is a zstd frame, 2: the arrays are one

Nothing here can run code that a payload carries, and a part takes at most `MAX_EXPANSION` times its size in memory, or
`ALWAYS_FITS` bytes.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgpack
import zstandard

from slime_rl.errors import CodecError

FORMAT = 2
ALIGNMENT = 8
MAX_EXPANSION = 256
"""What zstd would shrink further is stored as it is, so a frame that claims more is none of ours."""
ALWAYS_FITS = 2**26
"""Bytes below which a part is shrunk as far as it goes."""

Bytes = bytes | bytearray | memoryview
Compression = Literal["none", "zstd"]

_PREFIX = struct.Struct("<4sHHI")
_CRC = struct.Struct("<I")
_START = _PREFIX.size + _CRC.size
_SHRUNK_HEADER, _SHRUNK_ARRAYS = 1, 2
_MIN_SHRUNK = 256  # bytes; a smaller header gains nothing
_LEVEL = 1  # 2 and more shrink log-probs and routed experts no further, at half the speed and less


def seal(magic: bytes, header: Any, arrays: Sequence[Bytes], *, compression: Compression = "none") -> bytes:
    """The payload of a header and of arrays that follow one another; a header that gains by it is always compressed."""
    packed = cast(bytes, msgpack.packb(header, unicode_errors="surrogatepass"))
    flags = 0
    if len(packed) >= _MIN_SHRUNK and (frame := shrink([packed])) is not None:
        packed, flags = frame, flags | _SHRUNK_HEADER
    if compression == "zstd" and (frame := shrink(arrays)) is not None:
        arrays, flags = [frame], flags | _SHRUNK_ARRAYS
    prefix = _PREFIX.pack(magic, FORMAT, flags, len(packed))
    rest = [packed, bytes(_padding(len(packed))), *arrays]
    return b"".join((prefix, _CRC.pack(crc_of([prefix, *rest])), *rest))


def unseal(payload: bytes, *, key: str, magic: bytes) -> tuple[Any, memoryview]:
    """The header and the bytes of the arrays; raises CodecError, which names the key, for what `seal` did not write."""
    if len(payload) < _START:
        raise CodecError(f"{key}: truncated: {len(payload)} bytes are less than a prefix of {_START}")
    found, number, flags, length = _PREFIX.unpack_from(payload)
    if found != magic:
        raise CodecError(f"{key}: not ours: starts with {found!r}, expected {magic!r}")
    if number != FORMAT:
        raise CodecError(f"{key}: payload format {number}, expected {FORMAT}: written by another version of slime_rl")
    view = memoryview(payload)
    if crc_of([view[: _PREFIX.size], view[_START:]]) != _CRC.unpack_from(payload, _PREFIX.size)[0]:
        raise CodecError(f"{key}: damaged or truncated: the checksum of its {len(payload)} bytes is wrong")
    try:
        return _open(view[_START:], flags, length)
    except (ValueError, msgpack.UnpackException, zstandard.ZstdError) as error:
        raise CodecError(f"{key}: the header is not msgpack, or a part no zstd: {error!r}") from error


def crc_of(parts: Sequence[Bytes]) -> int:
    """CRC-32 of parts that follow one another."""
    return functools.reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)


def shrink(parts: Sequence[Bytes]) -> bytes | None:
    """The parts as one zstd frame, or None where that gains nothing or `expand` would refuse it."""
    whole = b"".join(parts)
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(whole)
    return frame if len(frame) < len(whole) <= _largest(frame) else None


def expand(frame: Bytes) -> bytes:
    """What `shrink` was given; raises ValueError or zstandard.ZstdError for a frame that it did not make."""
    size = zstandard.frame_content_size(frame)
    if not 0 <= size <= _largest(frame):
        raise ValueError(f"a frame of {len(frame)} bytes claims to hold {size}")
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)


def _largest(frame: Bytes) -> int:
    """How many bytes a frame may hold."""
    return max(MAX_EXPANSION * len(frame), ALWAYS_FITS)


def _open(rest: memoryview, flags: int, length: int) -> tuple[Any, memoryview]:
    header, arrays = rest[:length], rest[length + _padding(length) :]
    if flags & _SHRUNK_HEADER:
        header = expand(header)
    if flags & _SHRUNK_ARRAYS:
        arrays = memoryview(expand(arrays))
    return msgpack.unpackb(header, unicode_errors="surrogatepass"), arrays


def _padding(length: int) -> int:
    """How many zero bytes follow a header of `length`, so that the arrays are aligned."""
    return -(_START + length) % ALIGNMENT
