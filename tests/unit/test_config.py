import pytest
import yaml

from slime_rl.config import Config
from slime_rl.config_file import load_config, parse_yaml, validate
from slime_rl.errors import ConfigError

DETERMINISTIC = {"folder": "runs/x", "deterministic": True}


def values(**sections):
    base = {
        "run": {"folder": "runs/x"},
        "model": {"path": "model"},
        "data": {"path": "data.jsonl"},
        "loop": {"steps": 3},
    }
    return base | sections


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"loop": {"steps": 3, "samples_per_promp": 4}},
            "loop.samples_per_promp is not a known field; did you mean 'samples_per_prompt'?, got 4",
        ),
        ({"lop": {}}, "lop is not a known field; did you mean 'loop'?, got {}"),
        ({"loop": {"steps": "three"}}, "loop.steps must be a valid integer, got 'three'"),
        ({"loop": {"steps": "3"}}, "loop.steps must be a valid integer, got '3'"),
        ({"loop": {"steps": True}}, "loop.steps must be a valid integer, got True"),
        ({"loop": {"steps": 0}}, "loop.steps must be at least 1, got 0"),
        ({"loop": {}}, "loop.steps is required, got nothing"),
        ({"loop": {"steps": 3, "samples_per_prompt": 1}}, "loop.samples_per_prompt must be at least 2, got 1"),
        (
            {"loop": {"steps": 3, "max_lag": 1, "placement": "colocated"}},
            "loop.placement must be split when loop.max_lag is 1, got 'colocated'",
        ),
        (
            {"loop": {"steps": 3, "max_lag": 1}, "objective": {"correction": "none"}},
            "objective.correction must not be none when loop.max_lag is above 0, got 'none'",
        ),
        ({"sampling": {"temperature": 0}}, "sampling.temperature must be above 0, got 0"),
        ({"sampling": {"temperature": float("inf")}}, "sampling.temperature must be a finite number, got inf"),
        ({"trainer": {"betas": [0.9, 1.5]}}, "trainer.betas.1 must be below 1, got 1.5"),
        ({"trainer": {"betas": 0.9}}, "trainer.betas must be a list, got 0.9"),
        ({"trainer": 3}, "trainer must be a mapping, got 3"),
        ({"rollout": {"sglang": {5: 1}}}, "rollout.sglang.5.[key] must be a valid string, got 5"),
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p is not a known field, got 0.9"),
        (
            {"objective": {"loss": "dpo"}},
            "objective.loss must be 'grpo', 'gspo', 'cispo' or 'sft', got 'dpo'",
        ),
        (
            {"data": {"path": "d", "template": "none", "system_prompt": "Be brief."}},
            "data.system_prompt has no effect when data.template is none, got 'Be brief.'",
        ),
        (
            {"objective": {"correction": "none", "correction_cap": 3.0}},
            "objective.correction_cap has an effect only when objective.correction is tis, got 3.0",
        ),
        (
            {"objective": {"correction": "icepop", "correction_low": 3.0}},
            "objective.correction_low must be below objective.correction_high, 2, got 3.0",
        ),
        (
            {"objective": {"correction_high": 3.0}},
            "objective.correction_high has an effect only when objective.correction is icepop or sequence_mask, "
            "got 3.0",
        ),
        (
            {"objective": {"loss": "cispo", "dual_clip": 3.0}},
            "objective.dual_clip has an effect only when objective.loss is grpo or gspo, got 3.0",
        ),
        (
            {"objective": {"reducer": "constant"}},
            "objective.reducer_length is required when objective.reducer is constant, got nothing",
        ),
        (
            {"objective": {"reducer_length": 9}},
            "objective.reducer_length has an effect only when objective.reducer is constant, got 9",
        ),
        (
            {"objective": {"estimator": "reinforce_pp", "normalize_by_std": True}},
            "objective.normalize_by_std has an effect only when objective.loss is not sft, and objective.estimator not "
            "reinforce_pp, which divides by the step's, got True",
        ),
        (
            {"data": {"path": "d", "rows": "5"}},
            "data.rows must be start:stop or start:stop:step, in whole numbers from 0, got '5'",
        ),
        ({"data": {}}, "data.path is required, or data.sources, got nothing"),
        ({"data": {"path": "d", "sources": [{"path": "e"}]}}, "data.path has no effect beside data.sources, got 'd'"),
        ({"data": {"rows": "1:", "sources": [{"path": "e"}]}}, "data.rows has no effect beside data.sources, got '1:'"),
        (
            {"data": {"sources": [{"path": "d"}, {"path": "e", "rows": "7"}]}},
            "data.sources.1.rows must be start:stop or start:stop:step, in whole numbers from 0, got '7'",
        ),
        ({"data": {"sources": [{"path": "d", "weight": 0}]}}, "data.sources.0.weight must be above 0, got 0"),
        (
            {"data": {"path": "d", "over_long": "drop"}},
            "data.over_long has no effect without data.max_prompt_tokens, got 'drop'",
        ),
        (
            {"data": {"path": "d", "template": "none", "columns": {"tools": "t"}}},
            "data.columns.tools has no effect when data.template is none, got 't'",
        ),
        (
            {"data": {"template": "none", "sources": [{"path": "d", "columns": {"tools": "t"}}]}},
            "data.sources.0.columns.tools has no effect when data.template is none, got 't'",
        ),
        ({"data": {"path": "d", "rows": "5:5"}}, "data.rows must choose at least one row, got '5:5'"),
        ({"evaluation": {"path": "e", "rows": "::0"}}, "evaluation.rows must choose at least one row, got '::0'"),
        ({"trainer": {"min_lr": 1e-7}}, "trainer.min_lr has no effect when trainer.lr_schedule is constant, got 1e-07"),
        ({"trainer": {"lr_warmup_steps": 4}}, "trainer.lr_warmup_steps must be at most loop.steps, 3, got 4"),
        (
            {"evaluation": {"path": "e", "num_samples": 4}},
            "evaluation.num_samples must be 1 when evaluation.temperature is 0, got 4",
        ),
        (
            {"objective": {"loss": "sft"}, "rollout": {"num_engines": 2}},
            "rollout has no effect when objective.loss is sft, got 'a section'",
        ),
        (
            {"run": DETERMINISTIC, "loop": {"steps": 3, "max_lag": 1}},
            "loop.max_lag must be 0 when run.deterministic is true, got 1",
        ),
        (
            {"run": DETERMINISTIC, "loop": {"steps": 3, "on_straggler": "requeue"}},
            "loop.on_straggler has no effect when loop.max_lag is 0, got 'requeue'",
        ),
        (
            {"run": DETERMINISTIC, "rollout": {"num_engines": 2}},
            "rollout.num_engines must be 1 when run.deterministic is true, got 2",
        ),
        (
            {"run": DETERMINISTIC, "rollout": {"num_workers": 3}},
            "rollout.num_workers must be 1 when run.deterministic is true, got 3",
        ),
        (
            {"run": DETERMINISTIC, "rollout": {"max_concurrent_episodes": 4}},
            "rollout.max_concurrent_episodes must be 1 when run.deterministic is true, got 4",
        ),
        (
            {"run": DETERMINISTIC, "rollout": {"oversample": 1.5}},
            "rollout.oversample must be 1 when run.deterministic is true, got 1.5",
        ),
        (
            {"run": DETERMINISTIC, "rollout": {"segment_tokens": 64}},
            "rollout.segment_tokens has no effect when run.deterministic is true, got 64",
        ),
        (
            {"loop": {"steps": 3, "stop_at_score": 0.9}},
            "loop.stop_at_score needs an evaluation section, got 0.9",
        ),
    ],
)
def test_a_mistake_is_told_with_its_path_what_was_expected_and_what_came(sections, message):
    with pytest.raises(ConfigError) as caught:
        validate(values(**sections))
    assert str(caught.value) == message
    assert caught.value.exit_status == 2


