"""What paces the buffer: how much may be outstanding, how long anything may take, and where the data ends."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from slime_rl.buffer.order import Order, Source
from slime_rl.config import Config

MAX_STEPS = 2**20 - 1
"""Deadlines share a double with the order of finishing (lua/state.lua)."""

FROZEN = {
    "groups_per_step": "loop.groups_per_step",
    "samples_per_prompt": "loop.samples_per_prompt",
    "max_lag": "loop.max_lag",
    "surplus": "rollout.oversample",
    "num_prompts": "data",
    "seed": "run.seed",
    "shuffle": "data.shuffle",
    "sources": "data",
}
"""What a resumed run must keep, and where the configuration says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The numbers of one run that every process at its buffer must agree on.

    Durable parts are of `samples_per_prompt` samples.
    `num_steps` and `num_prompts` are the steps of the whole run and the rows of the data set; `max_epochs` None repeats
    the data for as long as steps are left. `surplus` groups more than the staleness bound has slots for may be
    generated; what is left of them when it is due is shed. A lease ends `lease_s` after its last heartbeat. An `assign`
    gives up when nothing has changed in the buffer for `wait_timeout_s`, and a `reserve`, which also waits for the
    trainer's step and its publishing, after `slot_timeout_s`.
    """

    run_id: str
    groups_per_step: int
    samples_per_prompt: int
    max_lag: int
    num_steps: int
    num_prompts: int
    max_epochs: int | None
    seed: int
    shuffle: bool
    temperature: float
    max_attempts: int
    max_dropped_per_step: int
    lease_s: float
    wait_timeout_s: float
    slot_timeout_s: float
    surplus: int = 0
    sources: tuple[Source, ...] = ()
    on_straggler: Literal["wait", "requeue", "mask"] = "wait"

    def __post_init__(self) -> None:
        if not self.run_id or "{" in self.run_id or "}" in self.run_id:
            raise ValueError(f"a run id has no braces and is not empty, got {self.run_id!r}")
        if self.num_steps + self.max_lag > MAX_STEPS:
            raise ValueError(f"expected at most {MAX_STEPS} steps with their lag, got {self.num_steps + self.max_lag}")

    @property
    def stored(self) -> dict[str, Any]:
        """The fields as JSON gives them back."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def kept(self) -> dict[str, Any]:
        """Those that a resumed run must not change, as JSON gives them back."""
        stored = self.stored
        return {name: stored[name] for name in FROZEN}

    @property
    def slots(self) -> int:
        """How many groups may be reserved, kept, filled, or assigned to a step that is not published yet."""
        return (self.max_lag + 1) * self.groups_per_step + self.surplus

    @property
    def num_groups(self) -> int:
        """How many groups the whole run trains."""
        return self.num_steps * self.groups_per_step

    @property
    def num_issues(self) -> int | None:
        """How many prompts the data holds over all epochs, or None where it never ends."""
        return None if self.max_epochs is None else self.order.num_issues(self.max_epochs)

    @property
    def order(self) -> Order:
        """The order of the prompts; without `sources` all rows are one."""
        return Order(self.sources or (Source(self.num_prompts),), self.seed, self.shuffle)

    @property
    def limits(self) -> dict[str, int | float]:
        """What the buffer's functions go by, under the names of lua/state.lua."""
        return {
            "groups_per_step": self.groups_per_step,
            "max_lag": self.max_lag,
            "surplus": self.surplus,
            "slots": self.slots,
            "lease_ms": math.ceil(self.lease_s * 1000),
            "max_attempts": self.max_attempts,
            "num_groups": self.num_groups,
            "num_issues": -1 if self.num_issues is None else self.num_issues,
            "temperature": self.temperature,
        }

    def prompt_index(self, group_id: int) -> int:
        """The row of the data set that a group id stands for."""
        return self.order.row(group_id)


def pacing_of(config: Config, *, run_id: str, num_prompts: int, sources: tuple[Source, ...] = ()) -> Pacing:
    """The pacing that a configuration asks for, over a data set of `num_prompts` rows in `sources`."""
    loop = config.loop
    return Pacing(
        run_id=run_id,
        groups_per_step=loop.groups_per_step,
        samples_per_prompt=loop.samples_per_prompt,
        max_lag=loop.max_lag,
        num_steps=loop.steps,
        num_prompts=num_prompts,
        max_epochs=config.data.max_epochs,
        seed=config.run.seed,
        shuffle=config.data.shuffle,
        temperature=config.sampling.temperature,
        max_attempts=loop.max_attempts,
        max_dropped_per_step=loop.max_dropped_per_step,
        lease_s=loop.lease_s,
        wait_timeout_s=loop.wait_timeout_s,
        slot_timeout_s=loop.wait_timeout_s + config.trainer.step_timeout_s,
        sources=sources,
        surplus=math.ceil((config.rollout.oversample - 1.0) * loop.groups_per_step),
        on_straggler=loop.on_straggler,
    )
