"""The seed of each request of a deterministic run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

NO_GROUP = -1
"""The group of what is sampled outside the buffer."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """Gives every request of a run a seed of its own, the same one however often it is asked for.

    A group id stands for the epoch and the place in it. Run folder, attempt, worker and time have no part in a seed, so
    a run that was killed and resumed samples what an undisturbed one does.
    """

    run_seed: int
    purpose: Literal["train", "evaluate", "canary"]

    def of(self, *, group: int, prompt: int, sample: int, turn: int = 0) -> int:
        """The first 31 bits of the SHA-256 of all that names a request."""
        name = f"{self.run_seed} {self.purpose} {group} {prompt} {sample} {turn}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1
