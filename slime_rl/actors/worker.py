"""A Ray actor that generates and scores groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slime_rl.rollout.address import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a worker finds the rest of the run."""

    router: Address
    buffer_url: str
    run_id: str
    logs: Path
