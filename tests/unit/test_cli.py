"""What a user's mistake looks like: one line on standard error, exit status 2, nothing started, nothing written."""

import json

import pytest
import yaml

from slime_rl.cli import main


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
        (["objective.loss=sft"], "objective.loss must be grpo for slime-rl train, got 'sft'"),
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
