import json
import math
from pathlib import Path

import pytest

from slime_rl.config_file import validate
from slime_rl.errors import EngineError, RunFolderError, SlimeError, cause_first
from slime_rl.journal import folder as run_folder
from slime_rl.journal.metrics import MetricsLog, size_row
from slime_rl.journal.phases import Phases
from slime_rl.types import AssignedGroup, Assignment, Version


@pytest.fixture
def config(tmp_path):
    return validate(
        {
            "run": {"folder": str(tmp_path / "run")},
            "model": {"path": "m"},
            "data": {"path": "d"},
            "loop": {"steps": 1},
            "buffer": {"url": "redis://:secret@host"},
        }
    )


def create(config):
    """A new run in a folder that no other process is in."""
    with run_folder.held(Path(config.run.folder)):
        return run_folder.create(config)


def test_a_folder_is_one_process_s_at_a_time(tmp_path):
    again = run_folder.held(tmp_path / "run")
    with run_folder.held(tmp_path / "run"), pytest.raises(RunFolderError, match="in use by a process that still runs"):
        again.__enter__()
    with pytest.raises(BlockingIOError, match="its own"), run_folder.held(tmp_path / "run"):
        raise BlockingIOError("the run's, its own")


def test_a_run_that_began_keeps_its_folder_and_one_that_did_not_gives_it_up(config):
    first = create(config)
    (first.logs / "engine-0.log").write_text("it did not start")
    (first.path / "evaluations").mkdir()
    second = create(config)
    assert second.id != first.id
    assert list(second.logs.iterdir()) == []
    assert (second.path / "evaluations").is_dir()
    run_folder.mark_begun(second)
    with pytest.raises(RunFolderError, match=f"holds run {second.id}: resume it"):
        create(config)


def test_a_folder_with_evaluations_alone_may_be_trained_in(config, tmp_path):
    (tmp_path / "run" / "evaluations").mkdir(parents=True)
    assert create(config).path == tmp_path / "run"


def test_a_folder_is_private_and_holds_no_password(config):
    folder = create(config)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert "secret" not in "".join(p.read_text() for p in folder.path.iterdir() if p.is_file())


def test_metrics_are_valid_json_where_nothing_was_counted(tmp_path):
    metrics = MetricsLog(tmp_path)
    metrics.step(1, {"loss": 0.5, "logprob_abs_diff": float("nan")})
    metrics.close()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    row = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert (row["step"], row["loss"], row["logprob_abs_diff"]) == (1, 0.5, None)


def test_a_step_tells_of_groups_short_of_samples_and_of_the_lengths_that_a_surplus_gave_back():
    whole, short, late = (
        AssignedGroup(id=0, num_samples=4, num_tokens=40, oldest=Version(0)),
        AssignedGroup(id=1, num_samples=2, num_tokens=32, oldest=Version(0)),
        AssignedGroup(id=2, num_samples=4, num_tokens=120, oldest=Version(0)),
    )
    row = size_row(Assignment(step=0, groups=(whole, short), returned=(late,)), samples_per_prompt=4)
    assert row == {
        "smaller_groups": 1,
        "missing_samples": 2,
        "returned_groups": 1,
        "sample_tokens": 12.0,
        "returned_sample_tokens": 30.0,
    }
    assert math.isnan(size_row(Assignment(step=0, groups=(whole,)), samples_per_prompt=4)["returned_sample_tokens"])


def test_phases_count_what_fails_too():
    phases = Phases()
    with pytest.raises(SlimeError), phases.measure("wait"):
        raise SlimeError
    assert phases.take_step().keys() == {"wait"}
    assert phases.take_step() == {}


def test_the_cause_comes_out_of_nested_groups():
    cause = EngineError("engine 0 ended")
    with pytest.raises(EngineError, match="engine 0 ended"), cause_first():
        raise ExceptionGroup("run", [ExceptionGroup("worker", [ValueError("a symptom"), cause])])
    with pytest.raises(ExceptionGroup), cause_first():
        raise ExceptionGroup("run", [ValueError("a fault of ours")])
