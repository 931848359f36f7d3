"""Groups as bytes: a prefix, a msgpack header, then the arrays of all samples one after another.

    prefix   magic "slRL" ("slSG" for a segment, which has one sample's part), format number, length of the header
             without its padding, CRC-32 of all that follows
    header   msgpack: the ids, and per sample its length and everything that is no array; then padding to 8 bytes
    arrays   tokens int32, log-probs float32, loss mask one byte each; little-endian, samples concatenated

Nothing here can run code that a payload carries.
"""

from __future__ import annotations

import functools
import itertools
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from slime_rl.errors import CodecError
from slime_rl.types import Finish, Group, Sample, Segment, Span, Version

FORMAT = 1
_GROUP = b"slRL"
_SEGMENT = b"slSG"
_PREFIX = struct.Struct("<4sHxxII")
_ALIGNMENT = 8
_ARRAYS = {"tokens": np.dtype("<i4"), "logprobs": np.dtype("<f4"), "loss_mask": np.dtype("?")}
_BYTES_PER_TOKEN = sum(dtype.itemsize for dtype in _ARRAYS.values())


def encode(group: Group) -> bytes:
    """The payload of a group."""
    return _pack(_GROUP, _header(group), group.samples)


def encode_segment(segment: Segment) -> bytes:
    """The bytes of a part of a sample."""
    header = {
        "index": segment.index,
        "start": segment.start,
        "num_tokens": segment.num_tokens,
        "versions": [(s.version, s.start, s.end) for s in segment.versions],
        "temperature": segment.temperature,
        "finish": segment.finish and segment.finish.value,
    }
    return _pack(_SEGMENT, header, [segment])


def decode(payload: bytes, *, key: str) -> Group:
    """The group of a payload that was stored under `key`; its arrays are read-only views of the payload.

    Raises CodecError, which names the key, for a payload that is damaged, truncated or not ours.
    """
    header, body = _open(payload, key, _GROUP)
    try:
        return _group(header, body)
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"{key}: the header does not describe a group: {error!r}") from error


def decode_segment(payload: bytes, *, key: str) -> Segment:
    """The part of a sample that was stored under `key`; raises CodecError as `decode` does."""
    header, body = _open(payload, key, _SEGMENT)
    try:
        [[tokens], [logprobs], [loss_mask]] = _split(body, [header["num_tokens"]])
        return Segment(
            index=header["index"],
            start=header["start"],
            tokens=tokens,
            loss_mask=loss_mask,
            logprobs=logprobs,
            versions=_spans(header["versions"]),
            temperature=header["temperature"],
            finish=None if header["finish"] is None else Finish(header["finish"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"{key}: the header does not describe a segment: {error!r}") from error


def _pack(magic: bytes, header: Mapping[str, Any], samples: Sequence[Sample | Segment]) -> bytes:
    packed = cast(bytes, msgpack.packb(header, unicode_errors="surrogatepass"))
    parts = [packed, bytes(_padding(len(packed)))]
    parts += [_column(samples, name, dtype) for name, dtype in _ARRAYS.items()]
    crc = functools.reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)
    return b"".join((_PREFIX.pack(magic, FORMAT, len(packed), crc), *parts))


def _header(group: Group) -> dict[str, Any]:
    return {
        "id": group.id,
        "prompt_index": group.prompt_index,
        "attempt": group.attempt,
        "samples": [_described(sample) for sample in group.samples],
    }


def _described(sample: Sample) -> dict[str, Any]:
    return {
        "num_tokens": sample.num_tokens,
        "index": sample.index,
        "trajectory": sample.trajectory,
        "versions": [(s.version, s.start, s.end) for s in sample.versions],
        "temperature": sample.temperature,
        "finish": sample.finish.value,
        "text": sample.text,
        "reward": sample.reward,
        "reward_parts": dict(sample.reward_parts),
    }


def _column(samples: Sequence[Sample | Segment], name: str, dtype: np.dtype) -> bytes:
    return b"".join(getattr(sample, name).astype(dtype, copy=False).tobytes() for sample in samples)


def _open(payload: bytes, key: str, expected: bytes) -> tuple[Mapping[str, Any], memoryview]:
    """The header and the bytes of the arrays, once prefix and checksum are right."""
    if len(payload) < _PREFIX.size:
        raise CodecError(f"{key}: truncated: {len(payload)} bytes are less than a prefix of {_PREFIX.size}")
    magic, number, length, crc = _PREFIX.unpack_from(payload)
    if magic != expected:
        raise CodecError(f"{key}: not ours: starts with {magic!r}, expected {expected!r}")
    if number != FORMAT:
        raise CodecError(f"{key}: payload format {number}, expected {FORMAT}")
    rest = memoryview(payload)[_PREFIX.size :]
    if zlib.crc32(rest) != crc:
        raise CodecError(f"{key}: damaged or truncated: the checksum of its {len(payload)} bytes is wrong")
    try:
        header = msgpack.unpackb(rest[:length], unicode_errors="surrogatepass")
    except (ValueError, msgpack.UnpackException) as error:
        raise CodecError(f"{key}: the header is not msgpack: {error!r}") from error
    return header, rest[length + _padding(length) :]


def _padding(length: int) -> int:
    """How many zero bytes follow a header of `length`, so that the arrays are aligned."""
    return -(_PREFIX.size + length) % _ALIGNMENT


def _group(header: Mapping[str, Any], body: memoryview) -> Group:
    lengths = [sample["num_tokens"] for sample in header["samples"]]
    rows = zip(header["samples"], *_split(body, lengths), strict=True)
    return Group(
        id=header["id"],
        prompt_index=header["prompt_index"],
        attempt=header["attempt"],
        samples=tuple(_sample(*row) for row in rows),
    )


def _split(body: memoryview, lengths: Sequence[int]) -> list[list[NDArray[Any]]]:
    """Per array of the format, its part for each sample."""
    if len(body) != sum(lengths) * _BYTES_PER_TOKEN:
        raise ValueError(f"{len(body)} bytes of arrays for {sum(lengths)} tokens")
    columns, offset = [], 0
    for dtype in _ARRAYS.values():
        column = np.frombuffer(body, dtype, count=sum(lengths), offset=offset)
        ends = itertools.accumulate(lengths)
        columns.append([column[end - length : end] for length, end in zip(lengths, ends, strict=True)])
        offset += column.nbytes
    return columns


def _spans(rows: Sequence[Sequence[int]]) -> tuple[Span, ...]:
    return tuple(Span(Version(version), start, end) for version, start, end in rows)


def _sample(
    fields: Mapping[str, Any], tokens: NDArray[np.int32], logprobs: NDArray[np.float32], loss_mask: NDArray[np.bool_]
) -> Sample:
    return Sample(
        index=fields["index"],
        trajectory=fields["trajectory"],
        tokens=tokens,
        loss_mask=loss_mask,
        logprobs=logprobs,
        versions=_spans(fields["versions"]),
        temperature=fields["temperature"],
        finish=Finish(fields["finish"]),
        text=fields["text"],
        reward=fields["reward"],
        reward_parts=fields["reward_parts"],
    )
