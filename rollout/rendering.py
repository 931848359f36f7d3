"""Prompts to token ids and token ids to text, by the model's own tokenizer.

Text of a data set is data: a string in it that spells a control token (`<|im_end|>`) is encoded letter by letter and
never becomes the token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from slime_rl.config import DataConfig, ModelConfig
from slime_rl.errors import DataError, ModelError
from slime_rl.rollout.model_folder import check_tokenizer, eos_token_ids, read_json
from slime_rl.types import Prompt


class Renderer:
    """Renders prompts as `data.template` says and decodes what the model wrote."""

    def __init__(self, model: ModelConfig, data: DataConfig) -> None:
        self._data = data
        self._tokenizer = load_tokenizer(model)
        if data.template == "chat" and not self._tokenizer.chat_template:
            raise ModelError(f"data.template is chat, but the tokenizer of {model.path!r} has no chat template")
        special = [t.content for t in self._tokenizer.added_tokens_decoder.values() if t.special]
        special = sorted({*special, *self._tokenizer.all_special_tokens}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        own = self._tokenizer.eos_token_id
        ids = (*eos_token_ids(model.path), *((own,) if isinstance(own, int) else ()))
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(ids))
        if not self.stop_token_ids:
            raise ModelError(f"{model.path!r} names no end-of-text token in its generation config or tokenizer")

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The token ids that the model continues.

        Raises DataError if the prompt cannot be rendered, or renders to nothing.
        """
        if self._data.template == "none":
            if prompt.text is None:
                raise DataError(f"prompt {prompt.index}: messages need data.template chat, got none")
            tokens = self._encode_text(prompt.text, add_special_tokens=True)
        else:
            tokens = self._encode_chat(prompt)
        if not tokens:
            raise DataError(f"prompt {prompt.index} renders to no token")
        return tokens

    def encode_answer(self, text: str) -> list[int]:
        """The token ids of what a model should write: `text` and the end-of-text token."""
        return [*self._encode_text(text, add_special_tokens=False), self.stop_token_ids[0]]

    def decode(self, tokens: Sequence[int] | NDArray[np.int32]) -> str:
        """The text of what a model wrote, control tokens left out."""
        text = self._tokenizer.decode([int(t) for t in tokens], skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def _encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True)

    def _encode_chat(self, prompt: Prompt) -> list[int]:
        """Render the template around the messages, with each control token that a message spells encoded as text.

        Such strings are replaced by marks before the template runs, so that all else is encoded as the template's
        author meant it, across the border of template and content too.
        """
        mark = secrets.token_hex(16)
        spelled: list[str] = []

        def hide(match: re.Match[str]) -> str:
            spelled.append(match[0])
            return f"{mark}{len(spelled) - 1}."

        messages = [_map_strings(m, lambda text: self._special.sub(hide, text)) for m in self._messages(prompt)]
        rendered = self._render(messages, prompt.index)
        parts = re.split(rf"{mark}(\d+)\.", rendered)
        tokens = self._tokenizer.encode(parts[0], add_special_tokens=False)
        for number, text in zip(parts[1::2], parts[2::2], strict=True):
            tokens += self._encode_text(spelled[int(number)], add_special_tokens=False)
            tokens += self._tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def _messages(self, prompt: Prompt) -> list[Any]:
        messages = list(prompt.messages or ({"role": "user", "content": prompt.text},))
        if self._data.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self._data.system_prompt})
        return messages

    def _render(self, messages: list[Any], index: int) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except (TemplateError, KeyError, TypeError) as error:
            raise DataError(f"prompt {index} does not fit the chat template: {error}") from error
        assert isinstance(rendered, str)
        return rendered


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder.

    Raises ModelError if it is missing or unreadable, or has more tokens than the model has embeddings.
    """
    check_tokenizer(model.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"model.path must hold a tokenizer that can be read, got {model.path!r}: {reason}") from error
    embeddings = read_json(model.path, "config.json").get("vocab_size")
    if embeddings is not None and len(tokenizer) > embeddings:
        raise ModelError(f"{model.path!r} has {len(tokenizer)} tokens but only {embeddings} embeddings")
    return tokenizer


def _map_strings(value: Any, change: Any) -> Any:
    """`value` with `change` applied to each string inside it; roles and keys are the data set's own too."""
    match value:
        case str():
            return change(value)
        case dict():
            return {key: _map_strings(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_map_strings(item, change) for item in value]
        case _:
            return value
