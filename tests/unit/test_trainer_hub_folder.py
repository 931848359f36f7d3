"""A written model folder is whole, or not there."""

import json

import pytest
import torch
from safetensors.torch import load_file

from slime_rl.trainer.hub_folder import write_hub_folder

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


def test_weights_configuration_and_tokenizer_are_written(model, tmp_path):
    write_hub_folder(tmp_path / "out", iter(WEIGHTS), like=model, dtype=torch.bfloat16)
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert json.loads((tmp_path / "out/config.json").read_text()) == {"model_type": "qwen3", "dtype": "bfloat16"}
    assert load_file(tmp_path / "out/model.safetensors").keys() == dict(WEIGHTS).keys()


def test_large_models_are_cut_into_files_with_an_index(model, tmp_path):
    write_hub_folder(tmp_path / "out", iter(WEIGHTS), like=model, dtype=torch.float32, max_shard_bytes=128)
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 5 * 64
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    for name, weight in WEIGHTS:
        assert torch.equal(load_file(tmp_path / "out" / index["weight_map"][name])[name], weight)


def test_what_stood_there_is_replaced(model, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/stale").touch()
    write_hub_folder(tmp_path / "out", iter(WEIGHTS), like=model, dtype=torch.float32)
    assert not (tmp_path / "out/stale").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"model", "out"}


def test_a_failure_half_way_leaves_nothing(model, tmp_path):
    def weights():
        yield WEIGHTS[0]
        raise RuntimeError("a rank died")

    with pytest.raises(RuntimeError, match="a rank died"):
        write_hub_folder(tmp_path / "out", weights(), like=model, dtype=torch.float32)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
