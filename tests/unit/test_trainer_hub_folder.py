"""The files of a written model folder."""

import json

import pytest
import torch
from safetensors.torch import load_file

from slime_rl.trainer.hub_folder import write_hub_files

WEIGHTS = [(f"layer.{n}", torch.full((4, 4), float(n))) for n in range(5)]


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3", "dtype": "float32"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"old")
    return folder


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_weights_configuration_and_tokenizer_are_written(model, out):
    write_hub_files(out, iter(WEIGHTS), like=model, dtype=torch.bfloat16)
    written = {path.name for path in out.iterdir()}
    assert written == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert json.loads((out / "config.json").read_text()) == {"model_type": "qwen3", "dtype": "bfloat16"}
    assert load_file(out / "model.safetensors").keys() == dict(WEIGHTS).keys()


def test_large_models_are_cut_into_files_with_an_index(model, out):
    write_hub_files(out, iter(WEIGHTS), like=model, dtype=torch.float32, max_shard_bytes=128)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 5 * 64
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    for name, weight in WEIGHTS:
        assert torch.equal(load_file(out / index["weight_map"][name])[name], weight)
