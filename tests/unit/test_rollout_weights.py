"""Shared memory and proof of a publish, without an engine."""

import base64
import os
import pickle

import pytest
import torch

from slime_rl.errors import WeightsError
from slime_rl.rollout import sglang_plugin
from slime_rl.rollout.weights import folder, intake, shared_memory
from slime_rl.rollout.weights.proof import check_held, engine_checksums
from slime_rl.types import Version

TENSORS = [
    ("model.embed_tokens.weight", torch.arange(12.0).view(6, 2)),
    ("model.layers.0.self_attn.q_proj.weight", torch.full((3, 2), 1.0)),
    ("model.layers.0.self_attn.k_proj.weight", torch.full((1, 2), 2.0)),
    ("model.layers.0.self_attn.v_proj.weight", torch.full((1, 2), 3.0)),
    ("model.norm.weight", torch.tensor([0.5, 1.5], dtype=torch.bfloat16)),
]


class FakeEngine:
    """Takes weights in as SGLang does: through the loader, and into a model that copies."""

    def __init__(self):
        self.model = FakeModel()
        self.calls = []

    async def begin_update(self):
        self.calls.append("begin")

    async def end_update(self):
        self.calls.append("end")

    async def load_tensors(self, payload, *, loader, version):
        self.calls.append((loader, version))
        intake.load(self.model, pickle.loads(base64.b64decode(payload)))

    async def load_folder(self, path, *, version):
        self.calls.append((os.listdir(path), version))


class FakeModel:
    def load_weights(self, weights):
        self.held = {name: tensor.clone() for name, tensor in weights}


async def test_tensors_of_any_dtype_and_layout_arrive_through_shared_memory():
    engine = FakeEngine()
    transposed = [*TENSORS, ("model.t.weight", torch.arange(6.0).view(2, 3).T)]
    with shared_memory.share(transposed) as load:
        await load(engine, Version(3))
    assert engine.calls == ["begin", ("slime_rl.rollout.weights.intake.load", 3), "end"]
    for name, tensor in transposed:
        assert engine.model.held[name].dtype == tensor.dtype
        assert torch.equal(engine.model.held[name], tensor)


def test_shared_memory_is_given_back():
    before = os.listdir("/proc/self/fd")
    with shared_memory.share(TENSORS):
        pass
    assert os.listdir("/proc/self/fd") == before


async def test_a_folder_lives_as_long_as_its_context(tmp_path):
    engine = FakeEngine()
    with folder.write(TENSORS, parent=tmp_path / "new") as load:
        await load(engine, Version(2))
    assert engine.calls == [(["model.safetensors"], 2)]
    assert list((tmp_path / "new").iterdir()) == []


def fused_by_hand():
    by_name = dict(TENSORS)
    qkv = torch.cat([by_name[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qkv"])
    padded = torch.cat([by_name["model.embed_tokens.weight"], torch.zeros(58, 2)])
    return engine_checksums([("qkv", qkv), ("embedding", padded)])


def test_checksums_follow_the_engines_fused_and_padded_parameters():
    found = engine_checksums(TENSORS)
    by_hand = fused_by_hand()
    assert found.keys() == {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.qkv_proj.weight",
        "model.norm.weight",
    }
    assert found["model.layers.0.self_attn.qkv_proj.weight"] == by_hand["qkv"]
    assert found["model.embed_tokens.weight"] == by_hand["embedding"]


def test_what_was_published_is_accepted_and_so_is_a_tied_head():
    held = engine_checksums(TENSORS)
    check_held("engine 1", published=held, held=held)
    tied = engine_checksums([*TENSORS, ("lm_head.weight", dict(TENSORS)["model.embed_tokens.weight"])])
    check_held("engine 1", published=tied, held=held)


def test_a_head_of_its_own_is_not_taken_for_a_tied_one():
    untied = engine_checksums([*TENSORS, ("lm_head.weight", torch.ones(6, 2))])
    with pytest.raises(WeightsError, match=r"lm_head\.weight was published but is not part of the model"):
        check_held("engine 1", published=untied, held=engine_checksums(TENSORS))


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (TENSORS[:-1], r"engine 1 does not hold the published weights: model\.norm\.weight was not published"),
        ([*TENSORS, ("model.nrm.weight", torch.ones(1))], r"model\.nrm\.weight was published but is not part"),
        ([*TENSORS[:-1], ("model.norm.weight", torch.ones(2))], r"model\.norm\.weight differs"),
        ([*TENSORS[:1], *TENSORS[2:]], r"qkv_proj\.weight was not published"),
    ],
)
def test_every_difference_is_named(sent, message):
    with pytest.raises(WeightsError, match=message):
        check_held("engine 1", published=engine_checksums(sent), held=engine_checksums(TENSORS))


def test_a_gpus_weights_are_hashed_as_a_cpus_are():
    tensor = torch.arange(6, dtype=torch.bfloat16)
    assert sglang_plugin.hash_weight(tensor) == engine_checksums([("model.norm.weight", tensor)])["model.norm.weight"]
