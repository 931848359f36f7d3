"""A small Qwen3 model and a tokenizer with one token a character, as an ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+="
VOCABULARY_SIZE = 128


def write_model(folder: Path, seed: int) -> int:
    """Write a freshly initialised model of 0.8 M parameters with its tokenizer; return the number of parameters."""
    tokenizer = make_tokenizer()
    vocabulary = tokenizer.get_vocab()
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=256,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=vocabulary[EOS],
            pad_token_id=vocabulary[PAD],
            dtype="float32",
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.num_parameters()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Every character of the task is a token; anything else is unknown."""
    vocabulary = {token: index for index, token in enumerate((PAD, EOS, UNKNOWN, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
