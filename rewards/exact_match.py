"""The simplest reward: the answer, letter for letter."""

from __future__ import annotations

from slime_rl.rewards.functions import Answer
from slime_rl.types import Prompt


def exact_match(prompt: Prompt, sample: Answer) -> float:
    """1.0 where the text equals the reference answer, white space at both ends aside; else 0.0."""
    return float(sample.text.strip() == prompt.answer.strip())
