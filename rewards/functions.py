"""Finds a user's reward or filter by the name that the configuration gives it, and what it sees and returns."""

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

import numpy as np

from slime_rl.config import nearest
from slime_rl.errors import ConfigError, FilterError, RewardError, RunError
from slime_rl.types import Message

ENTRY_POINTS = "slime_rl.rewards"
MAX_REASON = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """What a user's function is for: its word in messages, and its field of the configuration.

    The second parameter of such a function is one of `takes`.
    """

    word: str
    path: str
    takes: tuple[str, ...]

    def error(self, text: str) -> RunError:
        """A fault of a function of this kind."""
        return (RewardError if self is REWARD else FilterError)(text)


REWARD = Kind("reward", "reward.function", ("sample", "samples"))
FILTER = Kind("filter", "loop.filters", ("samples",))
KINDS = {kind.word: kind for kind in (REWARD, FILTER)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a function sees of a sample: its text without special tokens, and how it ended; a filter sees its reward."""

    text: str
    finish_reason: str
    num_tokens: int
    reward: float | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """A reward and the named parts it was made of."""

    value: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's function: `call(prompt, sample)`, or `call(prompt, samples)` where it `takes_group`."""

    kind: Kind
    name: str
    call: Callable[..., Any]
    takes_group: bool


def check_function(kind: Kind, name: str) -> None:
    """Refuse a name that stands for no function of two arguments, without running any of its code.

    Raises ConfigError for the field of its kind.
    """
    if ".py:" in name:
        _parameters_in_file(kind, name)
    else:
        _entry_point(kind, name)


def load_function(kind: Kind, name: str) -> UserFunction:
    """Import the function that `name` stands for; a file is loaded under a private module name.

    Raises ConfigError for the field of its kind.
    """
    if ".py:" not in name:
        call = _entry_point(kind, name).load()
        return UserFunction(kind, name, call, _takes_group(kind, name, list(inspect.signature(call).parameters)))
    parameters = _parameters_in_file(kind, name)
    path, _, attribute = name.rpartition(":")
    module_name = f"_slime_rl_{kind.word}_" + hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(kind.path, "must name a Python file", name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return UserFunction(kind, name, getattr(module, attribute), _takes_group(kind, name, parameters))


def to_scores(name: str, values: Sequence[Any], *, expected: int) -> list[Score]:
    """Check what a function returned, one value a sample. A failure never becomes a number.

    Raises RewardError with the reward's name for a wrong count, or a value that is no finite number.
    """
    if len(values) != expected:
        raise RewardError(f"reward {name} must return {expected} scores for {expected} samples, got {len(values)}")
    return [_to_score(name, value) for value in values]


def to_reason(name: str, value: Any) -> str | None:
    """Why a filter drops a group, from what it returned: None for True, its own name for False, or its own words.

    Raises FilterError for anything else.
    """
    if isinstance(value, str) and value.strip():
        return " ".join(value.split())[:MAX_REASON]
    if isinstance(value, bool | np.bool_):
        return None if value else name.rpartition(":")[2]
    raise FilterError(f"filter {name} must return True, False or a reason, got {type(value).__name__} {value!r:.80}")


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


def _entry_point(kind: Kind, name: str) -> importlib.metadata.EntryPoint:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        hint = nearest(name, found.names)
        raise ConfigError(kind.path, f"must be path/to/file.py:function or one of {sorted(found.names)}{hint}", name)
    return found[name]


def _parameters_in_file(kind: Kind, name: str) -> list[str]:
    """The parameter names of `path.py:function`, read from its source."""
    path, _, attribute = name.rpartition(":")
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    except OSError as error:
        raise ConfigError(kind.path, f"must name a readable file ({error.strerror})", name) from None
    except SyntaxError as error:
        raise ConfigError(kind.path, f"must name valid Python (line {error.lineno}: {error.msg})", name) from None
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    if attribute not in functions:
        hint = nearest(attribute, functions)
        raise ConfigError(kind.path, f"must name a function of {path}{hint}", attribute)
    parameters = [a.arg for a in (*functions[attribute].args.posonlyargs, *functions[attribute].args.args)]
    _takes_group(kind, name, parameters)
    return parameters


def _takes_group(kind: Kind, name: str, parameters: Sequence[str]) -> bool:
    if len(parameters) < 2 or parameters[1] not in kind.takes:
        wanted = " or ".join(f"(prompt, {second})" for second in kind.takes)
        raise ConfigError(kind.path, f"{name} must take {wanted}", tuple(parameters))
    return parameters[1] == "samples"
