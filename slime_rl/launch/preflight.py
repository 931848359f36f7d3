"""Finds a user's mistakes before anything starts: no engine, no Ray, no model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slime_rl.buffer.dataset import load_prompts
from slime_rl.config import Config
from slime_rl.errors import ConfigError
from slime_rl.journal.folder import check_unused
from slime_rl.rewards.functions import check_reward
from slime_rl.rollout.arguments import check_sglang_arguments
from slime_rl.rollout.model_folder import check_tokenizer
from slime_rl.trainer.architecture import read_architecture
from slime_rl.trainer.arguments import check_megatron_arguments
from slime_rl.types import Prompt


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the checks have read on their way."""

    prompts: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]


def require(config: Config, *, loss: str, command: str) -> None:
    """Refuse a configuration that was written for another command."""
    if config.objective.loss != loss:
        raise ConfigError("objective.loss", f"must be {loss} for slime-rl {command}", config.objective.loss)


def check(config: Config) -> Inputs:
    """Check everything that a run needs; the first fault is raised as a UserError."""
    check_unused(Path(config.run.folder))
    check_megatron_arguments(config.trainer.megatron)
    check_tokenizer(config.model.path)
    read_architecture(config.model.path)
    return check_evaluation(config) if config.objective.loss == "grpo" else _read(config)


def check_evaluation(config: Config) -> Inputs:
    """Check what sampling and scoring need."""
    check_sglang_arguments(config.rollout.sglang)
    check_reward(config.reward.function)
    return _read(config)


def _read(config: Config) -> Inputs:
    check_tokenizer(config.model.path)
    prompts = load_prompts(config.data.path, config.data.columns, field="data.path")
    evaluation = config.evaluation
    if evaluation is None:
        return Inputs(prompts, ())
    held_out = load_prompts(evaluation.path, config.data.columns, field="evaluation.path")
    return Inputs(prompts, held_out[: evaluation.max_prompts])
