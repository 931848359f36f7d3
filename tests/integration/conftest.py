"""A tiny model and one real engine, shared by the integration tests that sample."""

import asyncio
import itertools
import os
import string
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from slime_rl.config import DataConfig, ModelConfig, RolloutConfig
from slime_rl.rollout.address import Keys
from slime_rl.rollout.engine import Engine
from slime_rl.rollout.engine_http import Completion, EngineHttp
from slime_rl.rollout.rendering import Renderer
from slime_rl.rollout.weights.publisher import Publisher
from slime_rl.trainer.hub_folder import write_hub_files
from slime_rl.types import Version

os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

CONTEXT_LENGTH = 512
NUM_EMBEDDINGS = 100  # no multiple of 64: an engine pads it
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of 0.8 M parameters with random weights, one character a token."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    characters = string.ascii_letters + string.digits + " \n+-*/=()<>|_?.,"
    vocabulary = {token: i for i, token in enumerate([*special, "<unk>", *characters])}
    characters_only = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    characters_only.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters_only.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=characters_only,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=NUM_EMBEDDINGS,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=vocabulary["<|im_end|>"],
        pad_token_id=vocabulary["<|endoftext|>"],
        bos_token_id=None,
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_config(model_folder: Path) -> ModelConfig:
    return ModelConfig(path=str(model_folder), dtype="float32")


@pytest.fixture(scope="session")
def rollout_config() -> RolloutConfig:
    return RolloutConfig(sglang={"context_length": CONTEXT_LENGTH})


@pytest.fixture(scope="session")
def keys() -> Keys:
    return Keys.draw()


@pytest.fixture(scope="session")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def renderer(model_config: ModelConfig) -> Renderer:
    return Renderer(model_config, DataConfig(path="unused.jsonl"))


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[EngineHttp]:
    async with EngineHttp(engine.address, timeout_s=60.0) as client:
        yield client


class Weights:
    """The weights of one version, held as a Hugging Face model that engines are compared with."""

    def __init__(self, model_folder: Path, version: Version) -> None:
        self.version = version
        self._model = Qwen3ForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for tensor in self._model.parameters():
                tensor += 0.02 * torch.randn(tensor.shape, generator=generator)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        return [(n, t) for n, t in self._model.state_dict().items() if n != "lm_head.weight"]

    def logprobs(self, tokens: list[int], temperature: float) -> np.ndarray:
        """The log-prob of each token but the first [T - 1]."""
        with torch.no_grad():
            logits = self._model(torch.tensor([tokens])).logits[0, :-1].float() / temperature
        return torch.log_softmax(logits, -1)[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])].numpy()


@dataclass(frozen=True)
class Started:
    """An engine, the weights of the folder it started from, and what it sampled before anything was published."""

    engine: Engine
    weights: Weights
    prompt: list[int]
    completions: list[Completion]


@pytest.fixture(scope="session")
def started(
    model_folder: Path, rollout_config: RolloutConfig, keys: Keys, log_folder: Path, tmp_path_factory
) -> Iterator[Started]:
    """The engine of the test session, started from a folder in several files as the trainer writes it."""
    weights, folder = Weights(model_folder, Version(0)), tmp_path_factory.mktemp("export") / "model"
    folder.mkdir()
    write_hub_files(folder, weights.tensors(), like=model_folder, dtype=torch.float32, max_shard_bytes=10**6)
    model = ModelConfig(path=str(folder), dtype="float32")
    engine = Engine(0, model=model, rollout=rollout_config, log_folder=log_folder, keys=keys, seed=0)
    prompt = [10, 20, 30]

    async def start() -> list[Completion]:
        async with EngineHttp(await engine.start(weights.version), timeout_s=60.0) as http:
            return await http.generate(prompt, num_samples=2, temperature=1.0, max_new_tokens=16, stop_token_ids=())

    try:
        yield Started(engine, weights, prompt, asyncio.run(start()))
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def engine(started: Started) -> Engine:
    """The engine of the test session; its weights are those of the last publish."""
    return started.engine


@pytest.fixture(scope="session")
def new_weights(model_folder: Path) -> Callable[[], Weights]:
    """Makes weights that no engine has seen, with the next version."""
    versions = itertools.count(1)
    return lambda: Weights(model_folder, Version(next(versions)))


@pytest.fixture
def publisher(engine: Engine, tmp_path: Path) -> Callable[..., Publisher]:
    """Makes a publisher to the engine by a transport."""

    def make(transport: Literal["tensor", "disk"] = "tensor") -> Publisher:
        return Publisher([engine.address], transport=transport, folder=tmp_path, timeout_s=60.0)

    return make
