"""What is told of a model folder before anything heavy starts."""

import json

import pytest

from slime_rl.errors import ModelError
from slime_rl.rollout.model_folder import check_tokenizer, eos_token_ids


def test_a_folder_with_a_tokenizer_passes(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    check_tokenizer(str(tmp_path))


def test_a_missing_folder_and_a_missing_tokenizer_are_told_in_one_line(tmp_path):
    with pytest.raises(ModelError, match=r"^model\.path must be a model folder, got '.*/none'$"):
        check_tokenizer(str(tmp_path / "none"))
    with pytest.raises(
        ModelError, match=r"^model\.path must hold a tokenizer \(tokenizer\.json or .*\), got '.*' with none$"
    ):
        check_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 3}, (1, 2)),
        ({"eos_token_id": 0}, {}, (0,)),
        ({}, {"eos_token_id": 3}, (3,)),
        ({}, {}, ()),
    ],
)
def test_the_generation_config_names_the_end_before_the_config_does(tmp_path, generation, config, expected):
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert eos_token_ids(str(tmp_path)) == expected


def test_a_damaged_config_is_told_with_its_file(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(
        ModelError, match=r"^model\.path must hold valid JSON in generation_config\.json \(Exp.*, got '/"
    ):
        eos_token_ids(str(tmp_path))


@pytest.mark.parametrize("found", ["</s>", ["</s>"], True])
def test_an_end_of_text_that_is_no_id_is_refused(tmp_path, found):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": found}))
    with pytest.raises(ModelError, match=r"^model\.path must name end-of-text tokens by their ids, got .* in '/"):
        eos_token_ids(str(tmp_path))
