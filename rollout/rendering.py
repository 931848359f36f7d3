"""Prompts to token ids and token ids to text, by the model's own tokenizer.

Text of a data set is data: a string in it that spells a control token (`<|im_end|>`) is encoded letter by letter and
never becomes the token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from slime_rl.config import DataConfig, ModelConfig
from slime_rl.errors import ConfigError, DataError, ModelError
from slime_rl.rollout.model_folder import check_tokenizer, eos_token_ids, read_json
from slime_rl.types import Prompt

TEMPLATE_ERRORS = (TemplateError, LookupError, TypeError, ValueError, AttributeError)
"""What a chat template raises, which is a program that comes with the model."""


class Renderer:
    """Renders prompts as `data.template` says and decodes what the model wrote.

    `stop_token_ids` end a sample: the token that ends an answer first, then the others that the model's folder names.
    """

    def __init__(self, model: ModelConfig, data: DataConfig) -> None:
        self._data = data
        self._tokenizer = load_tokenizer(model)
        if data.template == "chat" and not self._tokenizer.chat_template:
            expected = f"must be none, since the tokenizer of {model.path!r} has no chat template"
            raise ConfigError("data.template", expected, data.template)
        for field, column in _tools_columns(data):
            if "tools" not in str(self._tokenizer.chat_template):
                raise ConfigError(
                    field, f"must be none, since the chat template of {model.path!r} shows no tools", column
                )
        special = [t.content for t in self._tokenizer.added_tokens_decoder.values() if t.special]
        special = sorted({*special, *self._tokenizer.all_special_tokens}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        candidates = (self._end_of_turn(), self._tokenizer.eos_token_id, *eos_token_ids(model.path))
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(id for id in candidates if isinstance(id, int)))
        if not self.stop_token_ids:
            expected = "must name an end-of-text token in its tokenizer or its generation_config.json"
            raise ModelError(f"model.path {expected}, got {model.path!r}, which names none")

    def check(self, prompts: Iterable[Prompt], *, field: str) -> None:
        """Render each prompt of the data set that the configuration's `field` names.

        Raises DataError with the field, the prompt's index and its column.
        """
        for prompt in prompts:
            self.count_tokens(prompt, field=field)

    def count_tokens(self, prompt: Prompt, *, field: str) -> int:
        """How many tokens a prompt of the data set has that the configuration's `field` names; raises as `check`."""
        try:
            return len(self.encode_prompt(prompt))
        except DataError as error:
            raise DataError(f"{field}: {error}") from error.__cause__

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The token ids that the model continues.

        Raises DataError if the prompt cannot be rendered, or renders to nothing.
        """
        if self._data.template == "none":
            if prompt.text is None:
                raise self._data_error(prompt, "must hold a text where data.template is none, got messages")
            tokens = self._encode_text(prompt.text, add_special_tokens=True)
        else:
            tokens = self._encode_chat(prompt)
        if not tokens:
            raise self._data_error(prompt, "must render to at least one token, got none")
        return tokens

    def encode_answer(self, text: str) -> list[int]:
        """The token ids of what a model should write: `text`, and the token that ends an answer.

        That is the one which the chat template puts after an assistant's turn, else the tokenizer's end of text; a
        generation config may list others before it (Llama 3 lists <|end_of_text|> before <|eot_id|>).
        """
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

        def hidden(text: str) -> str:
            return self._special.sub(hide, text)

        messages = [_map_strings(message, hidden) for message in self._messages(prompt)]
        tools = _map_strings(prompt.tools, hidden)
        try:
            rendered = self._render(messages, tools=tools, add_generation_prompt=True)
        except TEMPLATE_ERRORS as error:
            raise self._data_error(prompt, f"must fit the chat template of model.path, got {_line(error)}") from error
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

    def _render(self, messages: list[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool) -> str:
        rendered = self._tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        assert isinstance(rendered, str)
        return rendered

    def _end_of_turn(self) -> int | None:
        """The control token that the chat template puts after what an assistant said, if there is one."""
        if self._data.template == "none":
            return None
        mark = secrets.token_hex(16)
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}]
        try:
            rendered = self._render(messages, add_generation_prompt=False)
        except TEMPLATE_ERRORS:
            return None
        found = self._special.match(rendered.rpartition(mark)[2].lstrip())
        id = self._tokenizer.convert_tokens_to_ids(found[0]) if found else None
        return id if isinstance(id, int) else None

    def _data_error(self, prompt: Prompt, expected: str) -> DataError:
        return DataError(f"prompt {prompt.index}: column {self._data.columns.prompt!r} {expected}")


def load_tokenizer(model: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder.

    Raises ModelError if it is missing or unreadable, or has more tokens than the model has embeddings.
    """
    check_tokenizer(model.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except Exception as error:  # tokenizers raises Exception itself, and transformers whatever it meets
        expected = f"must hold a tokenizer that can be read ({type(error).__name__}: {_line(error)})"
        raise ModelError(f"model.path {expected}, got {model.path!r}") from error
    embeddings = read_json(model.path, "config.json").get("vocab_size")
    if embeddings is not None and len(tokenizer) > embeddings:
        expected = f"must have an embedding for each of its {len(tokenizer)} tokens"
        raise ModelError(f"model.path {expected}, got {embeddings} in {model.path!r}")
    return tokenizer


def _tools_columns(data: DataConfig) -> list[tuple[str, str]]:
    """Each column of tools that the configuration names, by its dotted path."""
    named = {"data": data.columns} | {name: source.columns for name, source in data.named.items() if source.columns}
    return [(f"{name}.columns.tools", columns.tools) for name, columns in named.items() if columns.tools is not None]


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())


def _map_strings(value: Any, change: Any) -> Any:
    """`value` with `change` applied to each string inside it; keys are the data set's own too."""
    match value:
        case str():
            return change(value)
        case dict():
            return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_map_strings(item, change) for item in value]
        case _:
            return value
