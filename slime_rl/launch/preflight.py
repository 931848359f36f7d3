"""Finds a user's mistakes before anything starts: no engine, no Ray, no model is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slime_rl.buffer.dataset import Selection, load_held_out, read_sources
from slime_rl.buffer.packing import packing_of
from slime_rl.config import Config
from slime_rl.errors import ConfigError, DataError
from slime_rl.journal.folder import check_unused
from slime_rl.launch.selection import NUM_RENDERED, select_rows
from slime_rl.rewards.filters import BUILT_IN, check_filter
from slime_rl.rewards.functions import FILTER, REWARD
from slime_rl.rewards.trial import check_loads
from slime_rl.rollout.arguments import check_sglang_arguments
from slime_rl.rollout.model_folder import check_tokenizer
from slime_rl.rollout.rendering import Renderer
from slime_rl.trainer.architecture import read_architecture
from slime_rl.trainer.arguments import check_megatron_arguments
from slime_rl.types import Prompt

REWARD_TIMEOUT_S = 60.0
"""How long a reward's module may take to load."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the checks have read on their way."""

    prompts: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    selection: Selection

    @property
    def overlap(self) -> int:
        """How many held-out prompts are training prompts too, letter by letter."""
        trained = {_content(prompt) for prompt in self.prompts}
        return sum(_content(prompt) in trained for prompt in self.held_out)


def _content(prompt: Prompt) -> str:
    return prompt.text if prompt.text is not None else json.dumps(prompt.messages)


def require(config: Config, *, supervised: bool, command: str) -> None:
    """Refuse a configuration that was written for another command."""
    if (config.objective.loss == "sft") != supervised:
        expected = "must be sft" if supervised else "must not be sft"
        raise ConfigError("objective.loss", f"{expected} for slime-rl {command}", config.objective.loss)


def check(config: Config) -> Inputs:
    """Check everything that a run needs; the first fault is raised as a UserError."""
    check_unused(Path(config.run.folder))
    return check_again(config)


def check_again(config: Config) -> Inputs:
    """Check everything that a run needs which goes on in its own folder."""
    check_megatron_arguments(config.trainer.megatron)
    check_tokenizer(config.model.path)
    read_architecture(config.model.path)
    return _read(config) if config.objective.loss == "sft" else check_evaluation(config)


def check_evaluation(config: Config) -> Inputs:
    """Check what sampling and scoring need."""
    config.buffer.find_url()
    packing_of(config.buffer, run_id="preflight")
    check_sglang_arguments(config.rollout.sglang, deterministic=config.run.deterministic)
    check_loads(REWARD, config.reward.function, timeout_s=REWARD_TIMEOUT_S)
    for name in config.loop.filters:
        check_filter(name)
        if name not in BUILT_IN:
            check_loads(FILTER, name, timeout_s=REWARD_TIMEOUT_S)
    return _read(config)


def _read(config: Config) -> Inputs:
    check_tokenizer(config.model.path)
    read = read_sources(config.data)
    evaluation = config.evaluation
    held_out: tuple[Prompt, ...] = ()
    if evaluation is not None:
        held_out = load_held_out(evaluation, config.data.columns)[: evaluation.max_prompts]
    renderer = Renderer(config.model, config.data)
    prompts, selection = select_rows(config.data, read, renderer)
    renderer.check(held_out[:NUM_RENDERED], field="evaluation.path")
    for rendered in (*(part[:NUM_RENDERED] for part in selection.parts(prompts)), held_out[:NUM_RENDERED]):
        _check_room(config, renderer, rendered)
    return Inputs(prompts, held_out, selection)


def _check_room(config: Config, renderer: Renderer, prompts: Sequence[Prompt]) -> None:
    """Each prompt must leave room for an answer in the context."""
    limit = config.rollout.sglang.get("context_length")
    for prompt in prompts:
        num_tokens = len(renderer.encode_prompt(prompt))
        if isinstance(limit, int) and num_tokens >= limit:
            raise DataError(
                f"rollout.sglang.context_length must leave room for an answer, got {limit} "
                f"for prompt {prompt.index} of {num_tokens} tokens"
            )
