import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_rl.buffer.codec import decode, decode_segment, encode, encode_segment
from slime_rl.errors import CodecError
from slime_rl.types import Finish, Group, Sample, Segment, Span, Version

LONG_TEXT = st.text(st.characters(), max_size=20)  # with surrogates: what a broken tokenizer may decode to


@st.composite
def samples(draw, index=0):
    num = draw(st.integers(0, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    cut = draw(st.integers(0, num))
    return Sample(
        index=index,
        trajectory=draw(st.integers(0, 5)),
        tokens=rng.integers(-(2**31), 2**31, num, dtype=np.int32),
        loss_mask=rng.random(num) < 0.5,
        logprobs=-rng.random(num, dtype=np.float32) * 1e30,
        versions=(Span(Version(3), 0, cut), Span(Version(4), cut, num)),
        temperature=draw(st.floats(0.01, 3)),
        finish=draw(st.sampled_from(Finish)),
        text=draw(LONG_TEXT),
        reward=draw(st.none() | st.floats(allow_nan=False)),
        reward_parts=draw(st.dictionaries(LONG_TEXT, st.floats(allow_nan=False), max_size=3)),
    )


@st.composite
def groups(draw):
    return Group(
        id=draw(st.integers(0, 2**62)),
        prompt_index=draw(st.integers(0, 2**40)),
        attempt=draw(st.integers(1, 9)),
        samples=tuple(draw(st.lists(samples(), max_size=4))),
    )


def facts(sample):
    """All of a sample that `==` can compare."""
    arrays = [(a.dtype.str, a.tobytes()) for a in (sample.tokens, sample.loss_mask, sample.logprobs)]
    return arrays, *(
        getattr(sample, f) for f in Sample.__dataclass_fields__ if not hasattr(getattr(sample, f), "dtype")
    )


@pytest.fixture(scope="module")
def payload():
    tokens = np.arange(5, dtype=np.int32)
    sample = Sample(
        index=0,
        trajectory=0,
        tokens=tokens,
        loss_mask=tokens > 1,
        logprobs=-tokens.astype(np.float32),
        versions=(Span(Version(0), 0, 5),),
        temperature=1.0,
        finish=Finish.STOP,
        reward=1.0,
    )
    return encode(Group(id=7, prompt_index=3, attempt=1, samples=(sample, sample)))


@settings(max_examples=60, deadline=None)
@given(groups())
def test_a_group_comes_back_as_it_went_in(group):
    again = decode(encode(group), key="k")
    assert (again.id, again.prompt_index, again.attempt) == (group.id, group.prompt_index, group.attempt)
    assert [facts(s) for s in again.samples] == [facts(s) for s in group.samples]


@settings(max_examples=20, deadline=None)
@given(groups())
def test_arrays_are_read_only_and_aligned(group):
    for sample in decode(encode(group), key="k").samples:
        for array in (sample.tokens, sample.loss_mask, sample.logprobs):
            assert not array.flags.writeable
            assert array.flags.aligned


def test_every_flipped_byte_is_an_error_that_names_the_key(payload):
    for position in range(len(payload)):
        damaged = bytearray(payload)
        damaged[position] ^= 0x10
        if position in (6, 7):  # padding of the prefix
            continue
        with pytest.raises(CodecError, match=r"^run:payload:7: "):
            decode(bytes(damaged), key="run:payload:7")


def test_every_truncation_is_an_error_that_names_the_key(payload):
    for length in range(len(payload)):
        with pytest.raises(CodecError, match=r"^run:payload:7: "):
            decode(payload[:length], key="run:payload:7")


def test_a_later_format_is_refused_with_both_numbers(payload):
    with pytest.raises(CodecError, match="payload format 9, expected 1"):
        decode(payload[:4] + struct.pack("<H", 9) + payload[6:], key="k")


def test_a_pickle_is_not_a_group():
    with pytest.raises(CodecError, match="not ours"):
        decode(b"\x80\x04\x95" + b"x" * 40, key="k")


@pytest.mark.parametrize("header", [b"\xc1", b"\x01", b"\x80", b"\x81\xa7samples\x90", b"\x90"])
def test_a_foreign_header_with_a_right_checksum_is_an_error(header):
    body = header + bytes(-(16 + len(header)) % 8)
    with pytest.raises(CodecError, match=r"^k: the header"):
        decode(struct.pack("<4sHxxII", b"slRL", 1, len(header), zlib.crc32(body)) + body, key="k")


def test_a_payload_is_close_to_the_raw_size_of_its_arrays():
    tokens = np.zeros(4096, np.int32)
    sample = Sample(
        index=0,
        trajectory=0,
        tokens=tokens,
        loss_mask=tokens == 0,
        logprobs=tokens.astype(np.float32),
        versions=(Span(Version(0), 0, 4096),),
        temperature=1.0,
        finish=Finish.LENGTH,
    )
    group = Group(id=0, prompt_index=0, attempt=1, samples=(sample,) * 8)
    assert len(encode(group)) < 1.15 * 8 * 4096 * 9


@given(samples(), st.integers(0, 2**40), st.none() | st.sampled_from(Finish))
def test_a_segment_comes_back_as_it_was(sample, start, finish):
    segment = Segment(
        index=sample.trajectory,
        start=start,
        tokens=sample.tokens,
        loss_mask=sample.loss_mask,
        logprobs=sample.logprobs,
        versions=sample.versions,
        temperature=sample.temperature,
        finish=finish,
    )
    found = decode_segment(encode_segment(segment), key="key")
    for name in Segment.__dataclass_fields__:
        ours, theirs = getattr(segment, name), getattr(found, name)
        assert ours.tobytes() == theirs.tobytes() if isinstance(ours, np.ndarray) else ours == theirs


def test_a_group_is_no_segment(payload):
    with pytest.raises(CodecError, match=r"^key: not ours"):
        decode_segment(payload, key="key")
