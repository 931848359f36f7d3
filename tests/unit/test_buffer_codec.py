import contextlib
import struct
import zlib
from dataclasses import replace
from pydoc_data.topics import topics

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from slime_rl.buffer.blobs import open_blobs
from slime_rl.buffer.codec import decode, decode_segment, encode, encode_segment
from slime_rl.buffer.envelope import ALWAYS_FITS, MAX_EXPANSION, expand, seal, shrink
from slime_rl.errors import CodecError
from slime_rl.types import Finish, Group, Sample, Segment, Span, Version

LONG_TEXT = st.text(st.characters(), max_size=20)  # with surrogates: what a broken tokenizer may decode to
COMPRESSIONS = st.sampled_from(["none", "zstd"])
PROSE = "\n".join(topics.values())
KINDS = st.sampled_from(["?", "i1", "u1", "<i2", ">u2", "<f2", "<i4", ">i4", "<f4", "<i8", "<u8", ">f8"])
EXTRAS = st.dictionaries(
    LONG_TEXT,
    KINDS.flatmap(lambda kind: arrays_of.arrays(kind, arrays_of.array_shapes(min_dims=0, min_side=0))),
    max_size=3,
)


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
        arrays=draw(EXTRAS),
    )


@st.composite
def groups(draw):
    return Group(
        id=draw(st.integers(0, 2**62)),
        prompt_index=draw(st.integers(0, 2**40)),
        attempt=draw(st.integers(1, 9)),
        samples=tuple(draw(st.lists(samples(), max_size=4))),
    )


def values(array):
    return array.dtype.newbyteorder("<").str, array.shape, array.astype(array.dtype.newbyteorder("<")).tobytes()


def facts(sample):
    """All of a sample that `==` can compare."""
    fields = {name: getattr(sample, name) for name in Sample.__dataclass_fields__}
    extras = {name: values(array) for name, array in fields.pop("arrays").items()}
    return extras, [values(field) if isinstance(field, np.ndarray) else field for field in fields.values()]


def make_sample(num_tokens=5, **changes):
    tokens = np.arange(num_tokens, dtype=np.int32)
    sample = Sample(
        index=0,
        trajectory=0,
        tokens=tokens,
        loss_mask=tokens > 1,
        logprobs=-tokens.astype(np.float32),
        versions=(Span(Version(0), 0, num_tokens),),
        temperature=1.0,
        finish=Finish.STOP,
        reward=1.0,
    )
    return replace(sample, **changes)


def make_group(*samples):
    return Group(id=7, prompt_index=3, attempt=1, samples=samples)


@pytest.fixture(scope="module", params=["none", "zstd"])
def payload(request):
    experts = np.arange(40, dtype=np.uint8).reshape(5, 4, 2)
    sample = make_sample(arrays={"routed_experts": experts}, text="an answer " * 40, reward_parts={"form": 0.5})
    return encode(make_group(sample, sample), compression=request.param)


@settings(max_examples=60, deadline=None)
@given(groups(), COMPRESSIONS)
def test_a_group_comes_back_as_it_went_in(group, compression):
    again = decode(encode(group, compression=compression), key="k")
    assert (again.id, again.prompt_index, again.attempt) == (group.id, group.prompt_index, group.attempt)
    assert [facts(s) for s in again.samples] == [facts(s) for s in group.samples]


@settings(max_examples=20, deadline=None)
@given(groups(), COMPRESSIONS)
def test_arrays_are_read_only_and_aligned(group, compression):
    for sample in decode(encode(group, compression=compression), key="k").samples:
        for array in (sample.tokens, sample.loss_mask, sample.logprobs, *sample.arrays.values()):
            assert not array.flags.writeable
            assert array.flags.aligned


def test_every_flipped_byte_is_an_error_that_names_the_key(payload):
    for position in range(len(payload)):
        damaged = bytearray(payload)
        damaged[position] ^= 0x10
        with pytest.raises(CodecError, match=r"^run:payload:7: "):
            decode(bytes(damaged), key="run:payload:7")


def test_every_truncation_is_an_error_that_names_the_key(payload):
    for length in range(len(payload)):
        with pytest.raises(CodecError, match=r"^run:payload:7: "):
            decode(payload[:length], key="run:payload:7")


@pytest.mark.parametrize("number", [1, 9])
def test_another_format_is_refused_with_both_numbers(payload, number):
    with pytest.raises(CodecError, match=f"^k: payload format {number}, expected 2: written by another version"):
        decode(payload[:4] + struct.pack("<H", number) + payload[6:], key="k")


def test_a_pickle_is_not_a_group():
    with pytest.raises(CodecError, match="not ours"):
        decode(b"\x80\x04\x95" + b"x" * 40, key="k")