def test_a_deterministic_run_needs_nothing_but_the_word_and_can_be_read_again_as_it_was_written():
    config = validate(values(run=DETERMINISTIC))
    assert config.run.deterministic
    assert validate(parse_yaml(config.dump(), source="config.yaml")) == config


def test_a_file_and_its_overrides_become_one_configuration(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values()))
    config = load_config(file, ["trainer.lr=2e-6", "rollout.sglang.context_length=64", "loop.max_lag=2"])
    assert config.trainer.lr == 2e-6
    assert config.rollout.sglang == {"context_length": 64}
    assert not config.loop.colocated
    assert config.loop.slots == 3 * config.loop.groups_per_step


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loop.steps", "expected an override of the form section.field=value, got 'loop.steps'"),
        ("loop.steps.x=1", "loop.steps.x cannot be set: steps is not a section, got 'loop.steps.x=1'"),
        ("loop.step=1", "loop.step is not a known field; did you mean 'steps'?, got 1"),
    ],
)
def test_a_wrong_override_is_refused(tmp_path, override, message):
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values()))
    with pytest.raises(ConfigError) as caught:
        load_config(file, [override])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "valid YAML in"),
        ("loop: {steps: 1}\nloop: {steps: 2}", "key 'loop' stands twice"),
        ("- 1", "expected a mapping of sections"),
        ("[a, b]: 1", "expected valid YAML in"),
        ("a: 2020-99-99", "expected valid YAML in"),
        ("", "expected a mapping of sections"),
    ],
)
def test_text_that_is_no_configuration_is_refused(tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="readable configuration file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:secret@host:6379/0",
        "redis://u:se/secret@host",
        "rediss://:p@ss/secret@host",
        "redis://host?password=secret",
    ],
)
def test_the_dump_holds_no_password(url):
    assert "secret" not in validate(values(buffer={"url": url})).dump()


def test_the_url_may_come_from_the_environment(monkeypatch):
    config = validate(values(buffer={"url_env": "BUFFER_URL"}))
    with pytest.raises(ConfigError, match=r"buffer.url_env must name an environment variable that is set"):
        config.buffer.find_url()
    monkeypatch.setenv("BUFFER_URL", "redis://:secret@host")
    assert config.buffer.find_url() == "redis://:secret@host"
    monkeypatch.setenv("BUFFER_URL", "http://:secret@host")
    with pytest.raises(ConfigError, match=r"got 'http://host'"):
        config.buffer.find_url()


def test_the_dump_is_a_configuration_again():
    without_url = validate(values())
    assert validate(yaml.safe_load(without_url.dump())) == without_url


def test_a_configuration_cannot_be_changed():
    config = validate(values())
    with pytest.raises(ValueError, match="frozen"):
        config.loop.steps = 4
    assert isinstance(config, Config)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("1:30:2", "1:30:2"),
        ("1:30.5", "1:30.5"),
        ("130", 130),
        ("-0x1F", -31),
        ("1.5", 1.5),
        ("1e-6", 1e-6),
    ],
)
def test_a_slice_is_a_text_and_a_number_a_number(text, value):
    assert parse_yaml(text, source="override") == value
