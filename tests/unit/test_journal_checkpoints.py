"""Checkpoints are whole, or not there."""

import json
import math

import pytest

from slime_rl.errors import RunFolderError, TrainerError
from slime_rl.journal.checkpoints import Checkpoints
from slime_rl.journal.history import rewind
from slime_rl.journal.metrics import MetricsLog
from slime_rl.types import Version


@pytest.fixture
def checkpoints(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return Checkpoints(tmp_path / "checkpoints", export=tmp_path / "export", keep=2)


def write(checkpoints, version, *, snapshot: bytes | None = b"snapshot"):
    with checkpoints.write(Version(version), snapshot) as checkpoint:
        if checkpoint is not None:
            (checkpoint.path / "model.safetensors").write_bytes(bytes(version))
            (checkpoint.trainer / "common.pt").write_bytes(b"state")


def names(checkpoints):
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_only_the_newest_are_kept_and_the_export_is_the_newest(checkpoints):
    for version in (2, 10, 100, 1_000_000):
        write(checkpoints, version)
        assert (checkpoints.export / "model.safetensors").stat().st_size == version
    assert names(checkpoints) == ["version-000100", "version-1000000"]
    newest = checkpoints.newest()
    assert newest.version == 1_000_000
    assert newest.buffer.read_bytes() == b"snapshot"
    assert (newest.trainer / "common.pt").read_bytes() == b"state"


def test_a_run_without_a_buffer_has_no_snapshot(checkpoints):
    write(checkpoints, 1, snapshot=None)
    assert not checkpoints.newest().buffer.exists()


def test_a_version_that_is_there_stays_as_it_is(checkpoints):
    write(checkpoints, 3, snapshot=b"first")
    write(checkpoints, 3, snapshot=b"second")
    assert checkpoints.newest().buffer.read_bytes() == b"first"


def test_a_failure_half_way_leaves_nothing(checkpoints):
    write(checkpoints, 1)

    def die_half_way():
        with checkpoints.write(Version(2), b"") as checkpoint:
            (checkpoint.path / "model.safetensors").write_bytes(b"half")
            raise RuntimeError("a rank died")

    with pytest.raises(RuntimeError, match="a rank died"):
        die_half_way()
    assert names(checkpoints) == ["version-000001"]
    assert checkpoints.newest().version == 1


def test_what_a_killed_writer_left_is_no_checkpoint_and_is_cleared(checkpoints):
    left = checkpoints.folder / ".version-000007.12ab34cd"
    (left / "state").mkdir(parents=True)
    assert checkpoints.newest() is None
    checkpoints.clear()
    assert names(checkpoints) == []


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: (path / "model.safetensors").write_bytes(b"x"), "model.safetensors has 1 bytes, expected 9"),
        (lambda path: (path / "state/trainer/common.pt").unlink(), "No such file or directory"),
        (lambda path: (path / "state/manifest.json").unlink(), "No such file or directory"),
        (lambda path: (path / "state/manifest.json").write_text('{"format": 1, "siz'), "Unterminated string"),
        (lambda path: (path / "state/manifest.json").write_text('{"format": 9}'), "its format is 9, expected 1"),
        (lambda path: (path / "state/manifest.json").write_text("[]"), "list indices"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_no_older_one_taken_in_silence(checkpoints, damage, told):
    for version in (5, 9):
        write(checkpoints, version)
    damage(checkpoints.folder / "version-000009")
    with pytest.raises(
        RunFolderError, match=r"version-000009 is damaged: .*; delete it to go on from version 5"
    ) as fault:
        checkpoints.newest()
    assert told in str(fault.value)


def test_a_disk_that_takes_nothing_is_named(checkpoints):
    checkpoints.folder.rmdir()
    checkpoints.folder.write_text("a file where the folder was")

    def attempt():
        with checkpoints.write(Version(1), b""):
            pass

    with pytest.raises(TrainerError, match=r"version-000001 cannot be written: .*Not a directory"):
        attempt()


def test_metrics_of_steps_that_are_taken_again_are_left_out(tmp_path):
    rows = [{"step": step, "reward": step / 10} for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 5, "rew')
    events = [{"event": "evaluation", "version": version, "score": version / 10} for version in (0, 2, 4)]
    events.insert(1, {"event": "resumed", "version": 0})
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    history = rewind(tmp_path, Version(2))
    assert history.rows == rows[:2]
    assert history.scores == [(0, 0.0), (2, 0.2)]
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_a_line_that_was_cut_joins_no_later_one_and_what_was_null_is_no_number(tmp_path):
    for name, row in {"metrics": {"step": 1, "reward": None}, "events": {"event": "resumed", "version": 0}}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + '\n{"cut": ')
    [row] = rewind(tmp_path, Version(1)).rows
    assert math.isnan(row["reward"])
    log = MetricsLog(tmp_path)
    log.step(2, {"reward": 0.5})
    log.event("evaluation", version=2, score=0.25)
    log.close()
    history = rewind(tmp_path, Version(2))
    assert [row["step"] for row in history.rows] == [1, 2]
    assert history.scores == [(2, 0.25)]


def test_a_run_that_recorded_nothing_has_no_history(tmp_path):
    history = rewind(tmp_path, Version(0))
    assert (history.rows, history.scores) == ([], [])
