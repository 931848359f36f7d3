"""Finds a reward function by the name that the configuration gives it, and what such a function sees and returns."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat

from slime_rl.config import nearest
from slime_rl.errors import ConfigError, RewardError
from slime_rl.types import Message

ENTRY_POINTS = "slime_rl.rewards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a reward function sees of a sample: its text without special tokens, and how it ended."""

    text: str
    finish_reason: str
    num_tokens: int
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """A reward and the named parts it was made of."""

    value: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A user's function: `call(prompt, sample)`, or `call(prompt, samples)` where it `takes_group`."""

    name: str
    call: Callable[..., Any]
    takes_group: bool


def check_reward(name: str) -> None:
    """Refuse a name that stands for no function of two arguments, without running any of its code.

    Raises ConfigError for `reward.function`.
    """
    if ".py:" in name:
        _parameters_in_file(name)
    else:
        _entry_point(name)


def load_reward(name: str) -> RewardFunction:
    """Import the function that `name` stands for; a file is loaded under a private module name.

    Raises ConfigError for `reward.function`.
    """
    if ".py:" not in name:
        call = _entry_point(name).load()
        return RewardFunction(name, call, _takes_group(name, list(inspect.signature(call).parameters)))
    parameters = _parameters_in_file(name)
    path, _, attribute = name.rpartition(":")
    module_name = "_slime_rl_reward_" + hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("reward.function", "must name a Python file", name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return RewardFunction(name, getattr(module, attribute), _takes_group(name, parameters))


def to_scores(name: str, values: Sequence[Any], *, expected: int) -> list[Score]:
    """Check what a function returned, one value a sample. A failure never becomes a number.

    Raises RewardError with the reward's name for a wrong count, or a value that is no finite number.
    """
    if len(values) != expected:
        raise RewardError(f"reward {name} must return {expected} scores for {expected} samples, got {len(values)}")
    return [_to_score(name, value) for value in values]


def _to_score(name: str, value: Any) -> Score:
    if isinstance(value, Mapping):
        parts = {str(part): _to_float(f"{name}[{part!r}]", item) for part, item in value.items()}
        return Score(sum(parts.values()), parts)
    return Score(_to_float(name, value), {})


def _to_float(name: str, value: Any) -> float:
    if isinstance(value, str | bytes | None) or not isinstance(value, SupportsFloat):
        raise RewardError(f"reward {name} must return a number, got {type(value).__name__} {value!r:.80}")
    number = float(value)
    if not math.isfinite(number):
        raise RewardError(f"reward {name} must return a finite number, got {number}")
    return number


def _entry_point(name: str) -> importlib.metadata.EntryPoint:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        hint = nearest(name, found.names)
        raise ConfigError(
            "reward.function", f"must be path/to/file.py:function or one of {sorted(found.names)}{hint}", name
        )
    return found[name]


def _parameters_in_file(name: str) -> list[str]:
    """The parameter names of `path.py:function`, read from its source."""
    path, _, attribute = name.rpartition(":")
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    except OSError as error:
        raise ConfigError("reward.function", f"must name a readable file ({error.strerror})", name) from None
    except SyntaxError as error:
        raise ConfigError(
            "reward.function", f"must name valid Python (line {error.lineno}: {error.msg})", name
        ) from None
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    if attribute not in functions:
        hint = nearest(attribute, functions)
        raise ConfigError("reward.function", f"must name a function of {path}{hint}", attribute)
    parameters = [a.arg for a in (*functions[attribute].args.posonlyargs, *functions[attribute].args.args)]
    _takes_group(name, parameters)
    return parameters


def _takes_group(name: str, parameters: Sequence[str]) -> bool:
    if len(parameters) < 2 or parameters[1] not in ("sample", "samples"):
        raise ConfigError(
            "reward.function", f"{name} must take (prompt, sample) or (prompt, samples)", tuple(parameters)
        )
    return parameters[1] == "samples"
