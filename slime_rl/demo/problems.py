"""Addition of two numbers below 100, split by problem before anything is drawn.

A problem is an unordered pair: a+b and b+a are one, and lie on one side of the split. The question is zero-padded and
the answer written units first ("37+48=" and "580", for 85), so that each digit depends on what is already there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NUM_HELD_OUT = 300
NUM_VALIDATION = 200
NUM_WARM_UP = 600

Problem = tuple[int, int]
"""Two numbers, the smaller one first."""


@dataclass(frozen=True, slots=True)
class Split:
    """Which problems are for what. Those of the warm-up, and those that say when it ends, are training problems too."""

    held_out: tuple[Problem, ...]
    validation: tuple[Problem, ...]
    warm_up: tuple[Problem, ...]
    train: tuple[Problem, ...]

    @property
    def overlap(self) -> int:
        """How many held-out problems occur in the warm-up or in training."""
        return len(set(self.held_out) & {*self.validation, *self.warm_up, *self.train})


def split_problems(seed: int) -> Split:
    """All 5,050 problems, shuffled and split."""
    problems = [(a, b) for a in range(100) for b in range(a, 100)]
    random.Random(seed).shuffle(problems)
    held_out, train = problems[:NUM_HELD_OUT], problems[NUM_HELD_OUT:]
    validation, warm_up = train[:NUM_VALIDATION], train[NUM_VALIDATION:][:NUM_WARM_UP]
    return Split(tuple(held_out), tuple(validation), tuple(warm_up), tuple(train))


def write_data(folder: Path, split: Split, seed: int) -> None:
    """Write a JSONL file for each part of the split; training sees both orders of a problem."""
    folder.mkdir(parents=True)
    _write(folder / "validation.jsonl", _ordered(split.validation, seed))
    _write(folder / "heldout.jsonl", _ordered(split.held_out, seed))
    _write(folder / "train.jsonl", _both_orders(split.train))
    _write(folder / "warm_up.jsonl", _both_orders(split.warm_up))


def read_problems(path: Path) -> set[Problem]:
    """The problems in a file that `write_data` wrote."""
    problems = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        left, right = json.loads(line)["prompt"].rstrip("=").split("+")
        problems.add((min(int(left), int(right)), max(int(left), int(right))))
    return problems


def _ordered(problems: Sequence[Problem], seed: int) -> list[Problem]:
    """Each problem once, with its numbers in a random order."""
    draw = random.Random(seed)
    return [(a, b) if draw.random() < 0.5 else (b, a) for a, b in problems]


def _both_orders(problems: Sequence[Problem]) -> list[Problem]:
    return [pair for a, b in problems for pair in dict.fromkeys(((a, b), (b, a)))]


def _write(path: Path, pairs: Iterable[tuple[int, int]]) -> None:
    rows = ({"prompt": f"{a:02d}+{b:02d}=", "answer": f"{a + b:03d}"[::-1]} for a, b in pairs)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
