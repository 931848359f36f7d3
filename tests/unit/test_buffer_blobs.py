import asyncio
import uuid

import numpy as np
import pytest

from slime_rl.buffer.blobs import BlobRef, FolderBlobs, delete, load, open_blobs, store, sweep
from slime_rl.buffer.codec import decode, encode
from slime_rl.errors import CodecError, ConfigError, StoreError
from slime_rl.types import Finish, Group, Sample

PARTS = [b"first, ", memoryview(b"second")]


@pytest.fixture(params=["folder", "file://", "memory://"])
def place(request, tmp_path):
    return {"folder": str(tmp_path), "file://": f"file://{tmp_path}"}.get(request.param, f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def blobs(place):
    return open_blobs(place, "run")


def overwrite(blobs, ref, content):
    """Damage a blob behind the back of the store."""
    blobs.remove([ref.name])
    blobs.put(ref.name, [content])


def test_a_blob_comes_back(blobs):
    ref = store(blobs, 7, 2, PARTS)
    assert load(blobs, ref, key="k") == b"first, second"
    assert blobs.names() == [ref.name]


def test_a_blob_is_named_by_group_attempt_and_content(blobs):
    refs = [
        store(blobs, group, attempt, [content])
        for group, attempt, content in [(7, 1, b"a"), (7, 2, b"a"), (7, 2, b"b")]
    ]
    assert [ref.name for ref in refs] == ["7-1-e8b7be43", "7-2-e8b7be43", "7-2-71beeff9"]
    assert [load(blobs, ref, key="k") for ref in refs] == [b"a", b"a", b"b"]


def test_storing_again_does_no_harm(blobs):
    first = store(blobs, 7, 1, PARTS)
    assert store(blobs, 7, 1, PARTS) == first
    assert load(blobs, first, key="k") == b"first, second"
    assert len(blobs.names()) == 1


def test_a_missing_blob_is_an_error_that_names_blob_and_key(blobs):
    with pytest.raises(CodecError, match=r"^run:payload:7: its blob 7-1-0000002a is missing in .*slime_rl-run"):
        load(blobs, BlobRef(7, 1, 5, 42), key="run:payload:7")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"first, sec", "has 10 bytes, expected 13"),
        (b"", "has 0 bytes, expected 13"),
        (b"first, second" * 9, "has more than 14 bytes, expected 13"),
        (b"first, Second", "is damaged: its checksum is wrong"),
    ],
)
def test_a_blob_that_is_not_what_was_stored_is_an_error_that_names_blob_and_key(blobs, content, fault):
    ref = store(blobs, 7, 1, PARTS)
    overwrite(blobs, ref, content)
    with pytest.raises(CodecError, match=rf"^k: its blob {ref.name} in .* {fault}"):
        load(blobs, ref, key="k")


def test_delete_removes_one_attempt_and_nothing_else(blobs):
    kept = [store(blobs, group, attempt, PARTS).name for group, attempt in [(7, 2), (7, 11), (17, 1), (1, 7)]]
    store(blobs, 7, 1, PARTS)
    blobs.put("7-1-notes.txt", [b"not ours"])
    delete(blobs, 7, 1)
    delete(blobs, 99, 1)
    assert sorted(blobs.names()) == sorted([*kept, "7-1-notes.txt"])


def test_a_store_that_was_never_used_is_empty(blobs):
    assert blobs.names() == []
    delete(blobs, 7, 1)


def test_a_sweep_asks_about_what_it_found_and_deletes_what_is_over(blobs):
    refs = [store(blobs, group, 1, PARTS) for group in (3, 4, 5)]
    asked = []

    async def live(ids):
        asked.append(list(ids))
        store(blobs, 6, 1, PARTS)  # a group that begins meanwhile
        return [4]

    asyncio.run(sweep(blobs, live))
    assert asked == [[3, 4, 5]]
    assert sorted(blobs.names()) == [refs[1].name, BlobRef(6, 1, 0, refs[1].crc).name]


def test_runs_do_not_see_each_other(place):
    ours, theirs = open_blobs(place, "a"), open_blobs(place, "a/../b")
    store(ours, 7, 1, PARTS)
    assert theirs.names() == []
    store(theirs, 7, 1, PARTS)
    delete(theirs, 7, 1)
    assert len(ours.names()) == 1


@pytest.mark.parametrize("run_id", ["..", "../..", "/etc", "a/b", ""])
def test_no_run_id_leads_out_of_the_store(tmp_path, run_id):
    store(open_blobs(str(tmp_path / "blobs"), run_id), 7, 1, PARTS)
    assert [path.parent.parent for path in tmp_path.rglob("7-1-*")] == [tmp_path / "blobs"]


def test_what_a_killed_writer_left_is_no_blob_and_goes_with_its_group(tmp_path):
    blobs = open_blobs(str(tmp_path), "run")
    ref = store(blobs, 7, 1, PARTS)
    (tmp_path / "slime_rl-run" / f"{ref.name}.0123abcd.part").write_bytes(b"half")
    assert load(blobs, ref, key="k") == b"first, second"
    delete(blobs, 7, 1)
    assert blobs.names() == []


def test_a_folder_of_blobs_is_its_owners_alone(tmp_path):
    store(open_blobs(str(tmp_path / "blobs"), "run"), 7, 1, PARTS)
    assert (tmp_path / "blobs" / "slime_rl-run").stat().st_mode & 0o777 == 0o700


def test_a_writer_whose_group_was_deleted_meanwhile_is_left_to_the_buffer(tmp_path):
    blobs = FolderBlobs(tmp_path)

    def vanishing():
        yield from PARTS
        [path] = tmp_path.iterdir()
        path.unlink()

    blobs.put("7-1-00000000", vanishing())
    assert blobs.names() == []


def test_a_store_that_fails_is_named(tmp_path):
    (tmp_path / "file").touch()
    blobs = open_blobs(str(tmp_path / "file"), "run")
    with pytest.raises(StoreError, match=r"^cannot write blob 7-1-\w{8} in .*file/slime_rl-run: "):
        store(blobs, 7, 1, PARTS)


@pytest.mark.parametrize("place", ["nowhere://bucket", "nowhere://user:secret@host/bucket"])
def test_a_url_that_nothing_opens_is_a_mistake_told_without_its_password(place):
    with pytest.raises(ConfigError, match=r"^buffer\.blobs must be a folder or a URL that fsspec can open") as caught:
        open_blobs(place, "run")
    assert "secret" not in str(caught.value)


def test_a_damaged_blob_of_a_group_names_the_group_s_key(blobs):
    experts = np.arange(4096, dtype=np.int16).reshape(16, 16, 16)
    sample = Sample(
        index=0,
        trajectory=0,
        tokens=np.zeros(0, np.int32),
        loss_mask=np.zeros(0, np.bool_),
        logprobs=np.zeros(0, np.float32),
        versions=(),
        temperature=1.0,
        finish=Finish.STOP,
        arrays={"experts": experts},
    )
    payload = encode(Group(id=7, prompt_index=0, attempt=3, samples=(sample,)), blobs=blobs)
    [name] = blobs.names()
    assert name.startswith("7-3-")
    assert np.array_equal(decode(payload, key="k", blobs=blobs).samples[0].arrays["experts"], experts)
    blobs.remove([name])
    with pytest.raises(CodecError, match=rf"^k: its blob {name} is missing"):
        decode(payload, key="k", blobs=blobs)
