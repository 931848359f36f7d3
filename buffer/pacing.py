"""What paces the buffer: how much may be outstanding, how long anything may take, and where the data ends."""

from __future__ import annotations

from dataclasses import dataclass

from slime_rl.buffer.order import prompt_index
from slime_rl.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The numbers of one run that every process at its buffer must agree on.

    `num_steps` and `num_prompts` are the steps of the whole run and the rows of the data set; `max_epochs` None repeats
    the data for as long as steps are left. A lease ends `lease_s` after its last heartbeat. An `assign` gives up when
    nothing has changed in the buffer for `wait_timeout_s`, and a `reserve`, which also waits for the trainer's step and
    its publishing, after `slot_timeout_s`.
    """

    run_id: str
    groups_per_step: int
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

    def __post_init__(self) -> None:
        if not self.run_id or "{" in self.run_id or "}" in self.run_id:
            raise ValueError(f"a run id has no braces and is not empty, got {self.run_id!r}")

    @property
    def slots(self) -> int:
        """How many groups may be reserved, filled, or assigned to a step that is not published yet."""
        return (self.max_lag + 1) * self.groups_per_step

    @property
    def num_groups(self) -> int:
        """How many groups the whole run trains."""
        return self.num_steps * self.groups_per_step

    @property
    def num_issues(self) -> int | None:
        """How many prompts the data holds over all epochs, or None where it never ends."""
        return None if self.max_epochs is None else self.num_prompts * self.max_epochs

    def prompt_index(self, group_id: int) -> int:
        """The row of the data set that a group id stands for."""
        return prompt_index(group_id, num_prompts=self.num_prompts, seed=self.seed, shuffle=self.shuffle)


def pacing_of(config: Config, *, run_id: str, num_prompts: int) -> Pacing:
    """The pacing that a configuration asks for, over a data set of `num_prompts` rows."""
    loop = config.loop
    return Pacing(
        run_id=run_id,
        groups_per_step=loop.groups_per_step,
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
    )