def sealed(header, arrays=b"", flags=0):
    """A payload with a right checksum, whatever is in it."""
    prefix = struct.pack("<4sHHI", b"slRL", 2, flags, len(header))
    rest = header + bytes(-(16 + len(header)) % 8) + arrays
    return prefix + struct.pack("<I", zlib.crc32(prefix + rest)) + rest


@pytest.mark.parametrize(
    "header", [b"\xc1", b"\x01", b"\x80", b"\x81\xa7samples\x90", b"\x90", b"\x91" * 2000 + b"\x90"]
)
def test_a_foreign_header_with_a_right_checksum_is_an_error(header):
    with pytest.raises(CodecError, match=r"^k: the header"):
        decode(sealed(header), key="k")


ROW = (0, 0, 2, [3, 0, 2], 1.0, "stop", "text", None, {}, [])
ARRAYS = np.array([1, 2], "<i4").tobytes() + bytes(8) + b"\x03" + bytes(7)


def with_row(row, arrays=ARRAYS, blob=None):
    return sealed(msgpack.packb([7, 3, 1, [[value] for value in row], blob]), arrays)


def test_the_row_that_the_lies_below_begin_with_is_a_sample():
    [sample] = decode(with_row(ROW), key="k").samples
    assert sample.tokens.tolist() == [1, 2]
    assert sample.loss_mask.all()


@pytest.mark.parametrize(
    ("place", "lie"),
    [
        (0, "0"),
        (1, None),
        (2, 3),
        (2, -2),
        (2, 2**62),
        (2, True),
        (3, [3, 0, 1]),
        (3, [3, 0, 9]),
        (3, [3, -1, 2]),
        (3, [3, 2, 0]),
        (3, [3, 0]),
        (3, [3, 0, 2.0]),
        (4, "1"),
        (5, "done"),
        (6, b"text"),
        (7, "1"),
        (8, {"part": "1"}),
        (8, {b"part": 1.0}),
        (8, []),
        (9, [["a", "|O", [2], False]]),
        (9, [["a", "<i4", [2], False]]),
        (9, [["a", "<i4", [-2, -1], False]]),
        (9, [["a", "<i4", [True], False]]),
        (9, [["a", "<i4", [0, 2**63], False]]),
        (9, [["a", "<i4", [1] * 200, False]]),
        (9, [["a", "|u1", [0], False], ["a", "|u1", [0], False]]),
        (9, [["a", "|u1", [0]]]),
        (9, [["a", "|u1", [8], True]]),
        (9, ["a"]),
    ],
)
def test_a_lie_in_the_header_is_an_error(place, lie):
    with pytest.raises(CodecError, match=r"^k: the header does not describe a group"):
        decode(with_row((*ROW[:place], lie, *ROW[place + 1 :])), key="k")


@pytest.mark.parametrize("shape", [[-1], [-2, -1], [True, 2], [2.0], ["2"], [[2]], [3], [2, 2], None])
def test_a_lie_about_a_shape_is_an_error_even_where_there_are_bytes(shape):
    extra = ["a", "<i4", shape, False]
    good = with_row((*ROW[:9], [["a", "<i4", [2], False]]), ARRAYS + bytes(8))
    assert decode(good, key="k").samples[0].arrays["a"].shape == (2,)
    with pytest.raises(CodecError, match=r"^k: the header does not describe a group"):
        decode(with_row((*ROW[:9], [extra]), ARRAYS + bytes(8)), key="k")


def test_bytes_that_nothing_accounts_for_are_an_error():
    for arrays in (ARRAYS + bytes(8), ARRAYS[:-1], b""):
        with pytest.raises(CodecError, match=r"^k: the header does not describe a group"):
            decode(with_row(ROW, arrays), key="k")


def test_a_reference_to_a_blob_is_an_error_where_there_is_none():
    with pytest.raises(CodecError, match=r"^k: its blob 7-1-0000002a is needed, and no blob store is open"):
        decode(with_row(ROW, blob=[8, 42, False]), key="k")


@pytest.mark.parametrize("flags", [1, 2])
def test_a_bomb_is_refused_before_it_is_opened(flags):
    bomb = zstandard.compress(bytes(ALWAYS_FITS + 1))
    assert len(bomb) * MAX_EXPANSION < ALWAYS_FITS
    payload = sealed(bomb) if flags == 1 else sealed(b"\x90", bomb, flags=flags)
    payload = payload if flags == 2 else sealed(bomb, flags=flags)
    with pytest.raises(CodecError, match=rf"^k: .* claims to hold {ALWAYS_FITS + 1}"):
        decode(payload, key="k")


@pytest.mark.parametrize(
    "frame", [b"", b"no frame at all", zstandard.compress(b"x")[:-1], zstandard.compress(b"x") + b"y"]
)
def test_what_is_no_frame_is_an_error(frame):
    with pytest.raises(CodecError, match=r"^k: the header is not msgpack, or a part no zstd"):
        decode(sealed(b"\x90", frame, flags=2), key="k")


