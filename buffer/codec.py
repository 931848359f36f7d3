"""Groups and segments as payloads: what an envelope holds of them (envelope.py).

    header   msgpack: the ids, the reference of a blob, and of each sample its length and everything that is no array
    arrays   little-endian, of all samples: tokens int32, log-probs float32, loss mask one bit a token, then the extra
             arrays, each at a multiple of its item size; those above the inline limit are in the blob instead, in the
             same way (blobs.py)

A header is made of lists, each of one length with one type at each place (what samples have is in columns), and every
byte of the arrays is accounted for: what differs is a CodecError.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from slime_rl.buffer.blobs import BlobRef, Blobs, load, store
from slime_rl.buffer.envelope import Bytes, Compression, expand, seal, shrink, unseal
from slime_rl.errors import CodecError
from slime_rl.types import Finish, Group, Sample, Segment, Span, Version

_GROUP = b"slRL"
_SEGMENT = b"slSG"
_TOKENS, _LOGPROBS = np.dtype("<i4"), np.dtype("<f4")
_KINDS = "|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8"
_DTYPES = {name: np.dtype(name) for name in _KINDS}
_NUMBER = float, int
_FINISHES = {finish.value: finish for finish in Finish}
_GROUP_KINDS = (int,), (int,), (int,), (list,), (type(None), list)
_COLUMN_KINDS = (int,), (int,), (int,), (list,), _NUMBER, (str,), (str,), (type(None), *_NUMBER), (dict,), (list,)
_ARRAY_KINDS = (str,), (str,), (list,), (bool,)
_BLOB_KINDS = (int,), (int,), (bool,)
_SEGMENT_KINDS = (int,), (int,), (int,), (list,), _NUMBER, (type(None), str)
_FAULTS = KeyError, TypeError, ValueError, OverflowError, zstandard.ZstdError


def encode(
    group: Group, *, compression: Compression = "none", blobs: Blobs | None = None, inline_limit: int = 0
) -> bytes:
    """The payload of a group, whose arrays above `inline_limit` bytes are in `blobs` by then, if there are any.

    Raises CodecError for an extra array that holds no numbers, StoreError if a blob cannot be written.
    """
    extras = [_stored(array, f"group {group.id}: array {name!r}") for name, array in _extras(group.samples)]
    away = [blobs is not None and array.nbytes > inline_limit for array in extras]
    blob = None
    if blobs is not None and any(away):
        blob = _put_away(blobs, group, list(itertools.compress(extras, away)), compression)
    inline = itertools.compress(extras, [not one for one in away])
    placed = iter(away)
    rows = [_row(sample, placed) for sample in group.samples]
    header = [group.id, group.prompt_index, group.attempt, list(zip(*rows, strict=True)), blob]
    return seal(_GROUP, header, [*_columns(group.samples), *_spaced(inline)], compression=compression)


def decode(payload: bytes, *, key: str, blobs: Blobs | None = None) -> Group:
    """The group of a payload that was stored under `key`; its arrays are read-only, most of them views of the payload.

    Raises CodecError, which names the key, for a payload or blob that is damaged, truncated, missing or not ours, and
    StoreError if the blobs cannot be reached.
    """
    header, body = unseal(payload, key=key, magic=_GROUP)
    try:
        return _group(header, body, key, blobs)
    except _FAULTS as error:
        raise CodecError(f"{key}: the header does not describe a group: {error!r}") from error


def encode_segment(segment: Segment, *, compression: Compression = "none") -> bytes:
    """The payload of a part of a sample."""
    finish = segment.finish and segment.finish.value
    spans = _flat(segment.versions)
    header = [segment.index, segment.start, segment.num_tokens, spans, segment.temperature, finish]
    return seal(_SEGMENT, header, _columns([segment]), compression=compression)


def decode_segment(payload: bytes, *, key: str) -> Segment:
    """The part of a sample that was stored under `key`; raises CodecError as `decode` does."""
    header, body = unseal(payload, key=key, magic=_SEGMENT)
    try:
        index, start, num_tokens, spans, temperature, finish = _checked(header, _SEGMENT_KINDS)
        [[tokens], [logprobs], [loss_mask]], end = _split(body, [num_tokens])
        _expect(len(body), end)
        return Segment(
            index=index,
            start=start,
            tokens=tokens,
            loss_mask=loss_mask,
            logprobs=logprobs,
            versions=_spans(spans, num_tokens),
            temperature=temperature,
            finish=None if finish is None else _FINISHES[finish],
        )
    except _FAULTS as error:
        raise CodecError(f"{key}: the header does not describe a segment: {error!r}") from error


def _row(sample: Sample, placed: Iterator[bool]) -> list[Any]:
    """A sample without its arrays; `placed` says of each extra array in turn whether it is in the blob."""
    return [
        sample.index,
        sample.trajectory,
        sample.num_tokens,
        _flat(sample.versions),
        sample.temperature,
        sample.finish.value,
        sample.text,
        sample.reward,
        dict(sample.reward_parts),
        [[name, array.dtype.newbyteorder("<").str, array.shape, next(placed)] for name, array in sample.arrays.items()],
    ]


def _extras(samples: Sequence[Sample]) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((name, array) for sample in samples for name, array in sample.arrays.items())


def _stored(array: NDArray[Any], what: str) -> NDArray[Any]:
    """An extra array as its bytes are stored."""
    dtype = array.dtype.newbyteorder("<")
    if dtype.str not in _DTYPES:
        raise CodecError(f"{what}: expected booleans, integers or floats of up to 8 bytes, got {array.dtype}")
    return np.asarray(array, dtype, order="C")


def _columns(samples: Sequence[Sample | Segment]) -> list[Bytes]:
    """Tokens, log-probs and loss mask, each of all samples."""
    if not samples:
        return []
    tokens = [np.ascontiguousarray(sample.tokens, _TOKENS).data for sample in samples]
    logprobs = [np.ascontiguousarray(sample.logprobs, _LOGPROBS).data for sample in samples]
    loss_mask = np.packbits(np.concatenate([sample.loss_mask for sample in samples]), bitorder="little")
    return [*tokens, *logprobs, loss_mask.data, bytes(-len(loss_mask) % 8)]


def _spaced(arrays: Iterator[NDArray[Any]]) -> Iterator[Bytes]:
    """The bytes of extra arrays, with zeros before each up to a multiple of 8 bytes."""
    for array in arrays:
        yield array.tobytes() if array.ndim == 0 else array.reshape(-1).view(np.uint8).data
        yield bytes(-array.nbytes % 8)


def _put_away(blobs: Blobs, group: Group, arrays: list[NDArray[Any]], compression: Compression) -> list[Any]:
    """Store arrays in a blob; what the header says of it."""
    parts = list(_spaced(iter(arrays)))
    frame = shrink(parts) if compression == "zstd" else None
    ref = store(blobs, group.id, group.attempt, parts if frame is None else [frame])
    return [ref.size, ref.crc, frame is not None]


def _group(header: Any, body: memoryview, key: str, blobs: Blobs | None) -> Group:
    id, prompt_index, attempt, columns, blob = _checked(header, _GROUP_KINDS)
    rows = _rows(columns)
    arrays, end = _split(body, [row[2] for row in rows])
    inline = _Extras(body, end)
    away = _Extras(memoryview(b"" if blob is None else _fetch(blobs, id, attempt, blob, key)), 0)
    samples = tuple(
        _sample(row, tokens, logprobs, loss_mask, _named(row[-1], inline, away))
        for row, tokens, logprobs, loss_mask in zip(rows, *arrays, strict=True)
    )
    for extras in (inline, away):
        _expect(len(extras.body), extras.place)
    return Group(id=id, prompt_index=prompt_index, attempt=attempt, samples=samples)


def _rows(columns: list[Any]) -> list[tuple[Any, ...]]:
    """What each sample has, from the columns of all; a group without samples has no columns."""
    if not columns:
        return []
    for column, kinds in zip(columns, _COLUMN_KINDS, strict=True):
        if type(column) is not list or not set(map(type, column)) <= set(kinds):
            raise TypeError(f"expected a list of {kinds[0].__name__}, got {column!r:.80}")
    return list(zip(*columns, strict=True))


def _fetch(blobs: Blobs | None, id: int, attempt: int, blob: list[Any], key: str) -> bytes:
    size, crc, shrunk = _checked(blob, _BLOB_KINDS)
    ref = BlobRef(id, attempt, size, crc)
    if blobs is None:
        raise CodecError(f"{key}: its blob {ref.name} is needed, and no blob store is open")
    found = load(blobs, ref, key=key)
    return expand(found) if shrunk else found


@dataclass(slots=True)
class _Extras:
    """Bytes from which extra arrays are taken one after another."""

    body: memoryview
    place: int

    def take(self, dtype: np.dtype[Any], shape: Sequence[Any]) -> NDArray[Any]:
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"no shape: {shape}")
        count = math.prod(shape)
        if count * dtype.itemsize > len(self.body) - self.place:
            raise ValueError(f"{dtype} of shape {shape} in {len(self.body) - self.place} bytes")
        array = _view(self.body, dtype, count, self.place).reshape(shape)
        self.place += array.nbytes + -array.nbytes % 8
        return array


def _named(rows: list[Any], inline: _Extras, away: _Extras) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for row in rows:
        name, dtype, shape, is_away = _checked(row, _ARRAY_KINDS)
        if name in arrays:
            raise ValueError(f"two arrays are named {name!r}")
        arrays[name] = (away if is_away else inline).take(_DTYPES[dtype], shape)
    return arrays


def _split(body: memoryview, lengths: Sequence[int]) -> tuple[list[list[NDArray[Any]]], int]:
    """Tokens, log-probs and loss masks of samples of these lengths, and where the extra arrays begin."""
    if any(length < 0 for length in lengths):
        raise ValueError(f"no lengths: {lengths}")
    num_tokens = sum(lengths)
    num_bytes = -(-num_tokens // 8)
    masks = num_tokens * (_TOKENS.itemsize + _LOGPROBS.itemsize)
    end = masks + num_bytes + -num_bytes % 8
    if end > len(body):
        raise ValueError(f"{len(body)} bytes of arrays for {num_tokens} tokens")
    tokens = _view(body, _TOKENS, num_tokens, 0)
    logprobs = _view(body, _LOGPROBS, num_tokens, tokens.nbytes)
    bits = _view(body, np.dtype("|u1"), num_bytes, masks)
    loss_mask = np.unpackbits(bits, count=num_tokens, bitorder="little").view(np.bool_)
    loss_mask.flags.writeable = False
    ends = list(itertools.accumulate(lengths))
    return [
        [column[end - length : end] for length, end in zip(lengths, ends, strict=True)]
        for column in (tokens, logprobs, loss_mask)
    ], end


def _view(body: memoryview, dtype: np.dtype[Any], count: int, offset: int) -> NDArray[Any]:
    """A read-only view of the bytes; numpy makes none of no bytes."""
    return np.frombuffer(body or bytes(1), dtype, count=count, offset=offset if body else 0)


def _sample(
    row: tuple[Any, ...],
    tokens: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    loss_mask: NDArray[np.bool_],
    arrays: Mapping[str, NDArray[Any]],
) -> Sample:
    index, trajectory, num_tokens, spans, temperature, finish, text, reward, parts, _ = row
    if not (set(map(type, parts)) <= {str} and set(map(type, parts.values())) <= set(_NUMBER)):
        raise TypeError(f"reward parts must be numbers by name, got {parts}")
    return Sample(
        index=index,
        trajectory=trajectory,
        tokens=tokens,
        loss_mask=loss_mask,
        logprobs=logprobs,
        versions=_spans(spans, num_tokens),
        temperature=temperature,
        finish=_FINISHES[finish],
        text=text,
        reward=reward,
        reward_parts=parts,
        arrays=arrays,
    )


def _flat(spans: Sequence[Span]) -> list[int]:
    return [number for span in spans for number in (span.version, span.start, span.end)]


def _spans(numbers: list[Any], num_tokens: int) -> tuple[Span, ...]:
    if len(numbers) % 3 or not set(map(type, numbers)) <= {int}:
        raise ValueError(f"no spans: {numbers!r:.80}")
    spans = tuple(map(Span, map(Version, numbers[::3]), numbers[1::3], numbers[2::3]))
    for span in spans:
        if not 0 <= span.start <= span.end <= num_tokens:
            raise ValueError(f"{span} in {num_tokens} tokens")
    return spans


def _checked(values: Any, kinds: Sequence[tuple[type, ...]]) -> list[Any]:
    """The list that `values` is, if it has one value of each kind."""
    if type(values) is not list or len(values) != len(kinds):
        raise TypeError(f"expected a list of {len(kinds)}, got {type(values).__name__}")
    for place, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if type(value) not in kind:
            raise TypeError(f"place {place}: expected {kind[0].__name__}, got {type(value).__name__}")
    return values


def _expect(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"expected {expected} bytes of arrays, got {found}")
