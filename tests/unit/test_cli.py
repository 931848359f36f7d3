"""What a user's mistake looks like: one line on standard error, exit status 2, nothing started, nothing written."""

import json
from pathlib import Path

import pytest
import yaml

from slime_rl.cli import main
from slime_rl.config_file import validate
from slime_rl.journal import folder as run_folder
from slime_rl.journal.checkpoints import Checkpoint
from slime_rl.launch import resumption
from slime_rl.types import Version


@pytest.fixture
def config(tmp_path):
    """A configuration file that passes every check; its model folder is complete in form, not in weights."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}))
    (model / "model.safetensors").write_bytes(b"")
    (model / "tokenizer.json").write_text("{}")
    data = tmp_path / "train.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    file = tmp_path / "config.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "run": {"folder": str(tmp_path / "run")},
                "model": {"path": str(model)},
                "data": {"path": str(data), "template": "none"},
                "loop": {"steps": 2},
            }
        )
    )
    return file


def fault_of(capsys, *argv: str) -> str:
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("slime-rl: ").rstrip("\n")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loop.stepz=3"], "loop.stepz is not a known field; did you mean 'steps'?, got 3"),
        (["loop.steps=many"], "loop.steps must be a valid integer, got 'many'"),
        (["loop.samples_per_prompt=1"], "loop.samples_per_prompt must be at least 2, got 1"),
        (["loop.max_lag=1", "loop.placement=colocated"], "loop.placement must be split when loop.max_lag is 1"),
        (["data.path=none.jsonl"], "data.path must name a readable JSONL file, got 'none.jsonl'"),
        (["data.columns.prompt=question"], "data.columns.prompt must name a column of /"),
        (["model.path=none"], "model.path must be a model folder, got 'none'"),
        (["rollout.sglang.context_lenght=8"], "rollout.sglang.context_lenght is not an argument of the installed"),
        (["trainer.megatron.num_layer=8"], "trainer.megatron.num_layer is not"),
        (["trainer.megatron.num_layers=8"], "trainer.megatron.num_layers"),
        (["reward.function=exact"], "reward.function must be path/to/file.py:function or one of"),
        (["objective.loss=sft"], "objective.loss must not be sft for slime-rl train, got 'sft'"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_mistake_is_one_line_and_starts_nothing(config, capsys, overrides, message, options):
    assert message in fault_of(capsys, "train", str(config), *options, *overrides)
    assert not (config.parent / "run").exists()


def test_a_model_without_a_tokenizer_is_refused(config, capsys):
    (config.parent / "model" / "tokenizer.json").unlink()
    assert "model.path must hold a tokenizer" in fault_of(capsys, "train", str(config))


def test_a_reward_that_does_not_load_is_told_before_anything_starts(config, capsys):
    file = config.parent / "my_reward.py"
    file.write_text("import no_such_module\n\ndef reward(prompt, sample):\n    return 1.0\n")
    told = fault_of(capsys, "train", str(config), f"reward.function={file}:reward")
    assert "reward.function" in told
    assert "No module named 'no_such_module'" in told


def test_an_unknown_architecture_is_refused_with_the_known_ones(config, capsys):
    (config.parent / "model" / "config.json").write_text('{"model_type": "gpt2"}')
    told = fault_of(capsys, "train", str(config))
    assert "model.path must name a model whose model_type is one of llama, qwen2, qwen3, got 'gpt2' in '/" in told


def test_a_folder_that_a_run_has_used_is_refused_with_what_to_do(config, capsys):
    used = config.parent / "run"
    used.mkdir()
    (used / "run.json").write_text('{"id": "abc", "began": true}')
    told = fault_of(capsys, "train", str(config))
    assert f"holds run abc: resume it (slime-rl resume {used}), or choose another folder" in told


def test_a_folder_with_other_files_is_refused(config, capsys):
    used = config.parent / "run"
    used.mkdir()
    (used / "thesis.tex").write_text("do not lose me")
    assert "must be a new or empty folder" in fault_of(capsys, "train", str(config))


@pytest.fixture
def run(config):
    """A run that began and reached version 3 of 5, as far as its folder tells."""
    values = yaml.safe_load(config.read_text()) | {"loop": {"steps": 5}}
    loaded = validate(values)
    with run_folder.held(Path(loaded.run.folder)):
        folder = run_folder.create(loaded)
        run_folder.mark_begun(folder)
    with folder.checkpoints(2).write(Version(3), b"no snapshot"):
        pass
    return folder


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run.seed=4"], "run.seed must stay as the run began, 0, got 4"),
        (["loop.max_lag=1"], "loop.max_lag must stay as the run began, 0, got 1"),
        (["data.columns.answer=a"], "data.columns must stay as the run began, ColumnsConfig(prompt='prompt', answer="),
        (["loop.steps=3"], "loop.steps must be above 3, which run "),
        (["loop.stepz=3"], "loop.stepz is not a known field; did you mean 'steps'?, got 3"),
        (["trainer.megatron.num_layer=8"], "trainer.megatron.num_layer is not"),
    ],
)
def test_what_a_resumed_run_may_not_change_is_told_in_one_line(run, capsys, overrides, message):
    before = run.config.read_text()
    assert message in fault_of(capsys, "resume", str(run.path), *overrides)
    assert run.config.read_text() == before


def test_resume_wants_a_run_that_began_with_a_whole_checkpoint(run, capsys, tmp_path):
    assert "which has no run.json" in fault_of(capsys, "resume", str(tmp_path / "nothing"))
    (run.path / "checkpoints/version-000003/state/buffer").unlink()
    assert "version-000003 is damaged" in fault_of(capsys, "resume", str(run.path))
    (run.path / "run.json").write_text('{"id": "abc", "began": false}')
    assert "run abc in" in fault_of(capsys, "resume", str(run.path))


def test_resume_leaves_a_run_alone_that_is_under_way(run, capsys):
    with run_folder.held(run.path):
        assert "is in use by a process that still runs" in fault_of(capsys, "resume", str(run.path))


def test_a_run_folder_may_be_moved(run, tmp_path):
    found = resumption.find(str(run.path.rename(tmp_path / "moved")), ["trainer.lr=0.5", "checkpoint.keep=7"])
    assert found.folder.path == tmp_path / "moved"
    assert found.checkpoint == Checkpoint(tmp_path / "moved/checkpoints/version-000003", Version(3))
    assert (found.config.trainer.lr, found.config.checkpoint.keep) == (0.5, 7)
    assert found.changes == {"trainer.lr": 0.5}


def test_export_wants_a_run_with_a_checkpoint(tmp_path, capsys):
    assert "expected a run folder" in fault_of(capsys, "export", str(tmp_path), str(tmp_path / "copy"))


def test_eval_wants_an_evaluation_section(config, capsys):
    assert "evaluation is required for slime-rl eval" in fault_of(capsys, "eval", str(config))


def test_an_unknown_option_is_refused(config, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", str(config), "--dry"])
    assert ended.value.code == 2


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    listed = capsys.readouterr().out
    assert all(command in listed for command in ("train", "resume", "sft", "eval", "export", "demo", "doctor"))