def test_a_frame_that_does_not_tell_its_size_is_an_error():
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    with pytest.raises(CodecError, match="claims to hold -1"):
        decode(sealed(b"\x90", frame, flags=2), key="k")


def test_what_shrinks_comes_back_even_where_it_shrinks_by_much():
    for data in (bytes(2**20), b"ab" * 1000):
        frame = shrink([data])
        assert frame is not None
        assert len(frame) < len(data)
        assert expand(frame) == data
    assert shrink([bytes(ALWAYS_FITS), bytes(1)]) is None
    assert shrink([b"x"]) is None


@settings(max_examples=400, deadline=None)
@given(data=st.data(), group=groups(), compression=COMPRESSIONS)
def test_a_damaged_payload_is_always_an_error_that_names_its_key(data, group, compression):
    payload = bytearray(encode(group, compression=compression))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(payload) - 1))
        payload[position] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(payload)))
    payload = bytes(payload[:cut]) + data.draw(st.binary(max_size=4))
    if payload != encode(group, compression=compression):
        with pytest.raises(CodecError, match=r"^run:payload:7: "):
            decode(payload, key="run:payload:7")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary() | LONG_TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(LONG_TEXT, inner, max_size=3),
    max_leaves=30,
)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), group=groups(), lie=JSON, arrays=st.binary(max_size=100))
def test_a_header_with_a_lie_and_a_right_checksum_is_an_error_or_a_valid_group(data, group, lie, arrays):
    columns = [list(column) for column in zip(*[list(ROW)] * 2, strict=True)]
    header = [7, 3, 1, columns, None]
    places = [(header, i) for i in range(5)] + [(columns, i) for i in range(10)]
    places += [(column, i) for column in columns for i in range(2)]
    target, place = data.draw(st.sampled_from(places))
    target[place] = lie
    payload = seal(b"slRL", header, [arrays])
    with contextlib.suppress(CodecError):
        assert decode(encode(decode(payload, key="k")), key="k") is not None


def test_an_array_of_objects_or_text_is_refused_when_it_is_encoded():
    for array in (np.array([object()]), np.array(["text"]), np.array([1j]), np.zeros(2, "M8[s]")):
        with pytest.raises(CodecError, match="group 7: array 'a': expected booleans, integers or floats"):
            encode(make_group(make_sample(arrays={"a": array})))


@pytest.mark.parametrize(("num_tokens", "num_samples"), [(128, 8), (256, 4), (2000, 16), (30_000, 3)])
def test_a_payload_is_close_to_the_raw_size_of_its_arrays_with_all_its_text(num_tokens, num_samples):
    """All of it an answer, of four characters a token: the most text there is beside the arrays."""
    tokens = np.zeros(num_tokens, np.int32)
    drawn = [
        make_sample(
            num_tokens,
            tokens=tokens,
            loss_mask=tokens == 0,
            logprobs=tokens.astype(np.float32),
            text=PROSE[4 * num_tokens * i : 4 * num_tokens * (i + 1)],
            reward_parts={"correct": 1.0, "form": 0.5},
        )
        for i in range(num_samples)
    ]
    assert all(len(sample.text) == 4 * num_tokens for sample in drawn)
    assert len(encode(make_group(*drawn))) < 1.15 * num_samples * num_tokens * 9


def test_zstd_shrinks_what_repeats_itself():
    group = make_group(make_sample(5000))
    assert len(encode(group, compression="zstd")) < 0.7 * len(encode(group))


@pytest.fixture
def blobs(tmp_path):
    return open_blobs(str(tmp_path), "run")


@settings(max_examples=60, deadline=None)
@given(group=groups(), compression=COMPRESSIONS, inline_limit=st.integers(0, 64))
def test_a_group_comes_back_from_payload_and_blob(tmp_path_factory, group, compression, inline_limit):
    blobs = open_blobs(str(tmp_path_factory.mktemp("blobs")), "run")
    payload = encode(group, compression=compression, blobs=blobs, inline_limit=inline_limit)
    away = [array for sample in group.samples for array in sample.arrays.values() if array.nbytes > inline_limit]
    assert len(blobs.names()) == bool(away)
    assert [facts(s) for s in decode(payload, key="k", blobs=blobs).samples] == [facts(s) for s in group.samples]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_array_above_the_limit_is_not_in_the_payload(blobs, compression):
    experts = np.random.default_rng(0).integers(0, 64, (512, 16, 8), np.uint8)
    small = np.arange(16)
    group = make_group(make_sample(arrays={"experts": experts, "small": small}))
    payload = encode(group, blobs=blobs, compression=compression, inline_limit=experts.nbytes - 1)
    assert len(payload) < 1000
    [sample] = decode(payload, key="k", blobs=blobs).samples
    assert np.array_equal(sample.arrays["experts"], experts)
    assert np.array_equal(sample.arrays["small"], small)
    assert encode(group, blobs=blobs, inline_limit=experts.nbytes) == encode(group)


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
